# SPDX-License-Identifier: Apache-2.0
"""What every tensor transport must do: rcg's own, and those that users register."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray

import rcg
from rcg.errors import ActorDiedError, TensorMismatch, Transfer
from rcg.experimental.collective import create_collective_group
from rcg.rdt.custom import Objects
from rcg.rdt.process import here
from rcg.rdt.transports import Transport
from tests.cluster.again import Resting
from tests.cluster.stage import GUARD_S, eventually
from tests.harness.circles import core_has, core_where
from tests.harness.rdt_managers import Array, FileTransport, SocketMetadata, SocketTransport, folder

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

SIZE = 300_000  # numbers: 1.2 MB
TRANSPORTS = ["gloo", "auto", "nixl", "files", "sockets"]

rcg.register_tensor_transport("files", ["cpu"], FileTransport, np.ndarray)
rcg.register_tensor_transport("SOCKETS", ["cpu"], SocketTransport, Array)


def made(name: str, n: float, size: int = SIZE) -> Any:
    """Return what a transport of this name moves."""
    numbers = np.full(size, n, dtype=np.float32)
    if name == "files":
        return numbers
    return Array(numbers) if name == "sockets" else torch.from_numpy(numbers)


def total(value: Any) -> float:
    return float(np.asarray(value).sum())


def get(refs: Any, **options: Any) -> Any:
    return rcg.get(refs, timeout=GUARD_S, **options)


def outcome(call: Any) -> str:
    """The number that a call returns, or the text of its error."""
    try:
        return str(int(get(call)))
    except Transfer as error:
        return "it does not want to" if "it does not want to" in str(error) else str(error)


@rcg.remote(num_cpus=0, enable_tensor_transport=True)
class Worker:
    """Makes and takes what a transport moves; may stop or fail at a step of a transfer."""

    def make(self, name, n, size=SIZE):
        self.last = made(name, n, size)
        return self.last

    def nested(self, name, n):
        one = made(name, n, 10)
        return {"one": one, "again": [one], "other": (made(name, n + 1, 5),), "text": "x"}

    def several(self, name, n):
        return [made(name, n), {"inner": made(name, n + 1), "n": n}]

    def total_of_several(self, value):
        return total(value[0]) + total(value[1]["inner"])

    def with_others(self, name, n):
        inner = rcg.put(np.full(SIZE, n), _tensor_transport="files")
        return {"one": made(name, n), "inner": inner, "actor": Worker.remote()}

    def inner_of(self, value):
        return (
            total(value["one"]),
            total(rcg.get(value["inner"])),
            rcg.get(value["actor"].pid.remote()),
        )

    def plain(self):
        return {"no": "tensors"}

    def same(self, value):
        return value

    def total(self, *values):
        return sum(map(total, values))

    def total_of_nested(self, value):
        assert value["again"][0] is value["one"] or total(value["again"][0]) == total(value["one"])
        return total(value["one"]) + total(value["other"][0]), value["text"]

    def is_last(self, value):
        return value is self.last

    def get_of(self, refs, **options):
        return [total(each) for each in rcg.get(refs, **options)]

    def put(self, name, n):
        return [rcg.put(made(name, n), _tensor_transport=name)]

    def put_views(self, transport, count=4):
        """Put views of one tensor, as trainers do."""
        self.flat = torch.arange(float(count * SIZE)).reshape(count, SIZE)
        return [rcg.put(list(self.flat), _tensor_transport=transport)]

    def put_several(self, transport):
        """Put a value of several kinds of tensors."""
        value = {"a": torch.ones(3), "b": [torch.full((SIZE,), 2.0), torch.ones(4, 5).T]}
        return [rcg.put(value, _tensor_transport=transport)]

    def put_plain(self):
        return [rcg.put("no tensors", _tensor_transport="auto")]

    def wrong(self):
        return Elsewhere(made("files", 1))

    def facts(self):
        found = here().store.facts()
        return found.held, found.freed

    def pid(self):
        return os.getpid()

    def begin_anew(self):
        """Let go of everything; return how many objects are still held, or -1 if spoiled."""
        self.last = self.flat = None
        return -1 if hasattr(self, "is_spoiled") else self.facts()[0]

    def send_unreadable_metadata(self):
        """Have the next transfer send metadata that cannot be unpickled."""
        self.is_spoiled = True
        original = SocketTransport.get_communicator_metadata

        def once(*args):
            SocketTransport.get_communicator_metadata = original
            return Unreadable("\0rcg-test-riddle")

        SocketTransport.get_communicator_metadata = once

    def stop_at(self, step, path, *, is_failing=False):
        """Have the next transfer stop at a step for ever, or fail there."""
        self.is_spoiled = True
        from rcg.rdt import answers, connection, groups, nixl, pull, service, store
        from tests.harness import rdt_managers

        places = {
            "look up": [(store.Store, "find")],
            "send": [
                (groups.Pair, "send"),
                (service, "send_buffers"),
                (service.Service, "_send_after"),
                (service.Service, "_let_read"),
                (rdt_managers.SocketTransport, "send_multiple_tensors"),
            ],
            "ask": [
                (connection.Connection, "ask_for"),
                (connection.Connection, "ask_to_send"),
                (nixl.Nixl, "_know"),
                (rdt_managers.FileTransport, "get_communicator_metadata"),
            ],
            "receive": [
                (groups.Pair, "recv"),
                (answers, "open_buffers"),
                (pull, "receive_after"),
                (connection, "read"),
                (nixl.Nixl, "_wait"),
                (rdt_managers.FileTransport, "recv_multiple_tensors"),
                (rdt_managers.SocketTransport, "recv_multiple_tensors"),
            ],
        }
        for owner, name in places[step]:
            original = getattr(owner, name)

            def stop(*args, owner=owner, name=name, original=original, **kwargs):
                setattr(owner, name, original)
                if is_failing:
                    raise RuntimeError("it does not want to" + 70_000 * ".")
                with open(path, "w"):
                    pass
                time.sleep(1000)

            setattr(owner, name, stop)


class Unreadable(SocketMetadata):
    """Cannot be unpickled."""

    def __reduce__(self):
        return _solved, ()


def _solved():
    raise LookupError("nobody knows")


class Elsewhere(np.ndarray):
    """An array on an unknown device."""

    def __new__(cls, value):
        return np.asarray(value).view(cls)

    device = "mars"


@pytest.fixture(autouse=True, scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> None:
    # The actors have another environment: the files of all runs lie in one folder.
    folder()


@pytest.fixture(scope="module")
def resting() -> Iterator[Resting]:
    made = Resting(Worker)
    yield made
    made.close()


@pytest.fixture
def actors(resting: Resting) -> Iterator[Callable[..., list[Any]]]:
    def take(count: int, name: str = "") -> list[Any]:
        found = resting.take(count)
        if name == "gloo":
            create_collective_group(found, backend="gloo")
        return found

    yield take
    resting.rest()


@rcg.remote(num_cpus=0)
def total_in_task(value):
    return total(value)


@rcg.remote(num_cpus=0)
def total_of_list(values):
    return sum(map(total, rcg.get(values)))


@pytest.mark.filterwarnings("ignore:RDT ObjectRef")
@pytest.mark.parametrize("name", core_has("gloo", TRANSPORTS))
def test_values_go_everywhere_and_are_freed(actors, name):
    a, b, c = actors(3, name)
    by = {"tensor_transport": name}
    ref = a.make.options(**by).remote(name, 2)
    assert type(ref) is rcg.TensorRef and ref.tensor_transport() == name.upper()
    assert get([b.total.remote(ref), c.total.remote(ref, ref)]) == [2 * SIZE, 4 * SIZE]
    assert get(a.is_last.remote(ref))
    nested = a.nested.options(**by).remote(name, 3)
    assert get(b.total_of_nested.remote(nested)) == (30 + 20, "x")
    assert get(b.same.remote(a.plain.options(**by).remote())) == {"no": "tensors"}
    one, two = a.several.options(num_returns=2, **by).remote(name, 4)
    assert get(b.total.remote(one)) == 4 * SIZE
    assert total(get(two, _tensor_transport="object_store")["inner"]) == 5 * SIZE
    none = a.make.options(**by).remote(name, 1, 0)
    assert get(b.total.remote(none)) == 0
    # A ring, each with what the next one wants.
    ring = [each.make.options(**by).remote(name, n) for n, each in enumerate((a, b, c))]
    takers = (b, c, a)
    assert get([each.total.remote(r) for each, r in zip(takers, ring, strict=True)]) == [
        n * SIZE for n in range(3)
    ]
    assert get(b.get_of.remote([ref, *ring])) == [2 * SIZE, 0, SIZE, 2 * SIZE]
    # To processes that are in no group.
    elsewhere = "object_store" if name == "gloo" else name
    assert total(get(ref, _tensor_transport=elsewhere)) == 2 * SIZE
    assert get(total_in_task.remote(ref)) == 2 * SIZE
    if name != "gloo":
        assert get(total_of_list.remote([ref, ref])) == 4 * SIZE
    del ref, nested, one, two, none, ring
    eventually(lambda: [held for held, _ in get([x.facts.remote() for x in (a, b, c)])] == [0] * 3)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:RDT ObjectRef")
@pytest.mark.parametrize("name", TRANSPORTS)
def test_references_and_actors_beside_tensors_end_with_them(actors, name):
    a, b = actors(2, name)
    ref = a.with_others.options(tensor_transport=name).remote(name, 3)
    found = get([a.inner_of.remote(ref), b.inner_of.remote(ref)])
    pid = found[0][2]
    assert found == [(3 * SIZE, 3 * SIZE, pid)] * 2
    assert get(a.facts.remote())[0] == 2
    assert os.path.exists(f"/proc/{pid}")
    del ref
    eventually(lambda: get(a.facts.remote())[0] == 0)
    eventually(lambda: not os.path.exists(f"/proc/{pid}"))


def test_files_are_removed_when_their_objects_are_freed(actors):
    (a,) = actors(1)
    before = set(folder().iterdir())
    refs = [a.make.options(tensor_transport="files").remote("files", n) for n in range(3)]
    refs.append(rcg.put(made("files", 5), _tensor_transport="files"))
    get(a.total.remote(*refs))
    assert len(set(folder().iterdir()) - before) == 4
    del refs[0]
    eventually(lambda: len(set(folder().iterdir()) - before) == 3)
    refs.clear()
    eventually(lambda: set(folder().iterdir()) == before)


@pytest.mark.parametrize("name", ["object_store", "tcp", "nixl", "files"])
def test_what_is_put_is_got_elsewhere(actors, name):
    a, b = actors(2)
    store = here().store
    before = store.facts().held
    ref = rcg.put({"x": made(name, 7)}, _tensor_transport=name)
    assert total(get(ref)["x"]) == 7 * SIZE
    assert store.facts().held == before + 1
    del ref
    eventually(lambda: store.facts().held == before)
    (inner,) = get(a.put.remote(name, 8))
    assert get(b.total.remote(inner)) == 8 * SIZE
    assert total(get(inner)) == 8 * SIZE


# In files it takes no part.
@pytest.mark.parametrize("name", core_has("gloo", ["gloo", "object_store", "sockets"]))
@pytest.mark.parametrize("step", core_has("send", ["look up", "send"]))
def test_a_maker_that_is_killed_at_a_step_fails_its_taker(actors, name, step, tmp_path):
    a, b = actors(2, name)
    ref = a.make.options(tensor_transport=name).remote(name, 1)
    rcg.wait([ref], timeout=GUARD_S)
    mark = tmp_path / "mark"
    get(a.stop_at.remote(step, str(mark)))
    waiting = b.total.remote(ref)
    eventually(mark.exists)
    os.kill(get(a.pid.remote()), signal.SIGKILL)
    with pytest.raises(ActorDiedError, match="Worker"):
        get(waiting)
    assert get(b.total.remote(made(name, 2))) == 2 * SIZE


@pytest.mark.parametrize("name", core_has("gloo", TRANSPORTS))
@pytest.mark.parametrize("step", core_has("receive", ["ask", "receive"]))
def test_a_taker_that_is_killed_at_a_step_harms_nobody(actors, name, step, tmp_path):
    a, b, c = actors(3, name)
    ref = a.make.options(tensor_transport=name).remote(name, 1)
    mark = tmp_path / "mark"
    get(b.stop_at.remote(step, str(mark)))
    pid = get(b.pid.remote())
    waiting = b.total.remote(ref)
    eventually(mark.exists)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match="died"):
        get(waiting)
    if name == "gloo":
        create_collective_group([a, c], backend="gloo")
    assert get(c.total.remote(ref)) == SIZE
    del ref, waiting
    eventually(lambda: get(a.facts.remote())[0] == 0)


@pytest.mark.full
def test_metadata_that_the_holder_cannot_unpickle_raises(actors):
    a, b = actors(2)
    ref = a.make.options(tensor_transport="sockets").remote("sockets", 1)
    get(b.send_unreadable_metadata.remote())
    with pytest.raises(Transfer, match="cannot be read: LookupError: nobody knows"):
        get(b.total.remote(ref))
    assert get(b.total.remote(ref)) == SIZE


@pytest.mark.full
@pytest.mark.parametrize("name", ["files", "sockets"])
def test_a_transfer_that_fails_disturbs_none_beside_it(actors, name):
    (a,) = actors(1)
    b = Worker.options(max_concurrency=4).remote()
    refs = [a.make.options(tensor_transport=name).remote(name, 1) for _ in range(4)]
    rcg.wait(refs, num_returns=4, timeout=GUARD_S)
    for _ in range(10):
        get(b.stop_at.remote("receive", "", is_failing=True))
        calls = [b.total.remote(ref) for ref in refs]
        found = [outcome(call) for call in calls]
        assert sorted(found) == sorted(["it does not want to", *3 * [str(SIZE)]])
    rcg.kill(b)


@pytest.mark.full
@pytest.mark.parametrize("name", ["files", "sockets"])
def test_an_object_that_does_not_arrive_takes_no_other_with_it(actors, name):
    a, b = actors(2)
    refs = [a.make.options(tensor_transport=name).remote(name, n) for n in range(3)]
    rcg.wait(refs, num_returns=3, timeout=GUARD_S)
    get(b.stop_at.remote("receive", "", is_failing=True))
    with pytest.raises(Transfer, match="it does not want to"):
        get(b.total.remote(*refs))
    get(b.stop_at.remote("receive", "", is_failing=True))
    calls = [b.total.remote(ref) for ref in refs]
    with pytest.raises(Transfer, match="it does not want to"):
        get(calls[0])
    assert get(calls[1:]) == [SIZE, 2 * SIZE]
    assert get(b.total.remote(*refs)) == 3 * SIZE


@pytest.mark.parametrize(
    ("name", "cls"),
    core_where(
        lambda case: case[0] == "files",
        [("files", "FileTransport"), ("sockets", "SocketTransport")],
    ),
)
def test_what_a_transport_brings_must_be_what_was_sent(actors, name, cls):
    def distort(_, change):
        from tests.harness import rdt_managers

        manager = getattr(rdt_managers, cls)
        original = manager.recv_multiple_tensors

        def once(*args):
            manager.recv_multiple_tensors = original
            return change(original(*args))

        manager.recv_multiple_tensors = once

    def like(found, *, dtype="float32", size=SIZE):
        return type(found)(np.ones(size, dtype)) if name == "sockets" else np.ones(size, dtype)

    a, b = actors(2)
    ref = a.several.options(tensor_transport=name).remote(name, 1)
    for change, text in [
        (lambda found: found[:1], "1 objects, where 2 were sent"),
        (lambda found: [*found, found[0]], "3 objects, where 2 were sent"),
        (
            lambda found: [found[0], like(found[1], size=1)],
            rf"float32 \[1\] in place 1, .* \[{SIZE}\]",
        ),
        (lambda found: [like(found[0], dtype="float64"), found[1]], "float64 .* in place 0"),
        (lambda found: [found[0], "text"], "str in place 1, where .* was sent"),
    ]:
        get(b.__ray_call__.remote(distort, change))
        with pytest.raises(TensorMismatch, match=f"{cls}, .*{name.upper()}, brought {text}"):
            get(b.total_of_several.remote(ref))
        assert get(b.total_of_several.remote(ref)) == 3 * SIZE


def test_a_transport_that_returns_a_tensor_without_numbers_raises():
    def freed():
        tensor = torch.ones(4)
        tensor.untyped_storage().resize_(4)
        return tensor

    transport = Transport("files", None, needs_group=False, manager=FileTransport)
    contents = Objects(transport, b"", [], None, (16,), ("cpu",), ("float32 [4]",), None)
    contents.check([torch.ones(8)[::2]])
    for wrong, text in [
        (torch.ones(4, device="meta"), r"FILES, brought float32 \[4\] without numbers .* place 0"),
        (freed(), "FILES, brought in place 0 .*needs 16 bytes of its storage, which has 4"),
    ]:
        with pytest.raises(TensorMismatch, match=text):
            contents.check([wrong])


def test_what_a_transport_does_not_serve_is_named(actors):
    (a,) = actors(1)
    ref = a.wrong.options(tensor_transport="files").remote()
    with pytest.raises(TensorMismatch, match=r"FILES does not support .* on device mars"):
        get(ref)
    assert get(a.total.remote(made("files", 1))) == SIZE


def test_a_transport_that_was_registered_late_reaches_old_actors_and_others(actors):
    a, b = actors(2)
    get([a.pid.remote(), b.pid.remote()])
    rcg.register_tensor_transport("late", ["cpu"], Late, np.ndarray)
    ref = a.make.options(tensor_transport="late").remote("files", 3)
    assert get(b.total.remote(ref)) == 3 * SIZE
    assert get(b.get_of.remote([ref])) == [3 * SIZE]


class Late(FileTransport):
    """Has its name from elsewhere."""

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        assert backend == "LATE"
        assert src_actor is not None and dst_actor is not None
        return super().get_communicator_metadata(src_actor, dst_actor, "FILES")


def test_what_cannot_be_registered_is_refused():
    with pytest.raises(ValueError, match="Transport GLOO already registered"):
        rcg.register_tensor_transport("gloo", ["cpu"], FileTransport)
    with pytest.raises(ValueError, match="Transport FILES already registered"):
        rcg.register_tensor_transport("Files", ["cpu"], SocketTransport)
    with pytest.raises(ValueError, match="must be a subclass of TensorTransportManager"):
        rcg.register_tensor_transport("new", ["cpu"], dict)
    with pytest.raises(TypeError, match="does not implement"):
        rcg.register_tensor_transport("new", ["cpu"], rcg.experimental.TensorTransportManager)
    with pytest.raises(TypeError, match="devices"):
        rcg.register_tensor_transport("new", "cpu", FileTransport)
    with pytest.raises(ValueError, match="identifier"):
        rcg.register_tensor_transport("a*2", ["cpu"], FileTransport)
    with pytest.raises(ValueError, match="Invalid tensor transport: new"):
        rcg.method(tensor_transport="new")
    rcg.register_tensor_transport("files", ["cpu"], FileTransport, np.ndarray)  # once more


class Absent(FileTransport):
    """Is in no actor."""

    def actor_has_tensor_transport(self, actor):
        return False


def test_calling_an_actor_without_the_transport_raises(actors):
    (a,) = actors(1)
    rcg.register_tensor_transport("absent", ["cpu"], Absent, np.ndarray)
    with pytest.raises(ValueError, match="does not have tensor transport ABSENT available"):
        a.make.options(tensor_transport="absent").remote("files", 1)
    ref = a.make.options(tensor_transport="files").remote("files", 1)
    with pytest.raises(ValueError, match="cannot be got by ABSENT"):
        get(ref, _tensor_transport="absent")


@pytest.mark.full
@pytest.mark.parametrize("transport", ["auto", "nixl", "object_store"])
def test_the_targets_of_a_reference(actors, transport: str) -> None:
    (maker,) = actors(1)
    set_target = rcg.experimental.set_target_for_ref
    (ref,) = get(maker.put_views.remote(transport))
    targets = [torch.zeros(SIZE) for _ in range(4)]
    set_target(ref, targets)
    found = get(ref)
    assert all(one is other for one, other in zip(found, targets, strict=True))
    assert [float(each[0]) for each in targets] == [0.0, SIZE, 2.0 * SIZE, 3.0 * SIZE]
    del targets, found
    assert float(get(ref)[3][0]) == 3.0 * SIZE  # the targets are gone: fresh memory

    (ref,) = get(maker.put_several.remote(transport))
    targets = [torch.zeros(3), torch.zeros(SIZE), torch.zeros(5, 4)]
    set_target(ref, targets)
    others = get(maker.put_views.remote(transport, 1))
    value, (other,) = get([ref, *others])
    assert value["a"] is targets[0] and value["b"][0] is targets[1] and value["b"][1] is targets[2]
    assert targets[2].eq(1).all() and float(targets[1].sum()) == 2.0 * SIZE
    assert float(other[1]) == 1.0
    rcg.experimental.set_target_device_for_ref(ref, "cpu")  # in place of the targets
    assert get(ref)["a"] is not targets[0]


def test_targets_that_do_not_fit(actors) -> None:
    (maker,) = actors(1)
    (ref,) = get(maker.put_views.remote("auto", 2))
    one = torch.zeros(SIZE)
    for targets, text in (
        ([one], r"Length of tensor_buffers \(1\) does not match length from object metadata \(2\)"),
        ([one, torch.zeros(3)], r"Shape of tensor_buffer at index 1 \(torch.Size\(\[3\]\)\)"),
        ([one, one.double()], r"Dtype of tensor_buffer at index 1 \(torch.float64\) does not"),
        ([one, torch.zeros(SIZE, 2)[:, 0]], "Tensor buffer at index 1 is not contiguous"),
        ([one, one], "share memory"),
    ):
        rcg.experimental.set_target_for_ref(ref, targets)
        with pytest.raises(ValueError, match=text):
            get(ref)
        assert not one.any()
    with pytest.raises(ValueError, match=r"Ref 7 is not an RDT object\."):
        rcg.experimental.set_target_for_ref(7, [one])
    (ref,) = get(maker.put_views.remote("nixl", 1))
    with pytest.raises(ValueError, match="NIXL does not support fetching onto target device xpu"):
        rcg.experimental.set_target_device_for_ref(ref, "xpu:0")
    (plain,) = get(maker.put_plain.remote())
    rcg.experimental.set_target_for_ref(plain, [one])
    with pytest.raises(ValueError, match=r"length from object metadata \(0\)"):
        get(plain)


# --- ahead of calls


@rcg.remote(num_cpus=0)
class Busy:
    """Takes tensors, at a gate."""

    def wait(self, gate):
        gate.pass_through()

    def total(self, one, other=None):
        return total(one) + (0 if other is None else total(other))


def test_tensors_of_calls_that_wait_are_there_when_they_run(actors, gates: Any) -> None:
    (maker,), taker, gate = actors(1), Busy.remote(), gates()
    waiting = taker.wait.remote(gate)
    gate.wait_for(1)
    refs = [maker.make.options(tensor_transport="auto").remote("auto", n) for n in (1, 2)]
    made = [taker.total.remote(refs[0], 0), taker.total.remote(refs[1], refs[0])]

    def got_ahead() -> list[tuple[int, int, int]]:
        owners = rcg.report().tensors.owners
        return [(each.ahead, each.ahead_bytes, each.ahead_used) for each in owners if each.ahead]

    eventually(lambda: got_ahead() == [(2, 8 * SIZE, 0)])
    assert "has got 2 values of 2.4 MB ahead, of which calls have taken 0" in str(rcg.report())
    assert rcg.wait([waiting], timeout=0)[0] == []
    rcg.kill(maker)  # what is here is here
    with pytest.raises(ray.exceptions.ActorDiedError):
        get(maker.make.remote("auto", 1))  # it is dead by now
    gate.open()
    assert get(made[0]) == SIZE
    with pytest.raises(ActorDiedError):  # its other argument was taken by the first
        get(made[1])


@pytest.mark.full
def test_a_call_that_is_cancelled_leaves_what_came_for_it_and_holds_nothing(gates: Any) -> None:
    maker, taker, gate = Worker.remote(), Busy.remote(), gates()
    taker.wait.remote(gate)
    gate.wait_for(1)
    ref = maker.make.options(tensor_transport="auto").remote("auto", 1)
    made = taker.total.remote(ref)
    eventually(lambda: any(each.ahead for each in rcg.report().tensors.owners))
    rcg.cancel(made)
    gate.open()
    with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.RayTaskError)):
        get(made)
    assert get(taker.total.remote(ref)) == SIZE
    del ref, made
    eventually(lambda: get(maker.facts.remote())[0] == 0)
