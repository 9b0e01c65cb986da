# SPDX-License-Identifier: Apache-2.0
"""The types of the fields of ops and of a plan's other records: one for each sort of value.

A field's type says how its value is written in the text form and read back, how it is stored as
JSON, which values are valid, and which slots and channels the value names. A record annotates each
field with its type (``rcg.ir.record``); other code does not need to know the field.

>>> CHANNEL_READ.text("c3"), CHANNEL_READ.channels("c3"), CHANNEL_READ.use
('c3', ('c3',), <Use.IN: 'in'>)
>>> CHANNEL_READ.value(7)
Traceback (most recent call last):
    ...
ValueError: not a plan: 7 is no id of a channel
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Final, Generic, NoReturn, TypeVar

import rcg.checked as checked
from rcg.ir.ids import Const, Operand, Slot, is_id, operand
from rcg.ir.line import Line, name_text

_T = TypeVar("_T")

_LARGEST: Final = 1 << 53
_LONGEST: Final = 100_000


class Use(Enum):
    """What an op does with the slots or channels that a field names."""

    IN = "in"
    """It takes a value from them."""

    OUT = "out"
    """It gives a value to them."""


class FieldType(ABC, Generic[_T]):
    """How one sort of value is written, read and checked.

    Attributes:
        what: The sort for messages: ``id of a channel``.
        use: What an op does with the slots or channels in the value; None if it names neither.
        is_subject: Whether the value is part of an op's displayed name: ``read c3``.
    """

    def __init__(self, what: str, use: Use | None = None, *, is_subject: bool = False) -> None:
        self.what = what
        self.use = use
        self.is_subject = is_subject

    @abstractmethod
    def text(self, value: _T) -> str:
        """Return the value in the text form."""

    @abstractmethod
    def parse(self, line: Line) -> _T:
        """Read the value from the text form.

        Raises:
            ValueError: It is not there.
        """

    def data(self, value: _T) -> object:
        """Return the value as JSON has it."""
        return value

    @abstractmethod
    def value(self, data: object) -> _T:
        """Return the value that was stored as JSON, checked.

        Raises:
            ValueError: It is of another type, or out of range.
        """

    def slots(self, value: _T) -> tuple[int, ...]:
        """Return the slots that the value names."""
        return ()

    def channels(self, value: _T) -> tuple[str, ...]:
        """Return the channels that the value names."""
        return ()

    def constants(self, value: _T) -> tuple[str, ...]:
        """Return the constants and templates that the value names."""
        return ()

    def subject(self, value: _T) -> str:
        """Return the value as a part of an op's name for people; it may be empty."""
        return self.text(value)


class ListType(FieldType[tuple[_T, ...]]):
    """Values of one sort between commas. Several fields may share one list (``rcg.ir.record``)."""

    @abstractmethod
    def items(self, value: tuple[_T, ...]) -> list[str]:
        """Return the text of each value."""

    @abstractmethod
    def try_item(self, line: Line) -> _T | None:
        """Read one value; None if what comes next is of another sort."""

    def text(self, value: tuple[_T, ...]) -> str:
        """Return the values between commas."""
        return ", ".join(self.items(value))

    def parse(self, line: Line) -> tuple[_T, ...]:
        """Read values as long as they follow each other."""
        found = []
        while (item := self.try_item(line)) is not None:
            found.append(item)
            if not line.skip(","):
                break
        return tuple(found)


def refuse(what: str, value: object) -> NoReturn:
    """Raise the ValueError for a value of another sort."""
    raise ValueError(f"not a plan: {checked.found(value)} is no {what}")


def stored_number(what: str, value: object) -> int:
    """Return a value from JSON that must be a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_LARGEST <= value <= _LARGEST:
        refuse(what, value)
    return value


def stored_text(what: str, value: object) -> str:
    """Return a value from JSON that must be a text."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        refuse(what, value)
    return value


def stored_list(what: str, value: object) -> list[Any]:
    """Return a value from JSON that must be a list."""
    if not isinstance(value, list):
        refuse(f"list of {what}", value)
    return value


# --- numbers and slots --------------------------------------------------------------------------


class _Number(FieldType[int]):
    def text(self, value: int) -> str:
        return str(value)

    def parse(self, line: Line) -> int:
        return line.number()

    def value(self, data: object) -> int:
        return stored_number(self.what, data)


class _Numbers(ListType[int]):
    """One number or more."""

    def items(self, value: tuple[int, ...]) -> list[str]:
        return list(map(str, value))

    def try_item(self, line: Line) -> int | None:
        return line.number()

    def value(self, data: object) -> tuple[int, ...]:
        return tuple([stored_number(self.what, each) for each in stored_list(self.what, data)])


class _Slot(_Number):
    def text(self, value: int) -> str:
        return f"s{value}"

    def parse(self, line: Line) -> int:
        return line.slot()

    def slots(self, value: int) -> tuple[int, ...]:
        return (value,)


class _Slots(ListType[int]):
    """One slot or more."""

    def items(self, value: tuple[int, ...]) -> list[str]:
        return [f"s{slot}" for slot in value]

    def try_item(self, line: Line) -> int | None:
        return line.slot()

    def value(self, data: object) -> tuple[int, ...]:
        return tuple([stored_number("slot", each) for each in stored_list(self.what, data)])

    def slots(self, value: tuple[int, ...]) -> tuple[int, ...]:
        return value


class _SlotsIfAny(_Slots):
    """Slots, or nothing."""

    def try_item(self, line: Line) -> int | None:
        found = line.try_take("slot")
        return None if found is None else int(found)


# --- ids ----------------------------------------------------------------------------------------


class _Id(FieldType[str]):
    """An id of a sort, which is a key of ``IDS``."""

    def __init__(self, sort: str, use: Use | None = None, *, is_subject: bool = False) -> None:
        super().__init__(f"id of a {sort}", use, is_subject=is_subject)
        self.sort = sort

    def text(self, value: str) -> str:
        return value

    def parse(self, line: Line) -> str:
        return line.take(self.sort)

    def value(self, data: object) -> str:
        if not is_id(self.sort, data):
            refuse(self.what, data)
        return str(data)


class _Channel(_Id):
    def channels(self, value: str) -> tuple[str, ...]:
        return (value,)


class _Const(_Id):
    def constants(self, value: str) -> tuple[str, ...]:
        return (value,)


class _Ids(FieldType[tuple[str, ...]]):
    """Ids with blanks between, after a word if there is one; without ids, nothing."""

    def __init__(self, what: str, each: _Id, use: Use | None = None, *, word: str = "") -> None:
        super().__init__(what, use)
        self._each = each
        self._word = word

    def text(self, value: tuple[str, ...]) -> str:
        before = f" {self._word} " if self._word else ""
        return f"{before}{' '.join(value)}" if value else ""

    def parse(self, line: Line) -> tuple[str, ...]:
        return line.tokens(self._each.sort) if line.skip(self._word) else ()

    def value(self, data: object) -> tuple[str, ...]:
        return tuple([self._each.value(each) for each in stored_list(self.what, data)])


class _Channels(_Ids):
    def channels(self, value: tuple[str, ...]) -> tuple[str, ...]:
        return value


# --- texts, flags and keys ----------------------------------------------------------------------


class _Text(FieldType[str]):
    """A text.

    Args:
        what: The sort for messages.
        show: Returns the text as it is in the line.
        take: Reads it from the line.
        is_subject: See ``FieldType``.
    """

    def __init__(
        self,
        what: str,
        show: Callable[[str], str],
        take: Callable[[Line], str],
        *,
        is_subject: bool = False,
    ) -> None:
        super().__init__(what, is_subject=is_subject)
        self._show = show
        self._take = take

    def text(self, value: str) -> str:
        return self._show(value)

    def parse(self, line: Line) -> str:
        return self._take(line)

    def value(self, data: object) -> str:
        return stored_text(self.what, data)


def _word(what: str) -> _Text:
    """Return the type of a text that is one word."""
    return _Text(what, str, lambda line: line.take("word"))


class _Optional(FieldType[Any]):
    """A value with something before and after it; for the default, nothing."""

    def __init__(
        self, each: FieldType[Any], before: str, after: str = "", default: str | None = None
    ) -> None:
        super().__init__(each.what)
        self._each = each
        self._before = before
        self._after = after
        self._default = default

    def text(self, value: Any) -> str:
        if value == self._default:
            return ""
        return f"{self._before}{self._each.text(value)}{self._after}"

    def parse(self, line: Line) -> Any:
        if not line.skip(self._before.strip()):
            return self._default
        found = self._each.parse(line)
        if self._after:
            line.expect(self._after)
        return found

    def value(self, data: object) -> Any:
        return self._default if data == self._default else self._each.value(data)


class _Flag(FieldType[bool]):
    """A word, or nothing."""

    def text(self, value: bool) -> str:
        return f" {self.what}" if value else ""

    def parse(self, line: Line) -> bool:
        return line.skip(self.what)

    def value(self, data: object) -> bool:
        if not isinstance(data, bool):
            refuse(self.what, data)
        return data


class _Key(FieldType[int | str | None]):
    """The key of an input: a position, a keyword, or ``*`` for the whole input (None)."""

    def text(self, value: int | str | None) -> str:
        return "*" if value is None else repr(value)

    def parse(self, line: Line) -> int | str | None:
        if line.skip("*"):
            return None
        number = line.try_take("number")
        return line.string() if number is None else int(number)

    def value(self, data: object) -> int | str | None:
        if data is None:
            return None
        if isinstance(data, str):
            return stored_text(self.what, data)
        return stored_number(self.what, data)

    def subject(self, value: int | str | None) -> str:
        return "" if value is None else str(value)


# --- operands -----------------------------------------------------------------------------------


class _Positional(ListType[Operand]):
    """Operands of a call by position."""

    def items(self, value: tuple[Operand, ...]) -> list[str]:
        return list(map(str, value))

    def try_item(self, line: Line) -> Operand | None:
        return operand(line.name())

    def data(self, value: tuple[Operand, ...]) -> object:
        return self.items(value)

    def value(self, data: object) -> tuple[Operand, ...]:
        operands = stored_list(self.what, data)
        return tuple([operand(stored_text("operand", each)) for each in operands])

    def slots(self, value: tuple[Operand, ...]) -> tuple[int, ...]:
        return tuple([each.index for each in value if type(each) is Slot])

    def constants(self, value: tuple[Operand, ...]) -> tuple[str, ...]:
        return tuple([each.id for each in value if type(each) is Const])


class _Keywords(ListType[tuple[str, Operand]]):
    """Operands of a call by keyword."""

    def items(self, value: tuple[tuple[str, Operand], ...]) -> list[str]:
        return [f"{name_text(name)}={each}" for name, each in value]

    def try_item(self, line: Line) -> tuple[str, Operand] | None:
        name = line.try_keyword()
        return None if name is None else (name, operand(line.name()))

    def data(self, value: tuple[tuple[str, Operand], ...]) -> object:
        return [[name, str(each)] for name, each in value]

    def value(self, data: object) -> tuple[tuple[str, Operand], ...]:
        found = []
        for pair in stored_list(self.what, data):
            if not isinstance(pair, list) or len(pair) != 2:
                refuse(self.what, pair)
            name, each = pair
            found.append((stored_text("argument", name), operand(stored_text("operand", each))))
        return tuple(found)

    def slots(self, value: tuple[tuple[str, Operand], ...]) -> tuple[int, ...]:
        return tuple([each.index for _, each in value if type(each) is Slot])

    def constants(self, value: tuple[tuple[str, Operand], ...]) -> tuple[str, ...]:
        return tuple([each.id for _, each in value if type(each) is Const])


# --- the types, as annotations ------------------------------------------------------------------

_PROCESS: Final = _Id("process")
_CHANNEL: Final = _Id("channel")
_GROUP: Final = _Id("group")
CHANNEL_READ: Final = _Channel("channel", Use.IN, is_subject=True)

SlotMade = Annotated[int, _Slot("slot", Use.OUT)]
SlotUsed = Annotated[int, _Slot("slot", Use.IN)]
SlotsUsed = Annotated[tuple[int, ...], _Slots("slots", Use.IN)]
SlotsMade = Annotated[tuple[int, ...], _Slots("slots", Use.OUT)]
SlotsIfAny = Annotated[tuple[int, ...], _SlotsIfAny("slots", Use.IN)]
ChannelRead = Annotated[str, CHANNEL_READ]
ChannelWritten = Annotated[str, _Channel("channel", Use.OUT, is_subject=True)]
ChannelPassed = Annotated[str, _Id("channel", is_subject=True)]
"""Neither read nor written: an op that passes its frames on takes no value and makes none."""
ChannelsRead = Annotated[tuple[str, ...], _Channels("channels", _CHANNEL, Use.IN, word="hears")]
ChannelsWritten = Annotated[tuple[str, ...], _Channels("channels", _CHANNEL, Use.OUT, word="tells")]
Positional = Annotated[tuple[Operand, ...], _Positional("operands", Use.IN)]
Keywords = Annotated[tuple[tuple[str, Operand], ...], _Keywords("named operands", Use.IN)]
TemplateId = Annotated[str, _Const("const", is_subject=True)]
InputKey = Annotated[int | str | None, _Key("key of an input", is_subject=True)]
MethodName = Annotated[str, _Text("method", name_text, Line.name, is_subject=True)]
NodeNumber = Annotated[int, _Number("node of the graph")]
NodeNumbers = Annotated[tuple[int, ...], _Numbers("node of the graph")]
Reduction = Annotated[str | None, _Optional(_word("reduction"), " (", ")")]
Root = Annotated[int | None, _Optional(_Number("root of a collective"), " root ")]
GroupUsed = Annotated[str, _Id("group", is_subject=True)]

ActorId = Annotated[str, _Id("actor")]
NodeId = Annotated[str, _Id("node")]
LaneId = Annotated[str, _Id("lane")]
GateId = Annotated[str, _Id("gate")]
ProcessId = Annotated[str, _PROCESS]
ProcessIds = Annotated[tuple[str, ...], _Ids("processes", _PROCESS)]
ChannelId = Annotated[str, _CHANNEL]
ChannelKind = Annotated[str, _word("kind of a channel")]
SlotCount = Annotated[int, _Number("number of slots")]
Device = Annotated[str, _Optional(_word("device"), " device=", default="default")]
IsStatic = Annotated[bool, _Flag("static")]
IsDirect = Annotated[bool, _Flag("direct")]
GroupId = Annotated[str, _GROUP]
OptionalGroup = Annotated[str | None, _Optional(_GROUP, " @")]
Backend = Annotated[str, _Text("backend of a group", name_text, Line.name)]
CommunicatorId = Annotated[str | None, _Optional(_Id("const"), " by ")]
CostKind = Annotated[str, _word("kind of a cost")]
Nanoseconds = Annotated[int, _Number("time in nanoseconds")]
Quoted = Annotated[str, _Text("text", repr, Line.string)]
