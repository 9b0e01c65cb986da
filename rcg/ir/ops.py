# SPDX-License-Identifier: Apache-2.0
"""The ops: the steps of a program.

The class of an op is the only place where it is defined. Its fields declare which slots and
channels it uses, and ``form`` how it prints (``rcg.ir.record``); the rest follows from these.

>>> from rcg.ir.ids import Const, Slot
>>> op = Call("a0", "fwd", (Slot(0), Const("k0")), (("scale", Const("k1")),), (1,), 7)
>>> print(op)
Call a0.fwd(s0, k0, scale=k1) -> s1 #7
>>> op.used(), op.made(), op.channels_in, op.title(), op.title({"a0": "Stage"})
((0,), (1,), (), 'fwd', 'Stage.fwd')
>>> read = Read("c3", (2,))
>>> read.channels_in, read.is_rendezvous, read.title()
(('c3',), True, 'read c3')
>>> Pass("c3").channels_in, Pass("c3").title()
((), 'pass c3')
>>> print(AllReduce((2,), "sum", None, "g0", ("c4",), ("c5", "c6"), (3,), 7))
AllReduce s2 (sum) @g0 tells c4 hears c5 c6 -> s3 #7
>>> print(Broadcast((), None, 0, "g0", ("c4",), ("c5",), (3,), 7))
Broadcast root 0 @g0 tells c4 hears c5 -> s3 #7
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import rcg.checked as checked
from rcg.ir.fields import (
    ActorId,
    ChannelPassed,
    ChannelRead,
    ChannelsRead,
    ChannelsWritten,
    ChannelWritten,
    FieldType,
    GroupUsed,
    InputKey,
    Keywords,
    MethodName,
    NodeNumber,
    Positional,
    Reduction,
    Root,
    SlotMade,
    SlotsIfAny,
    SlotsMade,
    SlotsUsed,
    SlotUsed,
    TemplateId,
    Use,
)
from rcg.ir.record import Record

_Find = Callable[[Any], tuple[Any, ...]]
"""Finds something in an op, or in the value of one of its fields."""


class Op(Record):
    """One step of a program.

    Attributes:
        cost: The assumed cost of the op without measurements; a call costs 1.
        is_rendezvous: Whether the op may wait for another process.
        is_call: Whether the op runs a user's method.
        is_holding: Whether the result of the op holds the values that it uses.
        word: The op in one lower-case word: ``read``.
    """

    __slots__ = ()

    cost: ClassVar[float] = 0.0
    is_rendezvous: ClassVar[bool] = False
    is_call: ClassVar[bool] = False
    is_holding: ClassVar[bool] = False
    word: ClassVar[str]

    _classes: ClassVar[dict[str, type[Any]]] = {}
    _used: ClassVar[_Find]
    _made: ClassVar[_Find]
    _read: ClassVar[_Find]
    _written: ClassVar[_Find]
    _constants: ClassVar[_Find]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.word = cls.__name__.lower()
        # Twice for each class: a dataclass with slots is made anew, and the second one stays.
        Op._classes[cls.keyword] = cls
        cls._used = cls._finder("slots", Use.IN)
        cls._made = cls._finder("slots", Use.OUT)
        cls._read = cls._finder("channels", Use.IN)
        cls._written = cls._finder("channels", Use.OUT)
        cls._constants = cls._finder("constants", None)

    @classmethod
    def _finder(cls, what: str, use: Use | None) -> _Find:
        """Return a function that lists the slots, channels or constants of one use in an op."""
        parts: list[tuple[str, _Find]] = [
            (name, getattr(each, what))
            for name, each in cls.types.items()
            if getattr(type(each), what) is not getattr(FieldType, what)
            and (use is None or each.use is use)
        ]
        if len(parts) == 1:  # the commonest by far, and compiling asks often
            ((name, find),) = parts
            return lambda op: find(getattr(op, name))
        return lambda op: tuple([each for name, find in parts for each in find(getattr(op, name))])

    @staticmethod
    def named(name: object) -> type[Op]:
        """Return the class of the ops whose line begins with a word.

        Raises:
            ValueError: There is none.
        """
        found = Op._classes.get(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"there is no op {checked.found(name)}")
        return found

    # Uses and results

    def used(self) -> tuple[int, ...]:
        """Return the slots that the op reads, repeats included."""
        return self._used()

    def made(self) -> tuple[int, ...]:
        """Return the slots that the op fills."""
        return self._made()

    @property
    def channels_in(self) -> tuple[str, ...]:
        """The channels that the op takes a frame from."""
        return self._read()

    @property
    def channels_out(self) -> tuple[str, ...]:
        """The channels that the op writes a frame to."""
        return self._written()

    @property
    def values_in(self) -> tuple[str, ...]:
        """The channels whose frames are values for the slots that the op makes."""
        return self._read()

    @property
    def values_out(self) -> tuple[str, ...]:
        """The channels whose frames are values of the slots that the op uses."""
        return self._written()

    def freed(self) -> tuple[int, ...]:
        """Return the slots that are empty after the op."""
        return ()

    def constants(self) -> tuple[str, ...]:
        """Return the ids of the constants and templates that the op takes from the bindings."""
        return self._constants()

    # For people

    def title(self, labels: Mapping[str, str] | None = None) -> str:
        """Return a short name: ``read c3``, ``build k2``, ``allreduce``, ``Stage.fwd``.

        Args:
            labels: Names of actors by their ids; without them a call is its method alone.
        """
        subjects = [
            declared.subject(getattr(self, name))
            for name, declared in self.types.items()
            if declared.is_subject
        ]
        return " ".join(filter(None, (self.word, *subjects)))


@dataclass(frozen=True, slots=True)
class Input(Op):
    """Driver: take an argument of this execution; key None is the one whole input."""

    form: ClassVar[str] = "{key} -> {out}"

    key: InputKey
    out: SlotMade


@dataclass(frozen=True, slots=True)
class Read(Op):
    """Wait for this execution's frame of a channel. Each part of it fills a slot."""

    form: ClassVar[str] = "{channel} -> {outs}"
    cost: ClassVar[float] = 0.05
    is_rendezvous: ClassVar[bool] = True

    channel: ChannelRead
    outs: SlotsMade


@dataclass(frozen=True, slots=True)
class Build(Op):
    """Fill the holes of a template, making a new container."""

    form: ClassVar[str] = "{template}({slots}) -> {out}"
    is_holding: ClassVar[bool] = True

    template: TemplateId
    slots: SlotsUsed
    out: SlotMade


@dataclass(frozen=True, slots=True)
class Call(Op):
    """Call a method of the actor. Several ``outs`` take its several return values apart.

    ``node`` is the graph node of the call.
    """

    form: ClassVar[str] = "{actor}.{method}({args, kwargs}) -> {outs} #{node}"
    cost: ClassVar[float] = 1.0
    is_call: ClassVar[bool] = True

    actor: ActorId
    method: MethodName
    args: Positional
    kwargs: Keywords
    outs: SlotsMade
    node: NodeNumber

    def title(self, labels: Mapping[str, str] | None = None) -> str:
        """Return ``Stage.fwd``, or ``fwd`` without labels."""
        if labels is None:
            return self.method
        return f"{labels.get(self.actor, self.actor)}.{self.method}"


@dataclass(frozen=True, slots=True)
class Copy(Op):
    """Copy a value that is sent later, before a call of the actor that may change it.

    A tensor that nothing else holds and that no later op uses is passed on without a copy.
    """

    form: ClassVar[str] = "{slot} -> {out}"

    slot: SlotUsed
    out: SlotMade


@dataclass(frozen=True, slots=True)
class Write(Op):
    """Send the values of slots to all readers of a channel in one frame; waits for room."""

    form: ClassVar[str] = "{slots} -> {channel}"
    cost: ClassVar[float] = 0.05
    is_rendezvous: ClassVar[bool] = True

    slots: SlotsUsed
    channel: ChannelWritten


@dataclass(frozen=True, slots=True)
class Pass(Op):
    """Gate: publish the frame of a channel that arrives from another node in the ring of this one.

    A gate takes frames as they arrive, so its ops have no order and none waits for another. It is
    neither the channel's writer nor a reader: the value has no slot there.
    """

    form: ClassVar[str] = "{channel}"
    cost: ClassVar[float] = 0.05
    is_rendezvous: ClassVar[bool] = True

    channel: ChannelPassed


@dataclass(frozen=True, slots=True)
class Collective(Op):
    """Take part in a collective of a group; the base of one class for each kind.

    Each rank tells the others whether it has its tensors, and their shapes, and hears the same from
    them. Then all enter the collective, or none does.

    Attributes:
        slots: This rank's tensors; none where it only receives.
        reduction: How tensors are combined, for kinds that are reducing.
        root: The rank that sends or receives alone, for kinds that have one.
        group: The group whose communicator is used.
        tells: The channel of this rank's status; none in a group of one.
        hears: The channels of the other ranks' statuses, in the order of ranks.
        outs: The slots of the results; where a kind has none, they are filled with None.
        node: The graph node of this rank's part.
    """

    form: ClassVar[str] = "{slots}{reduction}{root} @{group}{tells}{hears} -> {outs} #{node}"
    cost: ClassVar[float] = 0.05
    is_rendezvous: ClassVar[bool] = True
    is_reducing: ClassVar[bool] = False
    has_root: ClassVar[bool] = False

    slots: SlotsIfAny
    reduction: Reduction
    root: Root
    group: GroupUsed
    tells: ChannelsWritten
    hears: ChannelsRead
    outs: SlotsMade
    node: NodeNumber

    @property
    def values_in(self) -> tuple[str, ...]:
        """None: its channels carry statuses."""
        return ()

    @property
    def values_out(self) -> tuple[str, ...]:
        """None: its channels carry statuses."""
        return ()


@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Combine the tensors of all ranks, everywhere."""

    is_reducing: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class AllGather(Collective):
    """Put the tensors of all ranks one after another, everywhere."""


@dataclass(frozen=True, slots=True)
class ReduceScatter(Collective):
    """Combine the tensors of all ranks, and give each rank its part of the result."""

    is_reducing: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Broadcast(Collective):
    """Give the root's tensors to all ranks."""

    has_root: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Reduce(Collective):
    """Combine the tensors of all ranks at the root."""

    is_reducing: ClassVar[bool] = True
    has_root: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Gather(Collective):
    """Put the tensors of all ranks one after another at the root."""

    has_root: ClassVar[bool] = True


COLLECTIVES: Final[Mapping[str, type[Collective]]] = {
    kind.word: kind for kind in (AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Gather)
}
"""The collectives by ``CollectiveCall.kind``."""


@dataclass(frozen=True, slots=True)
class Output(Op):
    """Driver, last: these slots are the results of the execution."""

    form: ClassVar[str] = "{slots}"

    slots: SlotsUsed


@dataclass(frozen=True, slots=True)
class Free(Op):
    """Drop values that this execution does not need any more."""

    form: ClassVar[str] = "{slots}"

    slots: SlotsUsed

    def freed(self) -> tuple[int, ...]:
        """Return the slots that are empty after the op."""
        return self.slots
