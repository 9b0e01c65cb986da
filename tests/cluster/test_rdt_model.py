# SPDX-License-Identifier: Apache-2.0
"""A model of tensors by reference: random moves of real processes, against plain Python.

What arrives is the value as its maker has it, or an error; nothing hangs, no process dies, and in
the end no process holds anything. The driver makes each value a second time and does to that twin
what is done to the value.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from ray.exceptions import RayActorError

import rcg
from rcg.experimental.collective import create_collective_group, destroy_all_collective_groups
from tests.cluster.again import Pool
from tests.cluster.parties import Guarded, numbers
from tests.cluster.stage import GUARD_S
from tests.harness.models import START_S, Journal, RunModel

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    pytest.mark.filterwarnings("ignore:RDT ObjectRef"),
]

COUNT = 3
BESIDE_S = 0.3
TRANSPORTS = ("object_store", "object_store", "gloo", "auto", "nixl")
ENDS = {"StopIteration": StopIteration, "GeneratorExit": GeneratorExit, "LookupError": LookupError}


def _complex(seed: int) -> Any:
    return torch.complex(*(numbers(seed + each, torch.zeros(60)) for each in (0, 1)))


def _nested(seed: int) -> Any:
    base = numbers(seed, torch.zeros(2000))
    return {
        "pair": (base[:1000], base[1000:]),
        "list": [base.view(40, 50).t(), "text", seed, base],
        "empty": torch.zeros(0),
    }


KINDS: dict[str, Callable[[int], Any]] = {
    "small": lambda seed: numbers(seed, torch.zeros(7)),
    "large": lambda seed: numbers(seed, torch.zeros(300_000)),
    "strided": lambda seed: numbers(seed, torch.zeros(2000))[::2],
    "turned": lambda seed: numbers(seed, torch.zeros(40, 50)).t(),
    "offset": lambda seed: numbers(seed, torch.zeros(2000))[100:900],
    "expanded": lambda seed: numbers(seed, torch.zeros(3)).unsqueeze(1).expand(3, 4),
    "conjugate": lambda seed: _complex(seed).conj(),
    "negative": lambda seed: _complex(seed).conj().imag,
    "scalar": lambda seed: numbers(seed, torch.zeros(())),
    "empty": lambda seed: torch.zeros(0, 3),
    "bool": lambda seed: numbers(seed, torch.zeros(9)) > 0,
    "bfloat16": lambda seed: numbers(seed, torch.zeros(33, dtype=torch.bfloat16)),
    "tied": lambda seed: [each := numbers(seed, torch.zeros(100)), each, each.view(10, 10)],
    "nested": _nested,
    "plain": lambda seed: {"no": "tensors", "seed": seed},
}


def leaves(value: Any) -> list[Any]:
    """The tensors of a value."""
    if isinstance(value, torch.Tensor):
        return [value]
    some = value.values() if isinstance(value, dict) else value
    return (
        [each for one in some for each in leaves(one)]
        if isinstance(value, (dict, list, tuple))
        else []
    )


def plain(value: Any) -> Any:
    """A copy of a value, whose tensors are in one piece and share nothing."""
    if isinstance(value, torch.Tensor):
        return (
            value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        )
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value


def are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return bool(one == other)


def write(value: Any, how: str, seed: int) -> None:
    """Write to the first tensor of a value in place."""
    tensor = leaves(value)[0]
    new = numbers(seed, tensor.real).to(tensor.dtype)
    (tensor.data if how == "data" else tensor.detach()).copy_(new)


class Worker:
    """Makes, keeps and takes values."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}
        self.refs: list[Any] = []
        self.goes_on = False

    @rcg.method(tensor_transport="object_store")
    def make(self, who, kind, seed):
        self.kept[who] = KINDS[kind](seed)
        return self.kept[who]

    def put(self, who, kind, seed, transport):
        self.kept[who] = KINDS[kind](seed)
        return [rcg.put(self.kept[who], _tensor_transport=transport)]

    @rcg.method(tensor_transport="object_store")
    def relay(self, who, value):
        self.kept[who] = value
        return value

    @rcg.method(tensor_transport="object_store")
    def fail(self, how):
        raise ENDS[how]("nothing is left")

    def take(self, *values):
        return list(map(plain, values))

    def get_of(self, refs):
        return plain(rcg.get(refs[0], _tensor_transport="object_store"))

    def await_of(self, refs):
        async def found() -> Any:
            return await refs[0]

        return plain(asyncio.run(found()))

    def get_into(self, refs, like, how):
        """Get a tensor into memory that is there; returns the value, and whether it was kept to."""
        shape = (*like.shape[:-1], like.shape[-1] + 1) if how == "too large" else like.shape
        guarded = Guarded(torch.zeros(shape, dtype=like.dtype), how == "turned")
        if how == "short":
            guarded.resize(0.5)
        problem: Exception | None = None
        try:
            found = rcg.get(refs[0], out=guarded.tensor)
        except Exception as error:  # noqa: BLE001 - the model judges it
            problem = error
        if not guarded.is_intact:
            return "bytes outside of the target changed"
        if problem is not None:
            raise problem
        return plain(found) if found is guarded.tensor else "another tensor than the target"

    def write(self, who, how, seed):
        write(self.kept[who], how, seed)

    def resize(self, who, share):
        """Give the storage of a tensor another size, while other memory takes what was freed.

        Returns whether torch lets it be resized: not where rcg has received it.
        """
        storage = leaves(self.kept[who])[0].untyped_storage()
        if not storage.resizable():
            return False
        size = storage.nbytes()
        storage.resize_(0)
        self.other = torch.full((size,), 0x77, dtype=torch.uint8)
        storage.resize_(int(size * share))
        return True

    def begin_resizing(self, who):
        """Free and regrow the storage of a tensor again and again, with the same values in it."""
        tensor = self.kept[who]
        value, storage = tensor.clone(), tensor.untyped_storage()
        size = storage.nbytes()
        self.goes_on = storage.resizable()

        def run() -> None:
            while self.goes_on:
                time.sleep(0.001)
                storage.resize_(0)
                other = torch.full((size,), 0x77, dtype=torch.uint8)
                storage.resize_(size)
                tensor.data.copy_(value)
                del other

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        return self.goes_on

    def end_resizing(self):
        self.goes_on = False
        self.thread.join(GUARD_S)

    def hold(self, refs):
        self.refs.extend(refs)

    def forget(self, who):
        self.kept.pop(who, None)

    def pid(self):
        return os.getpid()

    def leave(self):
        """Let go of all that the method calls left here; returns this process."""
        self.__init__()  # type: ignore[misc]
        gc.collect()
        return os.getpid()

    def held(self):
        from rcg.rdt.process import here

        return here().store.facts().held


@dataclass
class Known:
    """A reference and what its value is.

    Attributes:
        twin: The value, to which is done what is done to it.
        copied: What other processes get: small values are copied when they are made for NIXL.
    """

    who: int
    ref: Any
    actor: int
    kind: str
    transport: str
    twin: Any
    is_sure: bool = True  # whether it can be got
    source: Known | None = None  # of what an actor got and returned
    copied: Any = None

    def __post_init__(self) -> None:
        if self.transport == "nixl" and self.kind != "large":
            self.copied = copy.deepcopy(self.twin)

    def at(self, actor: int | None) -> Any:
        """A copy of what an actor gets, or the driver: what shares memory in it does so there."""
        is_twin = actor == self.actor or self.copied is None
        return copy.deepcopy(self.twin if is_twin else self.copied)


@dataclass
class Pending:
    """A call that may not be done yet, and what it gives."""

    ref: Any
    some: list[Known]
    actor: int
    values: list[Any]
    is_sure: bool


class Group(Pool):
    """Actors that run again, and are one group."""

    def __init__(self) -> None:
        super().__init__(rcg.remote(num_cpus=0, max_restarts=-1)(Worker), COUNT)
        self.meet()

    def meet(self, gone: int = 0) -> None:
        """Make the group anew, once another process than the one that was killed is there."""
        destroy_all_collective_groups()
        self.pids = [gone]
        while gone in self.pids:  # one that runs again is not there at first
            with contextlib.suppress(RayActorError):
                self.pids = rcg.get([each.pid.remote() for each in self.actors], timeout=START_S)
        create_collective_group(self.actors, backend="gloo")

    def close(self) -> None:
        destroy_all_collective_groups()
        super().close()


class ReferencesModel(RuleBasedStateMachine):
    """Values by reference among actors and the driver."""

    pool: ClassVar[Group]

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.check, self.note = self.journal.check, self.journal.note
        self.ids, self.seeds = itertools.count(), itertools.count(1, 7)
        self.known: list[Known] = []
        self.pending: list[Pending] = []
        self.may_kill = True

    # --- between the model and the actors

    def outcome(self, what: str, call: Callable[[], Any]) -> tuple[Any, str]:
        """What a call gives, or the text of its error."""
        self.note(what)
        try:
            return call(), ""
        except rcg.exceptions.GetTimeoutError:
            self.check(False, f"it hangs: {what}")
        except Exception as error:  # noqa: BLE001 - judged below
            is_end = isinstance(error, (StopIteration, StopAsyncIteration))
            self.check(not is_end, f"a loop takes this error for its end: {error!r}")
            text = f"{type(error).__name__}: {error}"
            self.note(f"    -> {text.strip().splitlines()[-1][:200]}")
            self.died(isinstance(error, RayActorError), text)
            return None, text
        except GeneratorExit as error:
            self.check(False, f"a generator takes this error for its end: {error!r}")
        return None, ""

    def died(self, is_likely: bool, text: str) -> None:
        if is_likely:
            before = self.pool.pids
            self.pool.meet()
            self.check(self.pool.pids == before, f"a process died: {text}")

    def get(self, refs: Any) -> Any:
        return rcg.get(refs, timeout=GUARD_S)

    def pick(self, data: Any, *, tensor: bool = False, sure: bool = False) -> Known:
        some = [each for each in self.known if not tensor or isinstance(each.twin, torch.Tensor)]
        return self.one_of(data, [each for each in some if each.is_sure or not sure])

    def one_of(self, data: Any, some: list[Known]) -> Known:
        # A place is drawn: Hypothesis keeps what it has drawn, and a reference keeps its value.
        return some[data.draw(st.integers(0, len(some) - 1))]

    def see(self, known: Known, actor: int | None, found: Any, error: str) -> None:
        """Check what arrived at an actor, or here."""
        if error:
            self.check(not known.is_sure, f"{known.who} ({known.kind}) does not arrive: {error}")
            return
        is_right = are_equal(found, plain(known.at(actor)))
        self.check(is_right, f"{known.who} ({known.kind}) arrived otherwise")

    def actor(self, at: int) -> Any:
        return self.pool.actors[at]

    def settle(self) -> None:
        """Wait until all calls are done: what is written from now on is written after them."""
        while self.pending:
            self.end(self.pending.pop(0))
        self.get([each.held.remote() for each in self.pool.actors])

    def end(self, pending: Pending) -> None:
        names = [each.who for each in pending.some]
        found, error = self.outcome(f"end of take {names}", lambda: self.get(pending.ref))
        if error:
            self.check(not pending.is_sure, f"{names} do not arrive: {error}")
        else:
            self.check(are_equal(found, pending.values), f"{names} arrived otherwise")

    # --- moves

    @rule(
        actor=st.integers(0, COUNT - 1),
        kind=st.sampled_from(list(KINDS)),
        transport=st.sampled_from(TRANSPORTS),
        puts=st.booleans(),
    )
    def make(self, actor: int, kind: str, transport: str, puts: bool) -> None:
        who, seed = next(self.ids), next(self.seeds)
        self.note(f"{'put' if puts else 'make'} {who}, {kind}, at actor {actor} by {transport}")
        worker = self.actor(actor)
        if puts:
            (ref,) = self.get(worker.put.remote(who, kind, seed, transport))
        else:
            ref = worker.make.options(tensor_transport=transport).remote(who, kind, seed)
        self.known.append(Known(who, ref, actor, kind, transport, KINDS[kind](seed)))

    @precondition(lambda self: any(each.is_sure for each in self.known))
    @rule(data=st.data(), actor=st.integers(0, COUNT - 1))
    def relay(self, data: Any, actor: int) -> None:
        """An actor returns what it got."""
        known = self.pick(data, sure=True)
        if known.actor == actor:
            return  # it is the same value
        who = next(self.ids)
        self.note(f"relay {known.who} by actor {actor} as {who}")
        ref = self.actor(actor).relay.remote(who, known.ref)
        value = known.at(actor)
        self.known.append(Known(who, ref, actor, known.kind, "object_store", value, source=known))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), actor=st.integers(0, COUNT - 1), waits=st.booleans())
    def take(self, data: Any, actor: int, waits: bool) -> None:
        some = [self.pick(data) for _ in range(data.draw(st.integers(1, 3)))]
        if any(each.actor == actor and not each.is_sure for each in some):
            return  # it is the maker's own, and torch does not look whether its memory is there
        self.note(f"take {[each.who for each in some]} at actor {actor}")
        ref = self.actor(actor).take.remote(*(each.ref for each in some))
        values = [plain(each.at(actor)) for each in some]
        made = Pending(ref, some, actor, values, all(each.is_sure for each in some))
        if waits:
            self.end(made)
        else:
            self.pending.append(made)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def end_one(self, data: Any) -> None:
        self.end(self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1))))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def get_here(self, data: Any) -> None:
        known = self.pick(data)
        got = self.outcome(f"get {known.who}", lambda: plain(self.get_one(known)))
        self.see(known, None, *got)

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(), actor=st.integers(0, COUNT - 1), how=st.sampled_from(["get_of", "await_of"])
    )
    def get_there(self, data: Any, actor: int, how: str) -> None:
        known = self.pick(data)
        if how == "await_of" and known.transport != "object_store":
            return
        if known.actor == actor and not known.is_sure:
            return
        method = getattr(self.actor(actor), how)
        got = self.outcome(
            f"{how} {known.who} at actor {actor}", lambda: self.get(method.remote([known.ref]))
        )
        self.see(known, actor, *got)

    @precondition(lambda self: any(isinstance(each.twin, torch.Tensor) for each in self.known))
    @rule(
        data=st.data(),
        actor=st.integers(0, COUNT - 1),
        how=st.sampled_from(["fits", "turned", "short", "too large"]),
    )
    def get_into(self, data: Any, actor: int, how: str) -> None:
        """Get a tensor into one that is there, and fits or does not."""
        known = self.pick(data, tensor=True)
        if not known.twin.dim() or known.transport != "object_store":
            return
        if known.actor == actor and not known.is_sure:
            return
        like = torch.zeros(known.twin.shape, dtype=known.twin.dtype)
        found, error = self.outcome(
            f"get {known.who} into a tensor at actor {actor}: {how}",
            lambda: self.get(self.actor(actor).get_into.remote([known.ref], like, how)),
        )
        if how == "fits" or not error:
            self.check(how in ("fits", "turned") or not like.numel(), f"it fits into {how}")
            self.see(known, actor, found, error)

    @rule(
        actor=st.integers(0, COUNT - 1),
        how=st.sampled_from(list(ENDS)),
        taker=st.sampled_from(["get", "take", "get_of", "await_of"]),
    )
    def fail(self, actor: int, how: str, taker: str) -> None:
        ref = self.actor(actor).fail.remote(how)
        other = self.actor((actor + 1) % COUNT)

        def got() -> Any:
            if taker == "get":
                return self.get(ref)
            argument = ref if taker == "take" else [ref]
            return self.get(getattr(other, taker).remote(argument))

        _, error = self.outcome(f"{taker} of {how} of actor {actor}", got)
        self.check(how in error, f"{taker} of {how} gave: {error or 'a value'}")
        self.check("died" not in error.lower(), f"{taker} of {how} gave: {error}")

    @precondition(lambda self: any(leaves(each.twin) for each in self.known))
    @rule(data=st.data(), how=st.sampled_from(["in place", "data"]))
    def write(self, data: Any, how: str) -> None:
        """The maker writes to a value that is out: who gets it from now on sees that."""
        known = self.pick(data)
        if not known.is_sure or known.kind in ("expanded", "plain"):
            return
        seed = next(self.seeds)
        self.settle()
        self.note(f"write {how} to {known.who}")
        self.get(self.actor(known.actor).write.remote(known.who, how, seed))
        write(known.twin, how, seed)

    @precondition(lambda self: any(leaves(each.twin) for each in self.known))
    @rule(data=st.data(), share=st.sampled_from([0, 0.5, 1]))
    def resize(self, data: Any, share: float) -> None:
        known = self.pick(data)
        if not known.is_sure or not any(each.numel() for each in leaves(known.twin)):
            return
        self.settle()
        self.note(f"resize the storage of {known.who} to {share}")
        if self.get(self.actor(known.actor).resize.remote(known.who, share)):
            known.is_sure = False

    @precondition(lambda self: any(each.kind == "large" and each.is_sure for each in self.known))
    @rule(data=st.data(), actor=st.integers(0, COUNT - 1))
    def resize_beside(self, data: Any, actor: int) -> None:
        """Get a tensor again and again while its storage is freed and regrown with its values."""
        some = [each for each in self.known if each.kind == "large" and each.is_sure]
        known = self.one_of(data, some)
        holder, taker = self.actor(known.actor), self.actor(actor)
        self.settle()
        self.note(f"resize {known.who} beside gets, at actor {actor} and here")
        if not self.get(holder.begin_resizing.remote(known.who)):
            return
        known.is_sure = False

        def get_there() -> Any:
            return self.get(taker.get_of.remote([known.ref]))

        until_s = time.monotonic() + BESIDE_S
        while time.monotonic() < until_s:
            self.see(known, None, *self.outcome("get", lambda: plain(self.get_one(known))))
            if actor != known.actor:
                self.see(known, actor, *self.outcome("get there", get_there))
        self.get(holder.end_resizing.remote())

    def get_one(self, known: Known) -> Any:
        return rcg.get(known.ref, timeout=GUARD_S, _tensor_transport="object_store")

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        known = self.pick(data)
        self.note(f"drop {known.who}")
        self.known.remove(known)
        known.ref = None  # others may know of the value

    @precondition(lambda self: self.known)
    @rule(data=st.data(), actor=st.integers(0, COUNT - 1))
    def hold(self, data: Any, actor: int) -> None:
        """An actor keeps the reference, too."""
        known = self.pick(data)
        self.note(f"hold {known.who} at actor {actor}")
        self.get(self.actor(actor).hold.remote([known.ref]))

    @precondition(lambda self: self.may_kill)
    @rule(actor=st.integers(0, COUNT - 1), turn=st.integers(0, 20))
    def restart(self, actor: int, turn: int) -> None:
        if turn != 13:
            return
        self.may_kill = False
        self.note(f"kill actor {actor}, which runs again")
        rcg.kill(self.actor(actor), no_restart=False)
        for each in self.known:  # the oldest first
            is_free = each.transport == "object_store"  # of the group, which is made again
            is_free = is_free and (each.source is None or each.source.is_sure)
            each.is_sure = each.is_sure and is_free and each.actor != actor
        for one in self.pending:
            is_hit = one.actor == actor or not all(each.is_sure for each in one.some)
            one.is_sure = one.is_sure and not is_hit
        self.pool.meet(self.pool.pids[actor])

    def teardown(self) -> None:
        if self.journal.failure is None:
            self.settle()
        self.pending.clear()
        for each in self.known:  # a frame that Hypothesis has stopped may still have them
            each.ref = None
        pids = self.get([each.leave.remote() for each in self.pool.actors])
        before, self.pool.pids = self.pool.pids, pids
        until_s = time.monotonic() + GUARD_S / 4
        while any(left := self.get([each.held.remote() for each in self.pool.actors])):
            if self.journal.failure or time.monotonic() > until_s:
                break
            gc.collect()
            time.sleep(0.05)
        if not self.journal.failure:
            self.check(pids == before, "a process died and runs again")
            self.check(not any(left), f"the actors still hold {left} values")


@pytest.mark.full
def test_what_arrives_is_the_value_or_an_error(run_model: RunModel) -> None:
    with contextlib.closing(Group()) as pool:
        ReferencesModel.pool = pool
        run_model(ReferencesModel)
