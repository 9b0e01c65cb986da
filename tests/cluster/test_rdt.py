# SPDX-License-Identifier: Apache-2.0
"""Tensors by reference between real actors: transfers, lifetimes and errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import rcg
from rcg.dag import InputNode
from rcg.errors import ActorDiedError, OutOfThreads, Transfer, UnpicklableError
from rcg.experimental import wait_tensor_freed
from rcg.experimental.collective import (
    create_collective_group,
    destroy_all_collective_groups,
    destroy_collective_group,
    get_collective_groups,
)
from rcg.rdt import collective_groups
from rcg.rdt.process import here, holder_of
from rcg.runtime.control.joining import check_user, join
from rcg.wire.messages import UseTensors
from tests.cluster.again import Resting
from tests.cluster.nodes import is_spread
from tests.cluster.stage import GUARD_S, eventually
from tests.harness.circles import core_has, core_where
from tests.harness.peers import ctrl_c_anywhere, descriptors, no_threads, suspend, until

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

BIG = 300_000  # numbers: 1.2 MB
A_LOOK_S = 0.6  # the driver looks more often at what it still needs, and tells the owners


def get(refs: Any, **options: Any) -> Any:
    return rcg.get(refs, timeout=GUARD_S, **options)


class Worker:
    """Makes, keeps and takes tensors."""

    def __init__(self) -> None:
        self.kept: Any = None
        self.refs: Any = None

    @rcg.method(tensor_transport="gloo")
    def make(self, n, size=BIG):
        return torch.full((size,), float(n))

    @rcg.method(tensor_transport="object_store")
    def build(self, make):
        return make()

    @rcg.method(tensor_transport="object_store")
    def make_anywhere(self, n, size=BIG):
        return torch.full((size,), float(n))

    @rcg.method(tensor_transport="gloo")
    def keep(self, n, size=BIG):
        self.kept = torch.full((size,), float(n))
        return self.kept

    @rcg.method(tensor_transport="gloo")
    def plain(self, n):
        return {"no": "tensors", "n": n}

    @rcg.method(tensor_transport="gloo")
    def fail(self):
        raise LookupError("no tensor today")

    def stream(self):
        for n in range(2):
            yield torch.full((BIG,), float(n))

    def plain_make(self, n):
        return torch.full((10,), float(n))

    def plain_make_after(self, mark):
        until(Path(mark).exists)
        return torch.full((10,), 4.0)

    def total(self, *tensors, **named):
        return sum(float(each.sum()) for each in (*tensors, *named.values()))

    def add_in_place(self, tensor):
        tensor += 1
        return float(tensor[0])

    def same(self, value):
        return value

    def kept_plus(self, n):
        self.kept += n
        return float(self.kept[0])

    def warnings_of(self, n):
        with warnings.catch_warnings(record=True) as got:
            warnings.simplefilter("always")
            other = type(self).kept_plus
            other(self, n)  # as Ray calls it
        return [(str(each.message), each.lineno) for each in got]

    def warnings_of_waiting(self, *_):
        with warnings.catch_warnings(record=True) as got, contextlib.suppress(TimeoutError):
            warnings.simplefilter("always")
            wait_tensor_freed(self.kept, 1)
        return " ".join(str(each.message) for each in got)

    def freed_and_plus(self, n, timeout=None):
        wait_tensor_freed(self.kept, timeout)
        self.kept += n
        return float(self.kept[0])

    def get_of(self, refs, **options):
        return [float(each.sum()) for each in rcg.get(refs, **options)]

    def collect_no_cycles(self):
        gc.disable()

    def begin_anew(self):
        """Return to the state of a new actor; return how many objects it still holds."""
        self.__dict__.clear()
        Worker.__init__(self)
        gc.enable()
        held, _, *self.earlier = self.facts()
        return held

    def hold(self, refs):
        self.refs = refs
        return len(refs)

    def drop(self):
        self.refs = None

    def put(self, n, transport):
        return [rcg.put(torch.full((BIG,), float(n)), _tensor_transport=transport)]

    @rcg.method(tensor_transport="gloo")
    def keep_all(self, size=BIG):
        self.kept = {"weights": [torch.ones(10), torch.ones(size)]}
        return self.kept

    @rcg.method(tensor_transport="gloo")
    def kept_as_it_is(self, place=None):
        return self.kept if place is None else self.kept["weights"][place]

    def resize(self, count):
        """Change the storage of a tensor that was returned, as FSDP does with parameters."""
        tensor = self.kept["weights"][1]
        tensor.untyped_storage().resize_(4 * count)
        if count >= tensor.numel():
            tensor.fill_(2)

    def wait_for(self, mark):
        """Keep the actor busy until the file is there."""
        eventually(Path(mark).exists)

    def note(self, tensor):
        self.kept = float(tensor.sum())

    def noted(self):
        return self.kept

    def break_service(self):
        """Have the next look-up in the store raise an unexpected error."""
        from rcg.rdt.store import Store

        original = Store.find

        def broken(*args):
            Store.find = original
            raise RuntimeError("nobody thought of that")

        Store.find = broken

    def facts(self):
        found = here().store.facts()
        freed, pulls, unkept = getattr(self, "earlier", (0, 0, 0))
        return (
            *(found.held, found.held_bytes),
            *(found.freed - freed, found.pulls - pulls, found.unkept - unkept),
        )

    def lose(self, place):
        here().store.free([here().store.entries()[place].key])

    def pid(self):
        return os.getpid()

    def lack_threads(self, *options):
        self.poor = no_threads(*options)
        self.names = self.poor.__enter__()

    def have_threads(self):
        self.poor.__exit__(None, None, None)
        return self.names


Actor = rcg.remote(num_cpus=0)(Worker)


@rcg.remote(num_cpus=0)
class AsyncWorker:
    """Async methods and plain ones, on one event loop."""

    @rcg.method(tensor_transport="gloo")
    async def make(self, n, size=BIG):
        await asyncio.sleep(0.01)
        return torch.full((size,), float(n))

    async def total(self, tensor):
        await asyncio.sleep(0)
        return float(tensor.sum())

    def plain_total(self, tensor):
        return float(tensor.sum())

    async def await_of(self, refs):
        return [float((await ref).sum()) for ref in refs]


@pytest.fixture(scope="module")
def resting() -> Iterator[Resting]:
    made = Resting(Actor)
    yield made
    made.close()


@pytest.fixture
def actors(resting: Resting) -> Iterator[Callable[..., list[Any]]]:
    yield resting.take
    resting.rest()


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """A file that is not there, for which actors wait; those that still do end with the test."""
    path = tmp_path / "go on"
    yield path
    path.touch()


@pytest.fixture
def pair(actors: Callable[..., list[Any]]) -> list[Any]:
    found = actors(2)
    create_collective_group(found, backend="torch_gloo")
    return found


def held_by(actor: Any) -> int:
    return get(actor.facts.remote())[0]


def state_of(ref: Any) -> str:
    (found,) = [each for each in rcg.report().tensors.refs if each.ref == ref.hex()]
    return found.state


# --- values


def test_a_tensor_goes_straight_to_the_actor_that_takes_it(pair):
    a, b = pair
    ref = a.make.remote(2)
    assert isinstance(ref, rcg.TensorRef)
    assert ref.tensor_transport() == "GLOO"
    assert get(b.total.remote(ref)) == 2.0 * BIG
    assert get(b.total.remote(ref, again=ref)) == 4.0 * BIG
    held, size, _, pulls, _ = get(a.facts.remote())
    assert (held, size) == (1, 4 * BIG)
    assert pulls == 2  # once for each call, whatever it names
    # Each call gets a copy of its own.
    assert get([b.add_in_place.remote(ref) for _ in range(2)]) == [3.0, 3.0]


def test_busy_actors_become_members_of_groups_and_send(pair, mark):
    a, b = pair
    ref = a.make.remote(1)
    rcg.wait([ref], timeout=GUARD_S)
    busy = a.wait_for.remote(mark)
    assert get(b.total.remote(ref)) == BIG
    group = create_collective_group([a, b], backend="gloo")
    assert group in get_collective_groups([b, a])
    assert rcg.wait([busy], timeout=0)[0] == []


# --- get, put, wait, await


def test_get_through_the_object_store(actors):
    (a,) = actors(1)
    create_collective_group([a], backend="gloo")
    ref = a.make.remote(2)
    text = (
        "Currently ray.get() only supports OBJECT_STORE and NIXL tensor transport, got "
        "TensorTransportEnum.GLOO, please specify the correct tensor transport in ray.get()"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        rcg.get(ref)
    found = get(ref, _tensor_transport="object_store")
    assert found.sum() == 2.0 * BIG
    found += 1  # it is the caller's own
    assert get(ref, _use_object_store=True).sum() == 2.0 * BIG
    plain = a.same.remote(7)
    assert get([ref, plain, ref], _use_object_store=True)[1] == 7


def test_wait_and_await(pair):
    a, _ = pair
    refs = [a.make.remote(n) for n in range(3)]
    ready, others = rcg.wait(refs, num_returns=3, timeout=GUARD_S)
    assert ready == refs and not others

    async def fetch() -> list[float]:
        return [float((await ref).sum()) for ref in refs]

    assert asyncio.run(fetch()) == [0.0, 1.0 * BIG, 2.0 * BIG]
    assert refs[1].future().result(GUARD_S).sum() == BIG


def test_refs_in_containers_and_closures_work_anywhere(pair):
    a, b = pair
    refs = [a.make.remote(n) for n in range(3)]
    assert get(b.get_of.remote(refs)) == [0.0, 1.0 * BIG, 2.0 * BIG]

    @rcg.remote(num_cpus=0)
    def task(value: Any) -> float:
        return float(value.sum()) + float(rcg.get(refs[2], _use_object_store=True).sum())

    for each in (task, task.options(num_cpus=0)):
        assert get(each.remote(refs[1])) == 3.0 * BIG


@pytest.mark.full
def test_plain_actors_of_ray_get_values_too(pair):
    class Plain:
        def total(self, tensor: Any) -> float:
            return float(tensor.sum())

    plain = rcg.wrap_actor(ray.remote(num_cpus=0)(Plain).remote())
    try:
        ref = pair[0].make_anywhere.remote(2)
        assert get(plain.total.remote(ref)) == 2.0 * BIG
        with pytest.raises(ValueError, match="No communicators found for actors"):
            plain.total.remote(pair[0].make.remote(2))
    finally:
        rcg.kill(plain)


@pytest.mark.full
def test_async_and_threaded_actors(actors):
    (a,), (b,) = actors(1, AsyncWorker), actors(1, Actor, max_concurrency=3)
    create_collective_group([a, b], backend="gloo")
    totals = [float(n * BIG) for n in range(6)]
    refs = [a.make.remote(n) for n in range(6)]
    assert get([b.total.remote(ref) for ref in refs]) == totals
    refs = [b.make.remote(n) for n in range(6)]
    assert get([a.total.remote(ref) for ref in refs]) == totals
    assert get(a.plain_total.remote(refs[2])) == 2.0 * BIG
    assert get(a.await_of.remote(refs[:2])) == [0.0, 1.0 * BIG]


# --- errors


def test_an_error_of_the_user_leaves_the_group_alone(pair):
    a, b = pair
    failed = a.fail.remote()
    with pytest.raises(LookupError, match="no tensor today"):
        get(b.total.remote(failed))
    with pytest.raises(LookupError, match="no tensor today"):
        get(failed, _use_object_store=True)
    assert get(b.total.remote(a.make.remote(1))) == BIG


def test_what_cannot_work_is_said_when_the_call_is_made(actors):
    a, b, c = actors(3)
    get([each.pid.remote() for each in (a, b, c)])
    with pytest.raises(ValueError, match="does not have tensor transport GLOO available"):
        a.make.remote(1)
    with pytest.raises(ValueError, match="Invalid tensor transport: smoke"):
        a.plain_make.options(tensor_transport="smoke")
    with pytest.raises(ValueError, match="must be unique"):
        create_collective_group([a, a], backend="gloo")
    group = create_collective_group([a, b], backend="gloo")
    ref = a.make.remote(1)
    with pytest.raises(ValueError, match="No communicators found for actors"):
        c.total.remote(ref)
    other = create_collective_group([a, b, c], backend="gloo")
    with pytest.raises(ValueError, match="There are 2 possible communicators"):
        b.total.remote(ref)
    assert get(c.total.remote(ref)) == BIG
    destroy_collective_group(group)
    assert get(b.total.remote(ref)) == BIG
    assert get_collective_groups([a, b]) == [other]
    with pytest.raises(ValueError, match="No group with name"):
        destroy_collective_group(group.name)


def test_ctrl_c_while_a_group_is_made_leaves_no_member_and_no_descriptor(pair):
    made: list[Any] = []

    def make() -> None:
        made.append(create_collective_group(pair, "gloo", "interrupted"))

    names = "rcg.rdt.collective_groups", "rcg.rdt.connection.Connection"
    before = descriptors()
    for _ in ctrl_c_anywhere(make, *names):
        if not made:
            found = [collective_groups.groups_of(each._ray_handle) or () for each in pair]
            assert "interrupted" not in [group.name for groups in found for group in groups]
            eventually(lambda: descriptors() <= before)  # Ray opens and closes some of its own
    with pytest.raises(ValueError, match="there is a group of the name"):
        make()
    destroy_collective_group("interrupted")


def test_a_class_that_wants_no_transport_has_none(actors):
    with pytest.raises(ValueError, match="enable_tensor_transport=False"):
        rcg.remote(enable_tensor_transport=False)(Worker)

    class Taker:
        def doubled(self, tensor):
            return 2 * tensor

    (a,) = actors(1)
    taker = rcg.remote(num_cpus=0, enable_tensor_transport=False)(Taker).remote()
    ref = a.make_anywhere.remote(1, 10)
    with pytest.raises(ValueError, match="not supported when enable_tensor_transport=False"):
        taker.doubled.options(tensor_transport="object_store").remote(ref)
    # What other actors keep can be taken all the same.
    assert float(get(taker.doubled.remote(ref)).sum()) == 20.0


def test_a_maker_that_dies_fails_its_takers(actors):
    a, b, c = actors(3)
    create_collective_group([a, b, c], backend="gloo")
    ref = a.make.remote(1)
    assert get(b.total.remote(ref)) == BIG
    os.kill(get(a.pid.remote()), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ActorDiedError, match="has ended"):
            get(b.total.remote(ref))
    # All other pairs of the group go on, and can be grouped anew.
    assert get(c.total.remote(b.make.remote(2))) == 2.0 * BIG
    assert get(b.total.remote(c.make.remote(2))) == 2.0 * BIG
    create_collective_group([b, c], backend="gloo")
    assert get(c.total.remote(b.make.remote(3))) == 3.0 * BIG


def test_passing_a_ref_to_its_maker_and_another_warns_once(pair):
    a, b = pair
    ref = a.make.remote(1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        refs = [b.total.remote(ref), a.total.remote(ref), b.total.remote(ref)]
    get(refs)
    (warning,) = [each for each in found if "is being passed back" in str(each.message)]
    assert warning.filename == __file__
    assert str(warning.message).startswith("RDT ObjectRef(")
    assert "GPU ObjectRef(" in str(warning.message)


# --- lifetime


@pytest.mark.parametrize("is_killed", [False, True])
def test_tensors_are_freed_when_nobody_can_ask_for_them(pair, is_killed):
    a, b = pair
    refs = [a.make.remote(n, 1000) for n in range(20)]
    get([b.total.remote(ref) for ref in refs])
    assert held_by(a) == 20
    get(b.hold.remote(refs[:3]))
    del refs
    eventually(lambda: held_by(a) == 3)
    if is_killed:
        rcg.kill(b)
    else:
        get(b.drop.remote())
    eventually(lambda: held_by(a) == 0)
    assert get(a.facts.remote())[2] == 20


# --- mutability


def test_a_tensor_whose_memory_its_maker_has_freed_is_named_to_each_taker(pair):
    a, b = pair

    def last(_, value):
        return float(value["weights"][1][-1])

    def ways(ref, own):
        yield lambda: get(b.__ray_call__.remote(last, ref))
        yield lambda: get(a.__ray_call__.remote(last, own))
        yield lambda: last(None, get(ref, _tensor_transport="object_store"))

    for size in (BIG, 100):  # through the group, and in the message
        refs = a.keep_all.remote(size), a.kept_as_it_is.remote()
        whole = a.kept_as_it_is.remote(1)
        assert [each() for each in ways(*refs)] == [1, 1, 1]
        for left in (0, size - 1):
            get(a.resize.remote(left))
            needed = (
                rf"float32 \[{size}\] needs {4 * size} bytes of its storage, which has {4 * left}"
            )
            for each in ways(*refs):
                with pytest.raises(Transfer, match=rf"value\['weights'\]\[1\] .*{needed}"):
                    each()
            with pytest.raises(Transfer, match=f"Worker.kept_as_it_is: value .*{needed}"):
                get(b.total.remote(whole))
            with pytest.raises(UnpicklableError, match=f"value cannot be sent .*{needed}"):
                get(a.kept_as_it_is.remote(1), _tensor_transport="object_store")
        get(a.resize.remote(size + 5))  # again there, with other numbers
        for each in ways(*refs):
            with pytest.raises(Transfer, match=r"the storage of a tensor was resized since"):
                each()
        again = a.kept_as_it_is.remote(), a.kept_as_it_is.remote()
        assert [each() for each in ways(*again)] == [2, 2, 2]


WHEN = ("before a group", "after a group", "in a message", "while it is read")


def same_node() -> dict[str, Any]:
    """Options for actors of which one reads the other's memory."""
    if not is_spread():
        return {}
    home = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(home, soft=False)}


def read_nothing_once(_):
    from rcg.rdt.pull import Connections

    original = Connections._reads

    def reads(*_):
        Connections._reads = original
        return ""

    Connections._reads = reads


def before_it_reads_once(_, call):
    from rcg.rdt import connection

    original = connection.read

    def read(*args):
        connection.read = original
        call()
        original(*args)

    connection.read = read


@pytest.mark.parametrize("when", core_where(lambda when: when in WHEN[1::2], WHEN))
def test_a_tensor_that_is_freed_while_it_is_sent_is_refused(actors, when):
    def regrow(actor):
        """Free the tensor and take memory again, which may lie where it lay."""
        actor.resize(0)
        actor.resize(BIG)

    def free_while_sending(actor):
        from rcg.rdt import groups, service

        originals = groups.Pair.send, service.send_buffers

        def through_group(pair, payloads, check):
            groups.Pair.send, service.send_buffers = originals
            if when == "before a group":
                actor.resize(0)
            pair.send(payloads, check)
            regrow(actor)

        def in_message(connection, message, buffers, check):
            groups.Pair.send, service.send_buffers = originals
            regrow(actor)
            copies = [memoryview(bytes(each.nbytes)) for each in buffers]
            service.send_buffers(connection, message, copies, check)

        groups.Pair.send, service.send_buffers = through_group, in_message

    pair = a, b = actors(2, **({} if "group" in when else same_node()))
    create_collective_group(pair, backend="gloo")
    a.keep_all.remote()
    ref = a.kept_as_it_is.remote(1)
    options = {} if "group" in when else {"_tensor_transport": "object_store"}
    if when == "while it is read":
        change = lambda: rcg.get(a.__ray_call__.remote(regrow))  # noqa: E731 - sent by value
        get(b.__ray_call__.remote(before_it_reads_once, change))
    else:
        get(b.__ray_call__.remote(read_nothing_once))
        get(a.__ray_call__.remote(free_while_sending))
    lost = "value has lost its memory" if when == "before a group" else "was resized since"
    with pytest.raises(Transfer, match=f"kept_as_it_is: .*{lost}"):
        get(b.get_of.remote([ref], **options))
    if "group" in when:  # the keeper may have looked while they were sent, and ended the group
        destroy_all_collective_groups()
        create_collective_group(pair, backend="gloo")
    get(a.resize.remote(BIG))
    assert get(b.get_of.remote([a.kept_as_it_is.remote(1)], **options)) == [2.0 * BIG]


def test_a_maker_that_is_killed_while_its_tensor_is_read(actors):
    a, b = actors(2, **same_node())
    pid = get(a.pid.remote())
    ref = a.make_anywhere.remote(1)
    get(b.__ray_call__.remote(before_it_reads_once, lambda: os.kill(pid, signal.SIGKILL)))
    with pytest.raises(ActorDiedError, match="which held the tensors, has ended"):
        get(b.get_of.remote([ref]))


def test_wait_tensor_freed_lets_receivers_finish(pair):
    a, b = pair
    ref = a.keep.remote(1)
    changed = a.freed_and_plus.remote(1)
    total = b.total.remote(ref)
    del ref
    assert get(total) == 1.0 * BIG
    assert get(changed) == 2.0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_wait_tensor_freed_says_what_it_waits_for(pair):
    a, _ = pair
    ref = a.keep.remote(1)
    with pytest.raises(TimeoutError, match=r"not freed from RDT object store after 0\.3 s"):
        get(a.freed_and_plus.remote(1, timeout=0.3))
    get(a.hold.remote([ref]))
    assert "this process itself holds a reference" in get(a.warnings_of_waiting.remote())
    get(a.drop.remote())
    assert "the call that waits has itself taken" in get(a.warnings_of_waiting.remote(ref))
    assert get(a.warnings_of_waiting.remote()) == ""
    with pytest.raises(TypeError, match="takes a torch tensor"):
        wait_tensor_freed("no tensor")
    for each in (torch.eye(3).to_sparse(), torch.nested.nested_tensor([torch.ones(2)])):
        with pytest.raises(TypeError, match="Wait for the tensors that it consists of"):
            wait_tensor_freed(each)


ASKS_AND_DIES = """
import time
from rcg.rdt.process import here

worker = ray.get_actor(sys.argv[1], namespace="rdt")
refs = [worker.make_anywhere.remote(n) for n in range(3)]
ray.wait(refs, num_returns=3)
assert ray.get(refs[2]).sum() == 2.0 * {size}
ray.get(worker.hold.remote(refs))
while not all(kept.is_known for kept in here().keeper.entries()):
    time.sleep(0.01)
say("has them")
signal.pause()
"""


@pytest.mark.full
def test_what_a_driver_has_asked_for_goes_with_it(actors, driver):
    (a,) = actors(1, Actor, name="asked-by-another", namespace="rdt")
    program = driver(ASKS_AND_DIES.format(size=BIG), "asked-by-another")
    assert program.line() == "has them"
    assert held_by(a) == 3
    os.kill(program.pid, signal.SIGKILL)
    eventually(lambda: held_by(a) == 0)
    assert get(a.facts.remote())[4] == 0  # it had said that it keeps them
    with pytest.raises(Transfer, match=f"freed when process {program.pid}, .* ended"):
        get(a.__ray_call__.remote(lambda actor: actor.get_of(actor.refs)))


ASKS_AFTER_LEAVING = """
import ray as rays
from rcg import cluster

ref = rays.put(1)
rays.shutdown()
for ask in (lambda: cluster.ready_of([ref]), lambda: cluster.value_of(ref.binary())):
    try:
        ask()
    except Exception as error:
        say(type(error).__name__, rays.is_initialized())
"""


def test_a_thread_that_asks_ray_when_the_user_has_left_starts_no_session(driver):
    program = driver(ASKS_AFTER_LEAVING)
    assert [program.line(), program.line()] == ["RaySystemError False"] * 2


@rcg.remote
class Mortal(Worker):
    """Dies in its first call, once the caller has said that it keeps the value."""

    def __init__(self, mark):
        super().__init__()
        self.mark = Path(mark)

    @rcg.method(tensor_transport="object_store")
    def die_or_make(self, n):
        if not self.mark.exists():
            until(self.is_told)
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((BIG,), float(n))

    def is_told(self):
        """Whether anybody has said what is to be kept in this process."""
        return bool(here().store._kept_by)


@pytest.mark.full
def test_an_actor_that_runs_again_learns_what_is_kept(tmp_path):
    actor = Mortal.options(max_restarts=1, max_task_retries=1).remote(str(tmp_path / "mark"))
    ref = actor.die_or_make.remote(2)
    assert get(ref).sum() == 2.0 * BIG
    eventually(lambda: get(actor.is_told.remote()))
    assert held_by(actor) == 1
    del ref
    eventually(lambda: held_by(actor) == 0)
    assert get(actor.facts.remote())[4] == 0  # it was not the time that freed it
    rcg.kill(actor)


def test_the_report_says_who_holds_what_and_who_waits(pair, mark):
    a, b = pair
    ready = a.make.remote(1)
    get(b.total.remote(ready))
    busy = [each.wait_for.remote(mark) for each in pair]
    made_later = a.make.remote(2)
    waiting = b.total.remote(ready)
    put = rcg.put(torch.zeros(10), _tensor_transport="object_store")
    plain, failed = b.plain.remote(1), b.fail.remote()
    report = rcg.report().tensors
    found = {each.ref: each for each in report.refs}
    first = found[ready.hex()]
    assert (first.state, first.bytes, first.transport, first.pulls) == ("held", 4 * BIG, "gloo", 1)
    assert first.owner == repr(a) and first.waiters == ("Worker.total",)
    assert found[made_later.hex()].state == "being made"
    assert found[put.hex()].owner == f"process {os.getpid()}"
    owners = {each.label: each for each in report.owners}
    assert owners[repr(a)].objects == 1 and owners[repr(a)].answers
    text = str(rcg.report())
    assert " references to 1.2 MB, held by " in text
    assert "Worker.total" in text and "being made" in text
    mark.touch()
    get([*busy, waiting])
    rcg.wait([plain, failed], num_returns=2, timeout=GUARD_S)
    states = {each.ref: each.state for each in rcg.report().tensors.refs}
    assert (states[plain.hex()], states[failed.hex()]) == ("no tensors", "failed")
    bundle = report._repr_mimebundle_()
    assert "being made" in bundle["text/html"] and "<script" not in bundle["text/html"]


def test_the_id_of_an_actor_opens_nothing_and_the_report_counts_who_tried(pair):
    """``/proc/net/unix`` shows it to every process, as a part of the actor's address."""
    a, b = pair
    ref = a.make.remote(1)
    rcg.wait([ref], timeout=GUARD_S)
    before = {each.label: each.refused for each in rcg.report().tensors.owners}[repr(a)]
    holder = holder_of(rcg.unwrap(a))
    assert holder.actor in holder.address and holder.actor not in holder.secret
    for secret in (holder.actor, holder.key, holder_of(rcg.unwrap(b)).secret):
        opening = UseTensors(graph=holder.key, secret=secret, key="", pid=1)
        with pytest.raises(ConnectionAbortedError):
            join(holder.address, opening, GUARD_S, check_user)
    after = {each.label: each.refused for each in rcg.report().tensors.owners}[repr(a)]
    assert after != before and "wrong secret" in after
    assert f"refused connections: {after}" in str(rcg.report())
    assert get(b.total.remote(ref)) == BIG


def test_the_report_names_an_owner_that_does_not_answer_and_says_which_is_dead_and_why(pair):
    a, b = pair
    ref = a.make.remote(1)
    pid = get(a.pid.remote())
    rcg.wait([ref], timeout=GUARD_S)
    suspend(pid)
    try:
        assert state_of(ref) == "unknown"
        assert "does not answer" in str(rcg.report())
    finally:
        os.kill(pid, signal.SIGCONT)
    assert get(b.total.remote(ref)) == BIG
    get(a.lose.remote(0))
    assert state_of(ref) == "lost"
    kept = a.make.remote(2)
    rcg.wait([kept], timeout=GUARD_S)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: state_of(kept) == "dead")
    report = rcg.report().tensors
    (owner,) = [each for each in report.owners if each.label == repr(a)]
    assert "its worker process has died" in owner.death
    assert f"is dead: {owner.death}" in str(report)
    assert "is dead" in report._repr_mimebundle_()["text/html"]
    rcg.kill(b)
    until(lambda: is_dead(b))
    of_b = b.make.remote(1)
    rcg.wait([of_b], timeout=GUARD_S)
    assert state_of(of_b) == "failed"
    text = str(rcg.report())
    assert "is dead: it was killed by `ray.kill`" in text and "does not answer" not in text


@pytest.mark.full
def test_a_profile_has_what_was_got_and_how_long_it_took(pair):
    a, b = pair
    early = a.make.remote(1)
    get(b.total.remote(early))
    with rcg.profile() as profile:
        refs = [a.make.remote(n) for n in range(3)]
        get(b.total.remote(*refs))
        get(refs[0], _tensor_transport="object_store")
        get(a.lose.remote(-1))
        with pytest.raises(Exception, match="not there any more"):
            get(b.total.remote(refs[2]))
    got = profile.trace.transfers
    way = got[3].transport
    assert [each.transport for each in got] == ["gloo"] * 3 + [way, "gloo"]
    assert way == "shm" or (way == "tcp" and is_spread())
    assert {each.source for each in got} == {repr(a)}
    assert [each.target for each in got].count(repr(b)) == 4
    assert [each.bytes for each in got] == [4 * BIG] * 5
    assert all(profile.trace.start_ns <= each.start_ns < each.end_ns for each in got)
    assert all(0 <= each.waited_ns <= each.end_ns - each.start_ns for each in got)
    assert ["not there any more" in each.error for each in got] == [False] * 4 + [True]
    assert "Tensors by reference: 5 transfers" in str(profile)
    with rcg.profile() as later:
        pass
    assert later.trace.transfers == ()


def test_a_tensor_that_is_written_to_while_a_reference_needs_it_is_warned_about(pair):
    a, b = pair
    ref = a.keep.remote(1)
    get(b.total.remote(ref))
    with_line = get(a.warnings_of.remote(5))
    assert len(with_line) == 1
    text, line = with_line[0]
    assert "The value of Worker.keep has a tensor of shape [300000]" in text
    assert "by Worker.kept_plus" in text and "wait_tensor_freed" in text
    assert line == Worker.kept_plus.__code__.co_firstlineno
    assert get(b.total.remote(ref)) == 6 * BIG
    del ref
    eventually(lambda: held_by(a) == 0)
    assert get(a.warnings_of.remote(5)) == []  # nobody needs it


def receive_at_gate_once(_, gate):
    from rcg.rdt import groups

    original = groups.Pair.recv

    def recv(*args):
        groups.Pair.recv = original
        gate.pass_through()
        return original(*args)

    groups.Pair.recv = recv


@pytest.mark.full
def test_an_async_call_that_is_cancelled_while_it_pulls_harms_nobody(actors, gate):
    a, b = actors(2, AsyncWorker)
    create_collective_group([a, b], backend="gloo")
    ref = a.make.remote(1)
    get(b.__ray_call__.remote(receive_at_gate_once, gate))
    taken = b.total.remote(ref)
    gate.wait_for()
    rcg.cancel(taken)
    gate.open()
    with contextlib.suppress(rcg.exceptions.TaskCancelledError, rcg.exceptions.RayTaskError):
        get(taken)
    assert get(b.total.remote(ref)) == BIG


def test_waiting_for_references_of_all_kinds(pair):
    a, _ = pair
    with rcg.dag.InputNode() as x:
        cdag = rcg.compile(a.plain_make.bind(x))
    refs = [cdag.execute(1), a.put.remote(1, "object_store"), rcg.put(torch.zeros(3))]
    refs.append(rcg.put(torch.zeros(3), _tensor_transport="object_store"))
    ready, others = rcg.wait(refs, num_returns=4, timeout=GUARD_S)
    assert (ready, others) == (refs, [])
    assert float(rcg.get(refs[:1] + refs[3:])[1].sum()) == 0
    with pytest.raises(TypeError, match="cannot cancel"):
        rcg.cancel(refs[0])
    cdag.teardown()


@pytest.mark.parametrize(
    ("make", "target", "text"),
    [
        (lambda: torch.arange(12.0).view(3, 4).t(), torch.zeros(4, 3), ""),
        (lambda: torch.ones(4, 3).t(), torch.zeros(3, 4, requires_grad=True), ""),
        (lambda: torch.ones(3, 4), torch.zeros(3, 4, requires_grad=True), ""),
        (lambda: torch.empty(0, 3), torch.empty(0, 3), ""),
        (lambda: torch.ones(1, 4), torch.zeros(1, 4), ""),
        (lambda: torch.arange(8.0)[::2], torch.zeros(4), ""),
        (lambda: (torch.ones(4, dtype=torch.complex64) * 1j).conj(), torch.zeros(4) * 1j, ""),
        (lambda: torch.ones(1, 4), torch.zeros(1, 4, dtype=torch.int32), "of int32"),
        (lambda: torch.ones(1, 4), torch.zeros(4), "shape"),
        (lambda: torch.ones(4), torch.zeros(8)[::2], "contiguous"),
        (lambda: torch.ones(4), [torch.zeros(4), torch.zeros(4)], "1 tensor"),
        (lambda: {"a": torch.ones(4)}, torch.zeros(2, 2, dtype=torch.int32), "of int32"),
        (lambda: {"a": torch.ones(2, 3).t()}, torch.zeros(3, 2), "lies otherwise"),
        (lambda: torch.eye(3).to_sparse(), [torch.zeros(6).long(), torch.zeros(3)], "no dense"),
    ],
)
def test_what_is_received_into_a_tensor_is_the_value_or_refused(pair, make, target, text):
    ref = pair[0].build.remote(make)
    if text:
        with pytest.raises((TypeError, ValueError), match=text):
            get(ref, out=target)
        each = target if isinstance(target, list) else [target]
        assert not any(bool(tensor.any()) for tensor in each)
        return
    before = target._version
    assert get(ref, out=target) is target
    assert torch.equal(target, make())
    assert target._version > before or not target.numel()  # autograd sees that it was written to


def test_what_would_be_received_into_the_value_itself_is_refused(ray_session):
    x, y = torch.zeros(BIG), torch.ones(BIG)
    ref = rcg.put([x, y], _tensor_transport="object_store")
    for wrong in ([y, x], [torch.zeros(BIG), x], [x, x]):
        with pytest.raises(ValueError, match=r"out\[.\] .*share"):
            get(ref, out=wrong)
    with pytest.raises(TypeError, match="no tensor"):
        get(ref, out=[x, "memory"])
    with pytest.raises(TypeError, match="one by one"):
        get([ref], out=[x, y])
    versions = x._version, y._version
    found = get(ref, out=[x, y])
    assert (x._version, y._version) == versions  # nothing was written
    assert (float(found[0][-1]), float(found[1][-1])) == (0, 1)
    base = torch.arange(12.0)
    for value, wrong in ((base[:6], base[3:9]), (base.view(3, 4).t(), base.view(4, 3))):
        ref = rcg.put(value, _tensor_transport="object_store")
        before = value.clone()
        with pytest.raises(ValueError, match="out shares memory with the value"):
            get(ref, out=wrong)
        assert torch.equal(get(ref), before)


def test_ctrl_c_while_tensors_come_leaves_later_ones_right(pair, monkeypatch):
    from rcg.rdt.connection import Connection

    a, _ = pair
    refs = [a.make_anywhere.remote(n) for n in range(3)]
    assert get(refs[2])[0] == 2
    original = Connection.next

    def interrupted(self):
        monkeypatch.setattr(Connection, "next", original)
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "next", interrupted)
    with pytest.raises(KeyboardInterrupt):
        get(refs[0])  # requested; the answer comes after the interrupt
    assert [float(each[0]) for each in get(refs)] == [0, 1, 2]


def test_an_owner_that_is_stopped_holds_up_no_other(actors):
    a, b = actors(2)
    pid = get(a.pid.remote())
    get(b.pid.remote())
    suspend(pid)
    try:
        late = a.make_anywhere.remote(1)  # a does not hear that the driver keeps it
        refs = [b.make_anywhere.remote(n) for n in range(3)]
        rcg.wait(refs, num_returns=3, timeout=GUARD_S)
        assert held_by(b) == 3
        del refs
        eventually(lambda: held_by(b) == 0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert get(late)[0] == 1
    del late
    eventually(lambda: held_by(a) == 0)


def test_the_timeout_of_get_also_limits_what_does_not_arrive(actors):
    a, b = actors(2)
    refs = [a.make_anywhere.remote(1), b.make_anywhere.remote(2)]
    rcg.wait(refs, num_returns=2, timeout=GUARD_S)
    out = torch.zeros(BIG)
    pid = get(a.pid.remote())
    suspend(pid)
    try:
        for _ in range(3):
            with pytest.raises(ray.exceptions.GetTimeoutError, match="did not arrive within"):
                rcg.get(refs[0], timeout=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert get(refs[0])[0] == 1
    assert get(a.facts.remote())[3] == 1  # it went on arriving, and was not asked for again
    suspend(pid)
    try:
        with pytest.raises(ray.exceptions.GetTimeoutError, match="Actor"):
            rcg.get(refs, timeout=0)
        with pytest.raises(ray.exceptions.GetTimeoutError):
            rcg.get(refs[0], timeout=0.1, out=out)
        listed = [torch.zeros(BIG)]
        with pytest.raises(ray.exceptions.GetTimeoutError, match="are written to `out`"):
            rcg.get(refs[0], timeout=0.1, out=listed)
        assert get(refs[1])[0] == 2
    finally:
        os.kill(pid, signal.SIGCONT)
    listed[0] = torch.zeros(BIG)  # another tensor in the same list
    assert get(refs[0], out=listed)[0] is not None and listed[0][0] == 1
    assert get(refs[0], out=out) is out and out[0] == 1
    assert [float(each[0]) for each in get(refs)] == [1, 2]
    get(a.lose.remote(0))
    with pytest.raises(Transfer, match="not there any more"):
        get(refs[0])


@pytest.mark.full
def test_holders_that_are_stopped_hold_up_no_other_in_an_event_loop(actors):
    a, b = actors(2)
    (taker,) = actors(1, AsyncWorker)
    stuck = [a.make_anywhere.remote(n) for n in range(12)]
    rcg.wait(stuck, num_returns=12, timeout=GUARD_S)
    pid = get(a.pid.remote())
    suspend(pid)
    try:
        waiting = [taker.total.remote(each) for each in stuck]
        assert get(taker.total.remote(b.make_anywhere.remote(1))) == BIG
        assert rcg.wait(waiting, timeout=0)[0] == []
    finally:
        os.kill(pid, signal.SIGCONT)
    assert get(waiting) == [n * BIG for n in range(12)]


def test_a_call_that_fails_holds_no_reference(actors):
    a, b, c = actors(3)
    create_collective_group([a, b, c], backend="gloo")
    get(b.collect_no_cycles.remote())
    kept, lost = a.make.remote(1), c.make.remote(2)
    rcg.wait([kept, lost], num_returns=2, timeout=GUARD_S)
    pid = get(c.pid.remote())
    os.kill(pid, signal.SIGKILL)
    for refs in ([kept, lost], [lost, kept]):
        with pytest.raises(Exception, match="has ended"):
            get(b.get_of.remote(refs, _tensor_transport="object_store"))
    with pytest.raises(Exception, match=r"has ended|was closed"):
        get(b.total.remote(kept, lost))
    del kept, lost, refs
    eventually(lambda: held_by(a) == 0)


def test_the_error_of_a_lost_connection_says_that_the_process_goes_on(pair):
    a, _ = pair
    ref = a.make_anywhere.remote(1)
    rcg.wait([ref], timeout=GUARD_S)
    get(a.break_service.remote())
    with pytest.raises(Transfer, match=r"to Actor\(Worker, .* was closed, though .* goes on"):
        get(ref, _tensor_transport="object_store")
    assert get(ref, _tensor_transport="object_store").sum() == BIG


@rcg.remote(num_cpus=0)
class Constructed:
    """Takes tensors in its constructor, and in methods of all kinds."""

    def __init__(self, *values, other=None):
        self.sums = [float(each.sum()) for each in (*values, other) if each is not None]

    @rcg.method(tensor_transport="gloo")
    def make(self):
        return torch.full((BIG,), 7.0)

    def resources(self):
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def total(self, value):
        return float(value.sum())

    def found(self):
        return self.sums

    def held(self):
        return here().store.facts().held, here().holder.label


def test_an_actor_whose_constructor_takes_references_is_one_like_others(pair):
    a, b = pair
    c = Constructed.remote(a.make.remote(1), other=a.make_anywhere.remote(2))
    assert get(c.found.remote()) == [1.0 * BIG, 2.0 * BIG]
    create_collective_group([b, c], backend="gloo")
    ref = c.make.remote()
    assert get(b.total.remote(ref)) == 7.0 * BIG
    held, label = get(c.held.remote())
    assert held == 1 and label.startswith("Actor(Constructed, ")
    del ref
    eventually(lambda: get(c.held.remote())[0] == 0)
    eventually(lambda: held_by(a) == 0)


@pytest.mark.full
def test_a_constructor_whose_argument_cannot_be_made_says_why(pair):
    c = Constructed.remote(pair[0].fail.remote())
    with pytest.raises(rcg.exceptions.RayActorError, match="no tensor today"):
        get(c.found.remote())


def test_a_function_that_is_sent_to_an_actor_gets_values(pair):
    a, b = pair

    def totals(actor, first, *, second):
        return type(actor).__name__, float(first.sum()), float(second.sum())

    sent = b.__ray_call__.remote(totals, a.make.remote(1), second=a.make.remote(2))
    assert get(sent) == ("Worker", BIG, 2.0 * BIG)


def test_a_dag_that_is_not_compiled_takes_references(pair):
    a, b = pair
    with InputNode() as inp:
        alone = b.total.bind(inp, again=inp)
        within = b.same.bind([inp, {"n": 1}])
        made = b.total.bind(a.plain_make.options(tensor_transport="gloo").bind(inp))
    ref = a.make.remote(2)
    assert get(alone.execute(ref)) == 4.0 * BIG
    assert get(within.execute(ref))[0].sum() == 2.0 * BIG
    assert get(made.execute(3)) == 30.0
    del ref
    eventually(lambda: held_by(a) == 0)


def test_generators_and_static_methods_cannot_keep_tensors(actors):
    class Static:
        @staticmethod
        @rcg.method(tensor_transport="gloo")
        def make():
            return torch.ones(3)

    with pytest.raises(ValueError, match=r"Static.make .* a staticmethod has no actor"):
        rcg.remote(Static)
    with pytest.raises(ValueError, match=r"Stream.items has a tensor_transport, but it is a gener"):

        @rcg.remote
        class Stream:
            @rcg.method(tensor_transport="gloo")
            def items(self):
                yield torch.ones(3)

    (a,) = actors(1)
    with pytest.raises(ValueError, match="is a generator"):
        a.stream.options(tensor_transport="object_store").remote()
    assert [float(get(each)[0]) for each in a.stream.remote()] == [0, 1]


class Deafening:
    """Keeps the actor that unpickles it from listening."""

    def __reduce__(self):
        return _deafen, ()


def _deafen():
    from rcg.rdt import process

    def serve(*_):
        raise OSError(24, "no descriptor is left")

    process.Service = serve


@pytest.mark.full
def test_an_actor_that_cannot_listen_copies(actors):
    class Deaf(Worker):
        def __init__(self, _):
            super().__init__()

    deaf = rcg.remote(num_cpus=0)(Deaf).remote(Deafening())
    (b,) = actors(1)
    ref = deaf.make_anywhere.remote(2)
    assert get(b.total.remote(ref)) == 2 * BIG and get(ref)[0] == 2
    assert type(ref.envelope()) is torch.Tensor  # no envelope


class Impoverishing:
    """Keeps the actor that unpickles it from starting threads."""

    def __reduce__(self):
        return _impoverish, ()


def _impoverish():
    poor = no_threads()
    poor.__enter__()
    return poor


@pytest.mark.full
def test_an_actor_that_could_start_no_thread_listens_once_it_can(actors):
    class Poor(Worker):
        def __init__(self, poor):
            super().__init__()
            self.poor, self.names = poor, []

    poor = rcg.remote(num_cpus=0)(Poor).remote(Impoverishing())
    (b,) = actors(1)
    with pytest.raises(OutOfThreads, match="no more threads can be started"):
        create_collective_group([poor, b], backend="gloo")
    assert get(b.total.remote(poor.make_anywhere.remote(2))) == 2 * BIG  # it is copied
    get(poor.have_threads.remote())
    create_collective_group([poor, b], backend="gloo")
    assert get(b.total.remote(poor.make.remote(3))) == 3 * BIG


def use_threads(a, b, mark):
    """Have the driver and the actors start every kind of thread.

    Args:
        a: An actor.
        b: Another.
        mark: The path of a file that is not there.
    """
    group = create_collective_group([a, b], backend="gloo")
    try:
        ref = a.make.remote(1)
        assert get(b.total.remote(ref)) == BIG
        assert get([ref, b.make.remote(2)], _tensor_transport="object_store")[1][0] == 2
        assert asyncio.run(of_awaited(a.make_anywhere.remote(3))) == 3
        with InputNode() as inp:
            dag = b.total.bind(a.plain_make_after.bind(inp))
        with dag.experimental_compile() as graph:
            assert asyncio.run(of_graph(graph, mark)) == 40
    finally:
        mark.unlink(missing_ok=True)
        destroy_collective_group(group)


async def of_awaited(ref):
    return float((await ref)[0])


async def of_graph(graph, mark):
    """Await a result that is made once somebody awaits it."""
    result = asyncio.ensure_future(await graph.execute_async(str(mark)))
    await asyncio.sleep(0)
    mark.touch()
    return await result


THREADS = {
    "driver": ["pull", "rcg-await", "control", "teardown", "leave"],
    "actor": ["tensors", "gloo", "closing", "group-end", "watch", "rcg-a0"],
}


@pytest.mark.parametrize("times", core_has(1, [1, 1000]), ids=["once", "for a while"])
@pytest.mark.parametrize("where", THREADS)
def test_a_thread_that_cannot_start_leaves_nothing_behind(actors, tmp_path, where, times):
    a, b = actors(2)
    mark = tmp_path / "mark"
    for kind in THREADS[where]:
        with contextlib.ExitStack() as poor:
            if where == "driver":
                names = poor.enter_context(no_threads(0, times, kind))
            else:
                get(a.lack_threads.remote(0, times, kind))
            try:
                use_threads(a, b, mark)
            except Exception as error:  # noqa: BLE001 - of whatever class, its text counts
                text = str(error)
                assert "no more threads can be started" in text and "ulimit -u" in text, text
                assert "has ended" not in text and "not made by" not in text
        if where == "actor":
            names = get(a.have_threads.remote())
        assert names and (times > 1 or len(names) == 1), kind
        destroy_all_collective_groups()
    use_threads(a, b, mark)


def test_a_call_whose_value_nobody_could_look_after_is_not_made(actors):
    (a,) = actors(1)
    rcg.wait([a.make_anywhere.remote(1)], timeout=GUARD_S)
    keeper = here().keeper
    running = keeper._threads.copy()
    keeper._threads.clear()
    try:
        with no_threads() as names, pytest.raises(OutOfThreads, match="to look after tensors"):
            a.keep.options(tensor_transport="object_store").remote(1)
    finally:
        keeper._threads.update(running)
    assert names == ["rcg-keeper"]
    assert get(a.noted.remote()) is None


def test_a_call_holds_what_it_takes_also_without_a_result(pair, mark, tmp_path):
    @rcg.remote(num_cpus=0)
    def save(value):
        (tmp_path / "sum").write_text(str(float(value.sum())))

    a, b = pair
    busy = a.wait_for.remote(mark)
    refs = [a.make_anywhere.remote(n) for n in (2, 3, 4)]
    b.note.options(num_returns=0).remote(refs[0])
    assert save.options(num_returns=0).remote(refs[1]) is None
    total = b.total.remote(refs[2])
    del refs
    time.sleep(A_LOOK_S)
    mark.touch()
    assert get([busy, total])[1] == 4.0 * BIG
    assert get(b.noted.remote()) == 2.0 * BIG
    eventually(lambda: held_by(a) == 0)
    assert (tmp_path / "sum").read_text() == str(3.0 * BIG)


@pytest.mark.full
def test_groups_that_come_and_go_leave_nothing(actors):
    a, b = actors(2, Constructed)

    def come_and_go(times):
        for _ in range(times):
            group = create_collective_group([a, b], backend="gloo")
            assert get(b.total.remote(a.make.remote())) == 7.0 * BIG
            assert get(a.total.remote(b.make.remote())) == 7.0 * BIG
            destroy_collective_group(group)

    def resources():
        return [number for each in (a, b) for number in get(each.resources.remote())]

    come_and_go(2)
    before = resources()
    come_and_go(10)

    def is_as_before():
        return all(now <= then + 4 for now, then in zip(resources(), before, strict=True))

    eventually(is_as_before)


@pytest.mark.full
def test_a_member_that_is_stopped_keeps_no_other_in_the_group(actors, monkeypatch):

    monkeypatch.setattr(collective_groups, "_LEAVE_TIMEOUT_S", 0.5)
    a, b, c = actors(3)
    group = create_collective_group([a, b, c], backend="gloo")
    pid = get(a.pid.remote())
    suspend(pid)
    try:
        with pytest.raises(Transfer, match="does not answer"):
            destroy_collective_group(group)
        again = create_collective_group([b, c], backend="gloo")
        assert get(c.total.remote(b.make.remote(1))) == BIG
        destroy_collective_group(again)
    finally:
        os.kill(pid, signal.SIGCONT)
    destroy_collective_group(group)
    with pytest.raises(ValueError, match="No group with name"):
        destroy_collective_group(group)


def test_a_group_may_have_the_name_of_an_earlier_one(actors):
    pair = a, b = actors(2)
    for n in range(3):
        create_collective_group(pair, backend="gloo", name="again")
        assert get(b.total.remote(a.make.remote(n))) == n * BIG
        assert get(a.total.remote(b.make.remote(n))) == n * BIG
        destroy_collective_group("again")
    # And of one whose actors have gone.
    gone = actors(1, Actor, max_restarts=0)
    create_collective_group(gone, backend="gloo", name="again")
    with pytest.raises(ValueError, match="there is a group of the name 'again' already"):
        create_collective_group(pair, backend="gloo", name="again")
    rcg.kill(gone[0])
    until(lambda: is_dead(gone[0]))  # Ray kills it later
    create_collective_group(pair, backend="gloo", name="again")


def is_dead(actor):
    try:
        get(actor.pid.remote())
    except ray.exceptions.RayActorError:
        return True
    return False


def test_what_is_awaited_waits_for_no_other(pair, mark):
    a, b = pair
    busy = b.wait_for.remote(mark)
    slow = [b.make_anywhere.remote(n) for n in range(100)]

    def threads():
        return sum(each.name == "rcg-await" for each in threading.enumerate())

    async def one(ref):
        return float((await ref).sum())

    async def main():
        tasks = [asyncio.create_task(one(ref)) for ref in slow]
        await asyncio.sleep(0)
        assert await one(a.make_anywhere.remote(1)) == BIG
        assert threads() < 40
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(main())  # it does not wait for the busy actor
    assert all(isinstance(each, asyncio.CancelledError) for each in found)
    assert rcg.wait([busy], timeout=0)[0] == []
    eventually(lambda: threads() == 0)  # and holds nothing that nobody awaits any more
    with pytest.raises(LookupError):
        asyncio.run(one(a.fail.remote()))
