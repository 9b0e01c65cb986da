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

from typing import Annotated, Final

from rcg.ir.field_type import (
    FieldType,
    ListType,
    Use,
    refuse,
    stored_list,
    stored_number,
    stored_text,
)
from rcg.ir.ids import Const, Operand, Slot, is_id, operand
from rcg.ir.line import Line, name_text


class _Number(FieldType[int]):
    def text(self, value: int) -> str:
        return str(value)

    def parse(self, line: Line) -> int:
        return line.number()

    def value(self, data: object) -> int:
        return stored_number(self.what, data)


class _Slot(FieldType[int]):
    def text(self, value: int) -> str:
        return f"s{value}"

    def parse(self, line: Line) -> int:
        return line.slot()

    def value(self, data: object) -> int:
        return stored_number(self.what, data)

    def slots(self, value: int) -> tuple[int, ...]:
        return (value,)


class _Numbers(ListType[int]):
    """One number or more."""

    def items(self, value: tuple[int, ...]) -> list[str]:
        return list(map(str, value))

    def try_item(self, line: Line) -> int | None:
        return line.number()

    def value(self, data: object) -> tuple[int, ...]:
        return tuple([stored_number(self.what, each) for each in stored_list(self.what, data)])


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


class _Id(FieldType[str]):
    """An id of a sort, which is a key of ``IDS``."""

    def __init__(self, sort: str, use: Use | None = None, *, is_subject: bool = False) -> None:
        super().__init__(f"id of a {sort}", use, is_subject=is_subject)
        self._sort = sort

    def text(self, value: str) -> str:
        return value

    def parse(self, line: Line) -> str:
        return line.take(self._sort)

    def value(self, data: object) -> str:
        if not is_id(self._sort, data):
            refuse(self.what, data)
        return str(data)


class _Channel(_Id):
    def channels(self, value: str) -> tuple[str, ...]:
        return (value,)


class _Const(_Id):
    def constants(self, value: str) -> tuple[str, ...]:
        return (value,)


class _Processes(FieldType[tuple[str, ...]]):
    """Processes with blanks between; there may be none."""

    def text(self, value: tuple[str, ...]) -> str:
        return " ".join(value)

    def parse(self, line: Line) -> tuple[str, ...]:
        return line.tokens("process")

    def value(self, data: object) -> tuple[str, ...]:
        return tuple([_PROCESS.value(each) for each in stored_list(self.what, data)])


class _Group(FieldType[str | None]):
    """A group after an ``@``, or nothing."""

    def text(self, value: str | None) -> str:
        return "" if value is None else f" @{value}"

    def parse(self, line: Line) -> str | None:
        return line.take("group") if line.skip("@") else None

    def value(self, data: object) -> str | None:
        return None if data is None else _GROUP.value(data)


class _OptionalConst(FieldType[str | None]):
    """A constant of the bindings after a word, or nothing."""

    def __init__(self, what: str, word: str) -> None:
        super().__init__(what)
        self._word = word

    def text(self, value: str | None) -> str:
        return "" if value is None else f" {self._word} {value}"

    def parse(self, line: Line) -> str | None:
        return line.take("const") if line.skip(self._word) else None

    def value(self, data: object) -> str | None:
        return None if data is None else _CONST.value(data)

    def constants(self, value: str | None) -> tuple[str, ...]:
        return () if value is None else (value,)


class _Device(FieldType[str]):
    """``device=cuda``, or nothing for the default."""

    def text(self, value: str) -> str:
        return "" if value == "default" else f" device={value}"

    def parse(self, line: Line) -> str:
        return line.take("word") if line.skip("device=") else "default"

    def value(self, data: object) -> str:
        return stored_text(self.what, data)


class _Flag(FieldType[bool]):
    """A word, or nothing."""

    def __init__(self, word: str) -> None:
        super().__init__(word)

    def text(self, value: bool) -> str:
        return f" {self.what}" if value else ""

    def parse(self, line: Line) -> bool:
        return line.skip(self.what)

    def value(self, data: object) -> bool:
        if not isinstance(data, bool):
            refuse(self.what, data)
        return data


class _OptionalNumber(FieldType[int | None]):
    """A number after a word, or nothing."""

    def __init__(self, what: str, word: str) -> None:
        super().__init__(what)
        self._word = word

    def text(self, value: int | None) -> str:
        return "" if value is None else f" {self._word} {value}"

    def parse(self, line: Line) -> int | None:
        return line.number() if line.skip(self._word) else None

    def value(self, data: object) -> int | None:
        return None if data is None else stored_number(self.what, data)


class _OptionalWord(FieldType[str | None]):
    """A word in parentheses, or nothing."""

    def text(self, value: str | None) -> str:
        return "" if value is None else f" ({value})"

    def parse(self, line: Line) -> str | None:
        if not line.skip("("):
            return None
        found = line.take("word")
        line.expect(")")
        return found

    def value(self, data: object) -> str | None:
        return None if data is None else stored_text(self.what, data)


class _Channels(FieldType[tuple[str, ...]]):
    """Channels with blanks between, after a word; without them, nothing."""

    def __init__(self, what: str, use: Use, word: str) -> None:
        super().__init__(what, use)
        self._word = word

    def text(self, value: tuple[str, ...]) -> str:
        return f" {self._word} {' '.join(value)}" if value else ""

    def parse(self, line: Line) -> tuple[str, ...]:
        return line.tokens("channel") if line.skip(self._word) else ()

    def value(self, data: object) -> tuple[str, ...]:
        return tuple([_CHANNEL.value(each) for each in stored_list(self.what, data)])

    def channels(self, value: tuple[str, ...]) -> tuple[str, ...]:
        return value


class _SlotsIfAny(ListType[int]):
    """Slots, or nothing."""

    def items(self, value: tuple[int, ...]) -> list[str]:
        return [f"s{slot}" for slot in value]

    def try_item(self, line: Line) -> int | None:
        found = line.try_take("slot")
        return None if found is None else int(found)

    def value(self, data: object) -> tuple[int, ...]:
        return tuple([stored_number("slot", each) for each in stored_list(self.what, data)])

    def slots(self, value: tuple[int, ...]) -> tuple[int, ...]:
        return value


class _Word(FieldType[str]):
    def text(self, value: str) -> str:
        return value

    def parse(self, line: Line) -> str:
        return line.take("word")

    def value(self, data: object) -> str:
        return stored_text(self.what, data)


class _Name(FieldType[str]):
    """A user's name: plain where it can be, else quoted."""

    def text(self, value: str) -> str:
        return name_text(value)

    def parse(self, line: Line) -> str:
        return line.name()

    def value(self, data: object) -> str:
        return stored_text(self.what, data)


class _Quoted(FieldType[str]):
    def text(self, value: str) -> str:
        return repr(value)

    def parse(self, line: Line) -> str:
        return line.string()

    def value(self, data: object) -> str:
        return stored_text(self.what, data)


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


_PROCESS: Final = _Id("process")
_CHANNEL: Final = _Id("channel")
_CONST: Final = _Id("const")
_GROUP: Final = _Id("group")
CHANNEL_READ: Final = _Channel("channel", Use.IN, is_subject=True)

# --- the types, as annotations ------------------------------------------------------------------

SlotMade = Annotated[int, _Slot("slot", Use.OUT)]
SlotUsed = Annotated[int, _Slot("slot", Use.IN)]
SlotsUsed = Annotated[tuple[int, ...], _Slots("slots", Use.IN)]
SlotsMade = Annotated[tuple[int, ...], _Slots("slots", Use.OUT)]
ChannelRead = Annotated[str, CHANNEL_READ]
ChannelWritten = Annotated[str, _Channel("channel", Use.OUT, is_subject=True)]
ChannelPassed = Annotated[str, _Id("channel", is_subject=True)]
"""Neither read nor written: an op that passes its frames on takes no value and makes none."""
Positional = Annotated[tuple[Operand, ...], _Positional("operands", Use.IN)]
Keywords = Annotated[tuple[tuple[str, Operand], ...], _Keywords("named operands", Use.IN)]
TemplateId = Annotated[str, _Const("const", is_subject=True)]
InputKey = Annotated[int | str | None, _Key("key of an input", is_subject=True)]
MethodName = Annotated[str, _Name("method", is_subject=True)]
NodeNumber = Annotated[int, _Number("node of the graph")]
NodeNumbers = Annotated[tuple[int, ...], _Numbers("node of the graph")]

ActorId = Annotated[str, _Id("actor")]
NodeId = Annotated[str, _Id("node")]
LaneId = Annotated[str, _Id("lane")]
GateId = Annotated[str, _Id("gate")]
ProcessId = Annotated[str, _PROCESS]
ProcessIds = Annotated[tuple[str, ...], _Processes("processes")]
ChannelId = Annotated[str, _Id("channel")]
ChannelsRead = Annotated[tuple[str, ...], _Channels("channels", Use.IN, "hears")]
ChannelsWritten = Annotated[tuple[str, ...], _Channels("channels", Use.OUT, "tells")]
SlotsIfAny = Annotated[tuple[int, ...], _SlotsIfAny("slots", Use.IN)]
Reduction = Annotated[str | None, _OptionalWord("reduction", is_subject=False)]
Root = Annotated[int | None, _OptionalNumber("root of a collective", "root")]
GroupUsed = Annotated[str, _Id("group", is_subject=True)]
Device = Annotated[str, _Device("device")]
IsStatic = Annotated[bool, _Flag("static")]
IsDirect = Annotated[bool, _Flag("direct")]
CommunicatorId = Annotated[str | None, _OptionalConst("communicator", "by")]
ChannelKind = Annotated[str, _Word("kind of a channel")]
SlotCount = Annotated[int, _Number("number of slots")]
CostKind = Annotated[str, _Word("kind of a cost")]
Nanoseconds = Annotated[int, _Number("time in nanoseconds")]
GroupId = Annotated[str, _GROUP]
OptionalGroup = Annotated[str | None, _Group("group")]
Backend = Annotated[str, _Name("backend of a group")]
Quoted = Annotated[str, _Quoted("text")]
