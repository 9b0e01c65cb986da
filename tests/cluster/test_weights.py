# SPDX-License-Identifier: Apache-2.0
"""Weights by name between real actors: versions, late readers, other shards, deaths."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import rcg
from rcg.errors import ActorDiedError, Transfer
from rcg.progress import Progress
from rcg.rdt.process import here
from rcg.rdt.store import Entry
from rcg.weights import Slice, client
from rcg.weights.readers import Readers
from rcg.weights.route import Route
from tests.cluster.nodes import is_spread, on_node
from tests.cluster.stage import GUARD_S
from tests.cluster.trainers import BIG, SHAPES, Member, value_of
from tests.harness.circles import core_has
from tests.harness.peers import suspend, until
from tests.unit.test_progress import Terminal

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")


Trainer = rcg.remote(num_cpus=0)(Member)


def get(refs: Any) -> Any:
    return rcg.get(refs, timeout=GUARD_S)


@pytest.fixture(scope="module")
def company(ray_session: None) -> Iterator[list[Any]]:
    made = [Trainer.remote() for _ in range(4)]
    yield made
    for each in made:
        rcg.kill(each)


@pytest.fixture
def members(company: list[Any]) -> Iterator[list[Any]]:
    yield company
    get([each.leave.remote() for each in company])


def test_readers_get_every_version_whole_wherever_they_are(members) -> None:
    trainer, one, other, _ = members
    get(trainer.publish.remote("policy", SHAPES))
    get([each.subscribe.remote("policy", SHAPES) for each in (one, other)])
    for version in (1, 2, 5):
        pushed = get(trainer.push.remote(version))
        assert pushed == (version, (50 * 8 + BIG + 1) * 8)
        for found, size, seconds in get([each.update.remote() for each in (one, other)]):
            assert (found, size) == (version, pushed.bytes)
            assert set(seconds) == {"plan", "register", "wait", "move", "apply"}
            # The plan and the memory are made once.
            assert version == 1 or seconds["plan"] == seconds["register"] == 0.0
        get(trainer.wait.remote())
        assert get([each.differs.remote(version) for each in (one, other)]) == [[], []]
    plan = rcg.weights.plan("policy")
    assert plan.bytes.tolist() == [[pushed.bytes] * 2]


def test_a_late_reader_gets_the_newest_version_from_readers_that_have_it(members) -> None:
    trainer, early, late, later = members
    get(trainer.publish.remote("late", SHAPES))
    get(early.subscribe.remote("late", SHAPES))
    get(trainer.push.remote(0))
    waiting = trainer.wait.remote()
    get(early.update.remote())
    get(waiting)
    get(trainer.write.remote(1))  # from now on only the reader has it
    get(late.subscribe.remote("late", SHAPES, {"big": Slice(0, 5, BIG - 5, BIG)}))
    assert get(late.update.remote())[0] == 0 and get(late.differs.remote(0)) == []
    get(trainer.push.remote(1))
    assert get(late.update.remote())[0] == 1 and get(late.differs.remote(1)) == []
    assert get(early.lag.remote()) == 1
    # Who came after a version was pushed is not waited for.
    get(early.update.remote())
    get(later.subscribe.remote("late", SHAPES))
    get(trainer.wait.remote())
    get(early.leave.remote())
    with pytest.raises(TimeoutError, match="version 1 is withdrawn: its publisher writes the next"):
        get(later.update.remote(0.2))  # the other reader has only a part


def test_an_optimizer_withdraws_what_it_is_about_to_write(ray_session) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    other = torch.optim.SGD(torch.nn.Linear(8, 8).parameters(), lr=0.1)
    into = {key: torch.zeros_like(each) for key, each in model.state_dict().items()}
    model(torch.ones(8)).sum().backward()
    with (
        rcg.weights.publish("stepped", model) as publisher,
        rcg.weights.subscribe("stepped", into) as reader,
    ):
        publisher.push()
        other.step()
        reader.update()
        before = into["weight"].clone()
        assert torch.equal(before, model.weight)
        publisher.push()
        with pytest.warns(UserWarning, match=r"Version 1 .* is withdrawn, because SGD\.step"):
            optimizer.step()
        with pytest.raises(Transfer, match=r"keeps version 0: .* because SGD\.step writes"):
            reader.update(GUARD_S)
        assert torch.equal(into["weight"], before)
        with pytest.raises(Transfer, match=r"version 1 .* was written to before .* had it"):
            publisher.wait(timeout=GUARD_S)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it was warned of
            publisher.push()
            assert reader.update(GUARD_S).version == 2
            publisher.wait()
            optimizer.step()
            publisher.push()


@pytest.mark.parametrize("size", [100, 6_000_000])  # all bytes are compared, or some
def test_a_write_that_torch_does_not_count_is_found(ray_session, size) -> None:
    state, into = {"w": torch.zeros(size), "v": torch.zeros(9)}, torch.zeros(size)
    writes = [
        lambda: state["w"].numpy()[-2048:].fill(1),
        lambda: state["w"].data.add_(1),
        lambda: torch.frombuffer(state["w"].numpy(), dtype=torch.float32)[:2048].fill_(3),
    ]
    with (
        rcg.weights.publish("uncounted", state) as publisher,
        rcg.weights.subscribe("uncounted", {"w": into}) as reader,
    ):
        publisher.push()
        for at, write in enumerate(writes):
            state["v"].numpy().fill(at + 1)  # which this reader does not want
            assert reader.update(GUARD_S).version == 2 * at
            with pytest.warns(
                UserWarning, match=r"was written to while readers could still .* wait\(version\)"
            ) as caught:
                publisher.push()
            assert caught[0].filename == __file__
            kept = into.clone()
            write()
            with pytest.raises(Transfer, match="was written to"):
                reader.update(GUARD_S)
            assert torch.equal(into, kept)
            with pytest.warns(UserWarning, match="was written to while readers could still"):
                publisher.push(2 * at + 2)


def test_one_that_is_closed_meanwhile_leaves_nothing(ray_session, monkeypatch) -> None:
    gc.collect()
    before = here().store.facts().held_bytes
    state, into = {"w": torch.ones(1000)}, {"w": torch.zeros(1000)}
    publisher = rcg.weights.publish("closed", state)
    reader = rcg.weights.subscribe("closed", into)
    publisher.push()
    move = type(reader)._move
    monkeypatch.setattr(type(reader), "_move", lambda it, *args: (move(it, *args), it.close())[0])
    with pytest.raises(ValueError, match="this subscriber of 'closed' is closed"):
        reader.update(GUARD_S)
    stage = type(publisher)._stage
    monkeypatch.setattr(
        type(publisher), "_stage", lambda it, *args: (it._ending.end(), stage(it, *args))[-1]
    )
    with pytest.raises(ValueError, match="this publisher of 'closed' is closed"):
        publisher.push()
    assert here().store.facts().held_bytes == before


def test_a_publisher_that_has_ended_keeps_no_version(ray_session) -> None:
    publisher = rcg.weights.publish("ended", {"w": torch.ones(1000)})
    publisher.push()
    publisher._ending.end()  # as `rcg.shutdown` does
    gc.collect()
    entries = [each for each in gc.get_objects() if type(each) is Entry]
    assert not [each.name for each in entries if "'ended'" in each.name]
    publisher.close()


def test_a_version_is_there_when_every_publisher_has_pushed_it(members) -> None:
    first, second, reader, _ = members
    shapes = {"w": (6, 2)}
    get(first.publish.remote("halves", shapes, {"w": Slice(0, 0, 3, 6)}))
    with pytest.raises(TimeoutError, match="nobody publishes other yet"):
        get(reader.subscribe.remote("halves", shapes | {"other": (2,)}, timeout=0.2))
    get(first.push.remote(1))
    with pytest.raises(TimeoutError, match=r"version 1 .*: nobody has all of w; waited 0\.1 s"):
        get(first.wait.remote(0.1))
    get(reader.subscribe.remote("halves", shapes))
    with pytest.raises(TimeoutError, match="nobody has all of w"):
        get(reader.update.remote(0.2))
    get(second.publish.remote("halves", shapes, {"w": Slice(0, 3, 6, 6)}))
    with pytest.raises(TimeoutError, match=r"version 1 has not been pushed by Actor\(Member"):
        get(reader.update.remote(0.2))
    with pytest.raises(TimeoutError, match=r"version 1 .* was not taken by Actor\(Member"):
        get(first.wait.remote(0.2))
    get(second.push.remote(1))
    assert get(reader.update.remote())[0] == 1 and get(reader.differs.remote(1)) == []


def test_types_and_names_are_chosen_by_the_publisher(ray_session) -> None:
    state = {"w": torch.linspace(0, 1, 7), "n": torch.arange(3), "other": torch.ones(2)}
    into = {"w": torch.zeros(7, dtype=torch.bfloat16), "n": torch.zeros(3, dtype=torch.int64)}
    with (
        rcg.weights.publish("cast", state, dtype=torch.bfloat16, names=["w", "n"]) as publisher,
        rcg.weights.subscribe("cast", into) as subscriber,
    ):
        publisher.push(7)
        assert subscriber.update(GUARD_S).version == subscriber.version == 7
        assert torch.equal(into["w"], state["w"].bfloat16()) and torch.equal(into["n"], state["n"])
        assert subscriber.staged_bytes == 128
        with pytest.raises(ValueError, match="version 7 of the weights 'cast' is not newer"):
            publisher.push(7)
        with pytest.raises(ValueError, match="other: nobody publishes it"):
            rcg.weights.subscribe("cast", {"other": torch.ones(2)})
    with pytest.raises(ValueError, match="closed"):
        subscriber.update()
    with pytest.raises(ValueError, match="closed"):
        publisher.push()


WAYS = ({"atomic": True}, {"atomic": False}, {"atomic": False, "lookahead": 4 << 20})


class _Model(torch.nn.Module):
    """Tensors of different sizes; ``turned`` cannot be written to in place."""

    SIZES = {"large": 1000, "small": 4, "turned": 6}  # noqa: RUF012 - in this order at first

    def __init__(self) -> None:
        super().__init__()
        self.replace(self.SIZES, 0)

    def replace(self, names: Any, value: float) -> None:
        """Set some again: they come last in the state then."""
        for name in names:
            if name in self._parameters:
                delattr(self, name)
            memory = torch.full((self.SIZES[name], 2), float(value))
            made = memory.T.contiguous().T if name == "turned" else memory
            setattr(self, name, torch.nn.Parameter(made, requires_grad=False))

    def values(self) -> dict[str, list[float]]:
        return {name: each.unique().tolist() for name, each in self.state_dict().items()}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("copy", core_has(True, [True, False]))
def test_tensors_that_are_replaced_are_known_by_their_names(ray_session, way, copy) -> None:
    model, into, state = _Model(), _Model(), dict(_Model().state_dict())
    with (
        rcg.weights.publish("named", model, copy=copy) as publisher,
        rcg.weights.subscribe("named", into, **way) as reader,
        rcg.weights.subscribe("named", state, **way) as other,
    ):
        for version, (theirs, ours) in enumerate(
            [([], []), (["large"], []), ([], ["large", "turned"]), (["small", "turned"], ["small"])]
        ):
            model.replace(theirs, 0)
            into.replace(ours, 0)
            moved = next(iter(state))
            state[moved] = state.pop(moved).clone()
            for number, each in enumerate(model.state_dict().values()):
                each.fill_(10 * version + number)
            publisher.push(version)
            assert reader.update(GUARD_S).version == other.update(GUARD_S).version == version
            assert into.values() == model.values(), version
            assert {name: each.unique().tolist() for name, each in state.items()} == model.values()
            publisher.wait(version, GUARD_S)
        model.large = torch.nn.Parameter(torch.zeros(4, 2))
        with pytest.raises(ValueError, match="changed their shape or type: large"):
            publisher.push()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_tied_tensors_of_a_reader_are_the_same_where_they_are_published(ray_session, way) -> None:
    state = {name: torch.zeros(700, 2) for name in "abc"}
    into = {name: torch.zeros(700, 2) for name in "abc"}
    with (
        rcg.weights.publish("tied", state, copy=True) as publisher,
        rcg.weights.subscribe("tied", into, **way) as reader,
    ):
        for version, (ours, theirs) in enumerate(
            [("abc", "abc"), ("aba", "aba"), ("aaa", "aaa"), ("aab", "abb"), ("aab", "aab")]
        ):
            made = {name: torch.zeros(700, 2) for name in "ab"}
            for name, which in zip("abc", theirs, strict=True):
                state[name] = torch.full((700, 2), float(ord(which) + version))
            into |= {
                name: made.get(which, into["c"]) for name, which in zip("abc", ours, strict=True)
            }
            publisher.push(version)
            if (ours, theirs) == ("aab", "abb"):
                with pytest.raises(ValueError, match="b is another tensor, too"):
                    reader.update(GUARD_S)
                continue
            assert reader.update(GUARD_S).version == version
            assert all(torch.equal(into[name], state[name]) for name in "abc")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_parts_of_a_tensor_of_a_reader_are_the_same_where_they_are_published(
    ray_session, way
) -> None:
    """As the weights of an engine that has packed them."""
    whole = torch.arange(4200.0).reshape(2100, 2)
    state = {"q": whole[:700].clone(), "whole": whole, "v": whole[1400:].clone(), "t": whole.t()}
    packed = torch.zeros(2100, 2)
    into = {"q": packed[:700], "whole": packed, "v": packed[1400:], "t": torch.zeros(2, 2100)}
    with (
        rcg.weights.publish("packed", state, copy=True) as publisher,
        rcg.weights.subscribe("packed", into, **way) as reader,
    ):
        publisher.push(1)
        reader.update(GUARD_S)
        assert all(torch.equal(into[name], state[name]) for name in state)
        state["v"].fill_(-1)
        publisher.push(2)
        with pytest.raises(ValueError, match="v is another tensor, too"):
            reader.update(GUARD_S)
        rows = torch.zeros(2800, 2)
        into |= {"q": rows[2000:2700], "whole": rows[:2100]}
        with pytest.raises(ValueError, match="whole and q share some of their memory"):
            reader.update(GUARD_S)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_tensor_that_has_lost_its_memory_is_named_until_it_has_some(ray_session, way) -> None:
    state, into = {"w": torch.ones(64, 64)}, {"a": torch.zeros(3), "w": torch.zeros(64, 64)}
    state["a"] = torch.ones(3)
    with (
        rcg.weights.publish("asleep", state, copy=True) as publisher,
        rcg.weights.subscribe("asleep", into, **way) as reader,
    ):
        for version, size in enumerate((0, 4096, 16383)):
            state["w"].fill_(version)
            publisher.push(version)
            into["w"].untyped_storage().resize_(size)
            with pytest.raises(ValueError, match=f"w: .* which has {size}: it was freed"):
                reader.update(GUARD_S)
            into["w"].untyped_storage().resize_(16384)
            assert reader.update(GUARD_S).version == version
            assert into["w"].unique().tolist() == [version]
        state["w"].untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=r"w: .* which has 0: it was freed"):
            publisher.push()
        if way["atomic"]:  # between reading and applying
            state["w"] = torch.full((64, 64), 7.0)
            publisher.push(7)
            assert reader.update(GUARD_S, apply=False).version == 7
            into["w"].untyped_storage().resize_(16)
            with pytest.raises(ValueError, match=r"w: .* which has 16"):
                reader.apply()
            into["w"] = torch.zeros(64, 64)
            assert reader.apply() == 7 and into["w"].unique().tolist() == [7]


def test_the_reader_chooses_when_its_tensors_change(ray_session) -> None:
    state = {"a": torch.zeros(1000), "b": torch.zeros(1000)}
    into = {name: torch.zeros(1000) for name in state}

    def push(version: int) -> None:
        for each in state.values():
            each.fill_(version)
        publisher.push(version)

    def seen() -> set[float]:
        return {float(each) for tensor in into.values() for each in tensor.unique()}

    async def read_while_it_is_awaited() -> None:
        push(3)
        waiting = asyncio.ensure_future(reader.update_async(GUARD_S))
        with reader.frozen():
            while not reader._waits:  # it is here
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            assert seen() == {2} and reader.version == 2
            with pytest.raises(RuntimeError, match="frozen"):
                await reader.update_async(GUARD_S)
        with reader.frozen():
            assert seen() == {3}
        assert (await waiting).version == reader.version == 3
        push(4)
        assert (await reader.update_async(GUARD_S, apply=False)).version == 4
        assert seen() == {3} and reader.apply() == 4 and seen() == {4}

    with (
        rcg.weights.publish("chosen", state, copy=True) as publisher,
        rcg.weights.subscribe("chosen", into) as reader,
    ):
        push(1)
        assert reader.apply() is None
        assert reader.update(GUARD_S, apply=False).version == 1
        assert reader.version is None and reader.lag == 0 and seen() == {0}
        publisher.wait(1, GUARD_S)
        with reader.frozen(), pytest.raises(RuntimeError, match="leave it before"):
            reader.apply()
        assert reader.update(0).version == reader.version == 1 and seen() == {1}
        with pytest.raises(TimeoutError, match="version 1 is the newest"):
            reader.update(0)
        push(2)
        frozen, may_end = threading.Event(), threading.Event()

        def read() -> None:
            with reader.frozen():
                frozen.set()
                may_end.wait()
                assert seen() == {1}

        thread = threading.Thread(target=read)
        thread.start()
        frozen.wait()
        with pytest.raises(TimeoutError, match=r"version 2 .* is here, but its tensors are read"):
            reader.update(0.5)
        may_end.set()
        assert reader.apply(GUARD_S) == 2 and seen() == {2}
        thread.join()
        asyncio.run(read_while_it_is_awaited())
        with rcg.weights.subscribe("chosen", into, atomic=False) as mixed:
            with pytest.raises(ValueError, match="they are written to as it comes"):
                mixed.update(GUARD_S, apply=False)
            with pytest.raises(ValueError, match="they are written to as it comes"):
                asyncio.run(mixed.update_async(GUARD_S))


@pytest.mark.parametrize("atomic", [True, False])
def test_an_update_ends_in_time_though_a_publisher_is_stopped(ray_session, atomic) -> None:
    """Whether there is a connection to it or not; once it goes on, so do updates."""
    name, half = f"stopped {atomic}", BIG // 2
    trainers = [Trainer.remote(), Trainer.remote()]
    for at, trainer in enumerate(trainers):
        shard = {"big": Slice(0, at * half, (at + 1) * half, BIG)}
        get(trainer.publish.remote(name, {"big": (BIG,)}, shard))
    into = {"big": torch.zeros(BIG, dtype=torch.int64)}
    pid = get(trainers[1].pid.remote())
    text = rf"Member.* \(process {pid}\), which publishes them, does not answer.*; waited 0\.1 s"
    with rcg.weights.subscribe(name, into, atomic=atomic, timeout=GUARD_S) as reader:
        for version in (1, 2):  # of the second one, connections are open
            get([each.push.remote(version) for each in trainers])
            suspend(pid)
            try:
                for _ in range(3):
                    began_s = time.monotonic()
                    with pytest.raises(TimeoutError, match=text):
                        reader.update(timeout=0.1)
                    assert time.monotonic() - began_s < 1  # it was 30 s, or for ever
                assert reader.version == ((version - 1 or None) if atomic else None)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert reader.update(GUARD_S).version == version
            assert torch.equal(into["big"], value_of(0, version, (BIG,)))
        get([each.wait.remote() for each in trainers])
    get([each.leave.remote() for each in trainers])


def test_a_wait_ends_in_time_though_those_who_are_looked_at_are_stopped(ray_session) -> None:
    """Whether they live is looked at meanwhile."""
    name, trainer, generator = "asleep", Trainer.remote(), Trainer.remote()
    get(trainer.publish.remote(name, {"w": (50, 8)}))
    get(trainer.push.remote(1))
    into, own = torch.zeros(50, 8, dtype=torch.int64), torch.zeros(50, 8, dtype=torch.int64)
    pids = get([trainer.pid.remote(), generator.pid.remote()])
    with (
        rcg.weights.subscribe(name, {"w": into}, timeout=GUARD_S) as reader,
        rcg.weights.publish(f"more of {name}", {"w": own}, shard={}) as publisher,
    ):
        get(generator.subscribe.remote(f"more of {name}", {"w": (50, 8)}))
        reader.update(GUARD_S)
        publisher.push(1)
        calls = {
            "version 1 is the newest": lambda: reader.update(timeout=1.5),
            "not taken by": lambda: publisher.wait(timeout=1.5),
            "other": lambda: rcg.weights.subscribe(
                f"more of {name}", {"other": torch.zeros(3)}, timeout=1.5
            ),
        }
        for pid in pids:
            suspend(pid)
        try:
            for text, call in calls.items():
                began_s = time.monotonic()
                with pytest.raises(TimeoutError, match=text):
                    call()
                assert time.monotonic() - began_s < 2  # a look takes 2 s
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert get(generator.update.remote())[0] == 1
        publisher.wait(timeout=GUARD_S)
    get([trainer.leave.remote(), generator.leave.remote()])


def test_an_update_says_what_the_tensors_got(ray_session, monkeypatch) -> None:
    state, into = {"w": torch.zeros(3)}, {"w": torch.zeros(3)}
    is_reading, may_go_on = threading.Event(), threading.Event()
    read, change = Route.read, Readers.change

    def stop_before_reading(*args: Any) -> Any:
        if threading.current_thread() is other:
            is_reading.set()
            may_go_on.wait(GUARD_S)
        return read(*args)

    def change_when_the_other_reads(*args: Any) -> Any:
        if not is_reading.is_set():
            state["w"].fill_(2)
            publisher.push(2)
            other.start()
            is_reading.wait(GUARD_S)
        try:
            return change(*args)
        finally:
            may_go_on.set()

    with (
        rcg.weights.publish("beside", state, copy=True) as publisher,
        rcg.weights.subscribe("beside", into) as reader,
    ):
        other = threading.Thread(target=reader.update, args=(GUARD_S,), kwargs={"apply": False})
        monkeypatch.setattr(Route, "read", stop_before_reading)
        monkeypatch.setattr(Readers, "change", change_when_the_other_reads)
        publisher.push(1)
        assert reader.update(GUARD_S).version == reader.version == 2
        assert into["w"].tolist() == [2, 2, 2]
        other.join()


@pytest.mark.filterwarnings("ignore:Version . of the weights 'twice' was written to")
def test_who_is_served_by_another_publisher_is_waited_for(ray_session) -> None:
    """One of two that have the same rows is written to: a reader gets them from the other one."""
    whole = Slice(0, 0, 4, 4)
    into, waited = {"w": torch.zeros(4)}, list[BaseException | None]()

    def wait() -> None:
        try:
            one.wait(timeout=GUARD_S)
            waited.append(None)
        except Exception as error:  # noqa: BLE001 - looked at below
            waited.append(error)

    for written in range(2):
        states = [{"w": torch.ones(4)} for _ in range(2)]
        with contextlib.ExitStack() as stack:
            some = [rcg.weights.publish("twice", each, {"w": whole}) for each in states]
            for each in some:
                stack.enter_context(each)
            reader = stack.enter_context(rcg.weights.subscribe("twice", into))
            for each in some:
                each.push(written)
            one = some[written]
            states[written]["w"].data.numpy()[:] = 7.0
            waiting = threading.Thread(target=wait)
            waiting.start()
            waiting.join(1)
            assert reader.update(GUARD_S).version == written and into["w"].tolist() == [1] * 4
            waiting.join()
    assert waited == [None, None]


def test_an_update_that_is_cancelled_does_not_take_the_next_version(ray_session) -> None:
    state, into = {"w": torch.zeros(3)}, {"w": torch.zeros(3)}

    async def run() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(subscriber.update_async(), 0.1)
        waiting = asyncio.ensure_future(subscriber.update_async(GUARD_S))
        await asyncio.sleep(0.05)
        publisher.push(1)
        assert (await waiting).version == 1

    with (
        rcg.weights.publish("cancelled", state) as publisher,
        rcg.weights.subscribe("cancelled", into) as subscriber,
    ):
        asyncio.run(run())


def test_one_that_is_dropped_is_neither_read_nor_waited_for(ray_session) -> None:
    def drop(_: Any) -> None:
        gc.collect()

    state, into = {"w": torch.zeros(3)}, {"w": torch.zeros(3)}
    publisher = rcg.weights.publish("dropped", state)
    drop(rcg.weights.subscribe("dropped", into))
    publisher.push(1)
    publisher.wait(timeout=GUARD_S)
    publisher.push(2)
    del publisher
    until(lambda: "dropped" not in {each.weights for each in rcg.weights.report().parties})
    assert not here().store.entries()


def test_who_does_not_fit_is_refused_before_anything_moves(members) -> None:
    trainer, *_ = members
    get(trainer.publish.remote("fits", {"w": (4, 2), "b": (3,)}))
    with pytest.raises(ValueError, match="'fits' do not fit:\n  w: it is int64, here float32\n"):
        rcg.weights.subscribe("fits", {"w": torch.zeros(4, 3), "c": torch.ones(1)})
    with pytest.raises(ValueError, match=r"published by Actor\(Member, .* already"):
        rcg.weights.publish("fits", {"w": torch.zeros(4, 2)})
    with pytest.raises(TimeoutError, match=r"'nothing': nobody publishes them; waited 0.3 s"):
        rcg.weights.subscribe("nothing", {"w": torch.zeros(4)}, timeout=0.3)
    with pytest.raises(ValueError, match="nobody publishes the weights 'nothing'"):
        rcg.weights.plan("nothing")


def test_a_report_says_who_waits_for_whom(members) -> None:
    trainer, reader, *_ = members
    get(trainer.publish.remote("reported", SHAPES))
    get(reader.subscribe.remote("reported", SHAPES))

    def parties() -> dict[str, Any]:
        found = [each for each in rcg.report().weights.parties if each.weights == "reported"]
        return {each.label: (each.version, each.lag, each.waits_for) for each in found}

    this, other = repr(trainer), repr(reader)
    updating = reader.update.remote()
    until(lambda: parties()[other] == (None, 0, "no version has been pushed yet"))
    get(trainer.push.remote(1))
    get(updating)
    get(trainer.push.remote(2))
    waiting = trainer.wait.remote()
    until(lambda: parties() == {this: (2, 0, other), other: (1, 1, "")})
    html = rcg.report()._repr_mimebundle_()["text/html"]
    assert "reported" in html and "1, 1 behind" in html
    get(reader.update.remote())
    get(waiting)
    until(lambda: parties() == {this: (2, 0, ""), other: (2, 0, "")})
    # One who has given up does not wait.
    with pytest.raises(TimeoutError):
        get(reader.update.remote(0.1))
    until(lambda: parties()[other] == (2, 0, ""))
    text = str(rcg.weights.report())
    head = ["weights", "process", "is", "a", "size", "spare", "version"]
    assert text.splitlines()[1].split() == head


@pytest.mark.parametrize("after_s", core_has(0.005, [0.0, 0.002, 0.005, 0.01, 0.03]))
def test_a_publisher_that_dies_is_named_and_the_old_version_stays(members, after_s) -> None:
    reader, heir, *_ = members
    shapes = SHAPES | {"big": (20 * BIG,)}
    trainer = Trainer.remote()
    name = f"publisher dies {after_s}"
    get(trainer.publish.remote(name, shapes))
    get(reader.subscribe.remote(name, shapes))
    get(trainer.push.remote(1))
    get(reader.update.remote())
    get(trainer.push.remote(2))
    updating = reader.update.remote()
    time.sleep(after_s)
    rcg.kill(trainer)
    try:
        get(updating)
        kept = 2
    except ActorDiedError as error:
        assert "Actor(Member" in str(error)  # noqa: PT017
        assert "keeps version 1" in str(error)  # noqa: PT017
        kept = 1
    assert get(reader.differs.remote(kept)) == []
    with pytest.raises(
        ActorDiedError, match=rf"Actor\(Member.* has died. This process keeps version {kept}"
    ):
        get(reader.update.remote())
    get(heir.publish.remote(name, shapes))
    get(heir.push.remote(1))
    assert get(reader.update.remote())[0] == 1 and get(reader.differs.remote(1)) == []


MB = 1 << 20
COLUMNS = {f"c{n}": (512, 1024) for n in range(12)}  # 4 MB each, of which a reader wants half
TURNED = {f"t{n}": (512, 1024) for n in range(8)}
SMALL = {f"s{n}": (64, 64) for n in range(100)}
LOOKAHEAD = 16 * MB


class Reader(Member):
    """A reader whose tensors are parts of others, or not contiguous: they need memory."""

    def forbid_reading(self) -> None:
        from rcg.rdt import connection

        connection.may_read = lambda pid: False

    def subscribe_to(self, name, lookahead) -> None:
        self.shapes = COLUMNS | TURNED | SMALL
        self.shard = {key: Slice(1, 0, 512, 1024) for key in COLUMNS}
        self.state = {
            key: torch.full((1024, 512), 1).T
            if key in TURNED
            else torch.full((512, 512) if key in COLUMNS else shape, 1)
            for key, shape in self.shapes.items()
        }
        self.subscriber = rcg.weights.subscribe(
            name, self.state, self.shard, atomic=False, lookahead=lookahead, timeout=GUARD_S
        )

    def peak_of_update(self) -> int:
        """How many bytes more than before this process has had during an update."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
        before = self._kilobytes("VmRSS")
        self.subscriber.update(GUARD_S)
        return (self._kilobytes("VmHWM") - before) << 10

    @staticmethod
    def _kilobytes(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(each.split()[1]) for each in lines if each.startswith(f"{field}:"))


@pytest.mark.full
@pytest.mark.parametrize("way", ["memory", "message", "node"])
def test_lookahead_bounds_the_memory_of_an_update(ray_session, way) -> None:
    if way == "node" and not is_spread():
        pytest.skip("there is one node")
    name = f"ahead {way}"

    def make(cls: Any, node: int) -> Any:
        made = rcg.remote(num_cpus=0)(cls)
        return (on_node(made, node) if is_spread() else made).remote()

    trainer, bounded, free = actors = [
        make(Member, 0),
        *(make(Reader, int(way == "node")) for _ in range(2)),
    ]
    try:
        get(trainer.publish.remote(name, COLUMNS | TURNED | SMALL))
        if way == "message":
            get([each.forbid_reading.remote() for each in (bounded, free)])
        get(bounded.subscribe_to.remote(name, LOOKAHEAD))
        get(free.subscribe_to.remote(name, None))
        get(trainer.push.remote(1))
        peaks = [get(each.peak_of_update.remote()) for each in (bounded, free)]
        assert get([each.differs.remote(1) for each in (bounded, free)]) == [[], []]
        parties = rcg.weights.report().parties
        spares = {each.label: each.spare_bytes for each in parties if each.weights == name}
        turned_bytes = 8 * 512 * 1024 * len(TURNED)
        assert [spares[repr(each)] for each in actors] == [0, LOOKAHEAD, turned_bytes]
        slack = 6 * MB  # for pages of 2 MB, tables and whatever else a process does
        assert peaks[0] <= LOOKAHEAD + slack < peaks[1], peaks
        # Nothing more is taken for the second version.
        get(trainer.push.remote(2))
        assert get(bounded.peak_of_update.remote()) <= LOOKAHEAD + slack
        assert get(bounded.differs.remote(2)) == []
    finally:
        for each in actors:
            rcg.kill(each)


def test_lookahead_that_means_nothing_is_refused(ray_session) -> None:
    into = {"w": torch.zeros(3), "turned": torch.zeros(1000, 1000).T}
    for lookahead, atomic, error, text in (
        (8 * MB, True, ValueError, "give atomic=False, too"),
        ("8 MB", False, TypeError, "a number of bytes, or None for no limit, got '8 MB'"),
        (True, False, TypeError, "got True"),
        (0, False, ValueError, "at least 8000000 bytes here, got 0: turned cannot be written to"),
    ):
        with pytest.raises(error, match=text):
            rcg.weights.subscribe(
                "refused", into, atomic=atomic, lookahead=lookahead, timeout=GUARD_S
            )
    with pytest.raises(ValueError, match=r"at least 2097152 bytes here, got 7$"):
        rcg.weights.subscribe("refused", {"w": torch.zeros(3)}, atomic=False, lookahead=7)


@pytest.mark.full
def test_what_takes_long_shows_its_progress(ray_session, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("RCG_PROGRESS", raising=False)
    stream, seconds = Terminal(), itertools.count(step=10)

    def shown(total: int, label: str) -> Progress[Any]:
        return Progress(total, label, stream=stream, clock=lambda: float(next(seconds)))

    def drawn() -> list[str]:
        found = [each.split("\r")[0].strip() for each in stream.getvalue().split("\x1b[2K")]
        stream.truncate(stream.seek(0))
        return [each.split("]")[1] for each in found if each]

    for module in ("client", "publisher"):
        monkeypatch.setattr(f"rcg.weights.{module}.Progress", shown)
    state = {name: torch.ones(MB) for name in ("a", "b")}  # 4 MB each
    others = [{name: torch.zeros(MB) for name in state} for _ in range(2)]
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(rcg.weights.publish("shown", state, copy=True))
        one, other = (
            stack.enter_context(
                rcg.weights.subscribe("shown", into, atomic=False, lookahead=4 * MB)
            )
            for into in others
        )
        with pytest.raises(TimeoutError):
            one.update(1.5)
        assert set(drawn()) == {"   0 % the weights 'shown': no version has been pushed yet"}
        publisher.push()
        label = "a copy of the weights 'shown', MB"
        assert drawn() == [f" {percent:3d} % {label}" for percent in (50, 100)]
        one.update(GUARD_S)
        label = "version 0 of the weights 'shown', MB"
        assert drawn() == [f" {percent:3d} % {label}" for percent in (0, 25, 50, 75, 100)]
        with pytest.raises(TimeoutError):
            publisher.wait(timeout=1.5)
        assert set(drawn()) == {"  50 % readers that have version 0 of the weights 'shown'"}
        other.update(GUARD_S)


def test_slices_that_overlap_are_refused(members) -> None:
    first, second, *_ = members
    get(first.publish.remote("overlap", {"w": (6, 2), "b": (6,)}, {"w": Slice(0, 0, 4, 6)}))
    with pytest.raises(ValueError, match="cannot be published") as caught:
        get(second.publish.remote("overlap", {"w": (6, 2)}, {"w": Slice(0, 2, 6, 6)}))
    assert repr(first) in str(caught.value) and repr(second) in str(caught.value)
    get(second.publish.remote("overlap", {"w": (6, 2)}, {"w": Slice(0, 4, 6, 6)}))


def test_a_copy_stands_in_for_a_publisher_that_dies(members) -> None:
    one, reader, *_ = members
    other = Trainer.remote()
    shapes = {"w": (40, 3)}
    both = {"w": Slice(0, 0, 40, 40)}
    for each in (one, other):
        get(each.publish.remote("copies", shapes, both))
    get(reader.subscribe.remote("copies", shapes))
    get([each.push.remote(1) for each in (one, other)])
    assert get(reader.update.remote())[0] == 1
    rcg.kill(other)
    get(one.push.remote(2))
    assert get(reader.update.remote())[0] == 2 and get(reader.differs.remote(2)) == []


@pytest.mark.full
def test_an_owner_that_runs_again_waits_for_readers_that_do_not_ask(members) -> None:
    trainer, reader, other, _ = members
    get(trainer.publish.remote("asleep", SHAPES))
    get([each.subscribe.remote("asleep", SHAPES) for each in (reader, other)])
    get(trainer.push.remote(1))
    get([each.update.remote() for each in (reader, other)])
    get(trainer.push.remote(2))
    get(other.update.remote())
    for no_restart in (False, True):
        ray.kill(client.owner_handle(), no_restart=no_restart)
        with pytest.raises(TimeoutError, match=r"version 2 .* was not taken by Actor\(Member, "):
            get(trainer.wait.remote(8))
    get(reader.update.remote())
    get(trainer.wait.remote())
    ray.kill(client.owner_handle(), no_restart=False)
    get(trainer.wait.remote())
    get(trainer.push.remote(3))
    ray.kill(client.owner_handle())  # and nobody asks the new one before these
    with pytest.raises(ValueError, match=r"published by Actor\(Member, .* already"):
        rcg.weights.publish("asleep", {"w": torch.zeros(50, 8, dtype=torch.int64)})
    into = torch.zeros(50, 8, dtype=torch.int64)
    with rcg.weights.subscribe("asleep", {"w": into}) as late:
        assert late.update(GUARD_S).version == 3


ACTORS = "rcg.weights", "rcg.weights.roll"


def is_there(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ray.get_actor(name, namespace="rcg"))
    return False


def forget_the_dead() -> None:
    """End the owner and its roll, which may know of those who died in other tests."""
    for name in filter(is_there, ACTORS):
        ray.kill(ray.get_actor(name, namespace="rcg"))


def test_the_owner_ends_with_the_last_who_uses_it(ray_session) -> None:
    forget_the_dead()
    with rcg.weights.publish("ends", {"w": torch.zeros(2)}):
        assert ray.get_actor("rcg.weights", namespace="rcg")
    until(lambda: not any(map(is_there, ACTORS)))


def test_who_comes_while_the_last_one_leaves_keeps_its_name(ray_session, monkeypatch) -> None:
    forget_the_dead()
    came: list[Any] = []
    kill = client.cluster.kill

    def publish_before(handle: Any) -> None:
        if not came:
            came.append(None)
            came[0] = rcg.weights.publish("last", {"w": torch.zeros(2)})
        kill(handle)

    monkeypatch.setattr(client.cluster, "kill", publish_before)
    rcg.weights.publish("first", {"w": torch.zeros(2)}).close()
    with came[0], pytest.raises(ValueError, match=r"published by .* already"):
        rcg.weights.publish("last", {"w": torch.zeros(2)})


def test_who_asks_starts_no_owner(ray_session) -> None:
    into = {"w": torch.zeros(2)}
    with (
        rcg.weights.publish("asked", {"w": torch.zeros(2)}),
        rcg.weights.subscribe("asked", into) as reader,
    ):
        assert reader.lag == 0
        assert repr(reader) == "<Subscriber of 'asked': 1 tensor, 8 B, no version yet, 0 B beside>"
    forget_the_dead()
    client.leave_cluster()
    with pytest.raises(ValueError, match="nobody publishes the weights 'asked'"):
        rcg.weights.plan("asked")
    assert str(rcg.weights.report()) == "Weights: nobody publishes or reads any"
    assert reader.lag == 0
    with pytest.raises(ValueError, match="actor"):
        ray.get_actor("rcg.weights", namespace="rcg")
