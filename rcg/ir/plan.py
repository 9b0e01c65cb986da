# SPDX-License-Identifier: Apache-2.0
r"""The plan: one straight-line program per process, and the channels between them, as plain data.

A plan is what the compiler makes from a graph and what the runtime, the views and a person read.
It holds ids only: actors (``a0``), constants and templates (``k3``), channels (``c2``);
``Bindings`` is the table from ids to objects and is kept beside it. Slots (``s1``) are registers of
one program: an edge inside one actor is a slot and needs no channel. A plan prints as text, parses
back, and travels as JSON. This room must know neither Ray, nor torch, nor how plans are made or
run.

>>> plan = Plan.from_text('''
... plan positional=1 keywords=[] returns=one
... actor a0 'Stage' ''
... channel c0 driver -> a0 ring node=0 slots=10
... channel c1 a0 -> driver ring node=1 slots=10
... reach driver <- driver a0
... reach a0 <- driver a0
... program driver
...   Input * -> s0
...   Write s0 -> c0
...   Free s0
...   Read c1 -> s1
...   Output s1
... program a0
...   Read c0 -> s0
...   Call a0.fwd(s0, k0, scale=k1) -> s1 #1
...   Free s0
...   Write s1 -> c1
...   Free s1
... ''')
>>> plan.check()
>>> print(plan.programs[1].ops[1])
Call a0.fwd(s0, k0, scale=k1) -> s1 #1
>>> Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())
True
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, cast

import rcg.checked as checked
from rcg.display import Displayed
from rcg.errors import InternalError
from rcg.ir.graph import ActorSpec

__all__ = [
    "DRIVER",
    "ActorSpec",
    "Bindings",
    "Build",
    "Call",
    "ChannelSpec",
    "Const",
    "Free",
    "Input",
    "Op",
    "Output",
    "Plan",
    "Program",
    "Read",
    "Slot",
    "Write",
    "reach_over",
]

DRIVER: Final = "driver"


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument that is in a slot."""

    index: int

    def __str__(self) -> str:
        return f"s{self.index}"


@dataclass(frozen=True, slots=True)
class Const:
    """An argument that is a constant of the bindings."""

    id: str

    def __str__(self) -> str:
        return self.id


# --- ops ----------------------------------------------------------------------------------------
# Each says which slots it uses and which it makes; str() of each is its line in the text form.


@dataclass(frozen=True, slots=True)
class Input:
    """Driver: take an argument of this execution; key None is the one whole input."""

    key: int | str | None
    out: int

    def used(self) -> tuple[int, ...]:
        """Return the slots that the op reads."""
        return ()

    def made(self) -> tuple[int, ...]:
        """Return the slots that the op fills."""
        return (self.out,)

    def __str__(self) -> str:
        return f"Input {'*' if self.key is None else repr(self.key)} -> s{self.out}"


@dataclass(frozen=True, slots=True)
class Read:
    """Wait for this execution's frame of a channel."""

    channel: str
    out: int

    def used(self) -> tuple[int, ...]:
        """Return the slots that the op reads."""
        return ()

    def made(self) -> tuple[int, ...]:
        """Return the slots that the op fills."""
        return (self.out,)

    def __str__(self) -> str:
        return f"Read {self.channel} -> s{self.out}"


@dataclass(frozen=True, slots=True)
class Build:
    """Fill the holes of a template, making a new container."""

    template: str
    slots: tuple[int, ...]
    out: int

    def used(self) -> tuple[int, ...]:
        """Return the slots that the op reads."""
        return self.slots

    def made(self) -> tuple[int, ...]:
        """Return the slots that the op fills."""
        return (self.out,)

    def __str__(self) -> str:
        return f"Build {self.template}({_slots(self.slots)}) -> s{self.out}"


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the actor. Several ``outs`` take its several return values apart.

    ``node`` is the graph node that the call stands for.
    """

    actor: str
    method: str
    args: tuple[Slot | Const, ...]
    kwargs: tuple[tuple[str, Slot | Const], ...]
    outs: tuple[int, ...]
    node: int

    def used(self) -> tuple[int, ...]:
        """Return the slots that the op reads."""
        return tuple(
            argument.index
            for argument in (*self.args, *(argument for _, argument in self.kwargs))
            if isinstance(argument, Slot)
        )

    def made(self) -> tuple[int, ...]:
        """Return the slots that the op fills."""
        return self.outs

    def __str__(self) -> str:
        arguments = [str(argument) for argument in self.args]
        arguments += [f"{_name(name)}={argument}" for name, argument in self.kwargs]
        call = f"{self.actor}.{_name(self.method)}({', '.join(arguments)})"
        return f"Call {call} -> {_slots(self.outs)} #{self.node}"


@dataclass(frozen=True, slots=True)
class Write:
    """Send a slot's value to all readers of a channel; waits for room."""

    slot: int
    channel: str

    def used(self) -> tuple[int, ...]:
        """Return the slots that the op reads."""
        return (self.slot,)

    def made(self) -> tuple[int, ...]:
        """Return the slots that the op fills."""
        return ()

    def __str__(self) -> str:
        return f"Write s{self.slot} -> {self.channel}"


@dataclass(frozen=True, slots=True)
class Output:
    """Driver, last: these slots are the results of the execution."""

    slots: tuple[int, ...]

    def used(self) -> tuple[int, ...]:
        """Return the slots that the op reads."""
        return self.slots

    def made(self) -> tuple[int, ...]:
        """Return the slots that the op fills."""
        return ()

    def __str__(self) -> str:
        return f"Output {_slots(self.slots)}"


@dataclass(frozen=True, slots=True)
class Free:
    """Drop values that this execution does not need any more."""

    slots: tuple[int, ...]

    def used(self) -> tuple[int, ...]:
        """Return the slots that the op reads."""
        return self.slots

    def made(self) -> tuple[int, ...]:
        """Return the slots that the op fills."""
        return ()

    def __str__(self) -> str:
        return f"Free {_slots(self.slots)}"


Op = Input | Read | Build | Call | Write | Output | Free


# --- the plan -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """One value's way from the process that makes it to all others that use it.

    Attributes:
        id: ``c0``, ``c1``, ...
        writer: The process that writes it, once per execution.
        readers: The processes that read it, each once per execution; the driver first, then
            actors by number.
        kind: How it is carried; ``ring`` is shared memory.
        node: The graph node whose value it carries.
        slots: How many frames it holds before a write waits.
    """

    id: str
    writer: str
    readers: tuple[str, ...]
    kind: str
    node: int
    slots: int

    def __str__(self) -> str:
        readers = " ".join(self.readers)
        return (
            f"channel {self.id} {self.writer} -> {readers} {self.kind} "
            f"node={self.node} slots={self.slots}"
        )


@dataclass(frozen=True, slots=True)
class Program:
    """What one process does in every execution, in order."""

    process: str
    ops: tuple[Op, ...]

    def __str__(self) -> str:
        return "\n".join([f"program {self.process}", *(f"  {op}" for op in self.ops)])


@dataclass(frozen=True, slots=True)
class Plan(Displayed):
    """The programs of all processes and what is between them.

    Attributes:
        programs: The driver's first, then one per actor in the order of ``actors``.
        channels: All channels.
        actors: The actors, ``a0`` first.
        is_multi: Whether an execution returns a list.
        num_positional: How many positional arguments an execution takes.
        keywords: Which keyword arguments an execution takes.
        reach: For each process the processes whose shared memory may arrive there, directly or
            forwarded or kept and returned later; itself too where values can come back.
    """

    programs: tuple[Program, ...]
    channels: tuple[ChannelSpec, ...]
    actors: tuple[ActorSpec, ...]
    is_multi: bool
    num_positional: int
    keywords: tuple[str, ...]
    reach: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def groups(self) -> tuple[()]:
        """The communicator groups; there are none until collectives exist."""
        return ()

    def program(self, process: str) -> Program:
        """Return the program of a process.

        Raises:
            KeyError: The plan has no such process.
        """
        for program in self.programs:
            if program.process == process:
                return program
        raise KeyError(process)

    def channels_by_id(self) -> dict[str, ChannelSpec]:
        """Return the channels by their ids."""
        return {channel.id: channel for channel in self.channels}

    def label(self, process: str) -> str:
        """Return a process's name for people: ``a0 (Stage)``."""
        for actor in self.actors:
            if actor.id == process:
                return f"{process} ({actor.label})"
        return process

    def check(self) -> None:
        """Check the plan against its specification; run between compiler passes.

        Raises:
            InternalError: The plan breaks a rule that the runtime relies on.
        """
        _Checker(self).run()

    # Text

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Return the plan as text that ``from_text`` reads back, one line per op."""
        returns = "list" if self.is_multi else "one"
        lines = [
            f"plan positional={self.num_positional} keywords={list(self.keywords)} "
            f"returns={returns}"
        ]
        lines += [f"actor {actor.id} {actor.label!r} {actor.key!r}" for actor in self.actors]
        lines += [str(channel) for channel in self.channels]
        lines += [f"reach {process} <- {' '.join(sources)}" for process, sources in self.reach]
        lines += [str(program) for program in self.programs]
        return "\n".join(lines)

    @classmethod
    def from_text(cls, text: str) -> Plan:
        """Read a plan from its text. Blank lines, indentation and trailing blanks do not matter.

        Raises:
            ValueError: A line is not understood; the text gives its number.
        """
        return _parse_plan(text)

    # JSON

    def to_json(self) -> str:
        """Return the plan as JSON: every dataclass an object, every op with its name as ``op``."""
        data = {
            "version": _JSON_VERSION,
            "programs": [
                {"process": program.process, "ops": [_op_to_data(op) for op in program.ops]}
                for program in self.programs
            ],
            "channels": [
                {
                    "id": channel.id,
                    "writer": channel.writer,
                    "readers": channel.readers,
                    "kind": channel.kind,
                    "node": channel.node,
                    "slots": channel.slots,
                }
                for channel in self.channels
            ],
            "actors": [
                {"id": actor.id, "label": actor.label, "key": actor.key} for actor in self.actors
            ],
            "is_multi": self.is_multi,
            "num_positional": self.num_positional,
            "keywords": self.keywords,
            "reach": self.reach,
        }
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from its JSON.

        Raises:
            ValueError: It is not JSON, or not a plan of this version. Whether the plan makes sense
                says ``check``.
        """
        data = checked.parse(text)
        version = data.get("version") if isinstance(data, dict) else None
        if version != _JSON_VERSION or isinstance(version, bool):
            raise ValueError(
                f"not a plan of version {_JSON_VERSION}: found version {checked.found(version)}"
            )
        try:
            plan = cls(
                programs=tuple(
                    Program(
                        program["process"], tuple(_op_from_data(item) for item in program["ops"])
                    )
                    for program in data["programs"]
                ),
                channels=tuple(
                    ChannelSpec(**{**channel, "readers": tuple(channel["readers"])})
                    for channel in data["channels"]
                ),
                actors=tuple(ActorSpec(**actor) for actor in data["actors"]),
                is_multi=data["is_multi"],
                num_positional=data["num_positional"],
                keywords=tuple(data["keywords"]),
                reach=tuple((process, tuple(sources)) for process, sources in data["reach"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a plan: {type(error).__name__}: {error}") from error
        _check_types(plan)
        return plan


@dataclass(slots=True)
class Bindings:
    """The objects that a plan names by id: Ray actor handles, constants and templates."""

    actors: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)


def reach_over(
    processes: Sequence[str], channels: Iterable[ChannelSpec]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return, for each process, the processes whose memory may arrive there over the channels.

    The transitive closure, because a process may send on a buffer that it was given, in this
    execution or a later one. Warshall's algorithm on bit sets.

    >>> there = ChannelSpec("c0", "driver", ("a0",), "ring", 0, 1)
    >>> back = ChannelSpec("c1", "a0", ("driver",), "ring", 1, 1)
    >>> reach_over(["driver", "a0"], [there])
    (('driver', ()), ('a0', ('driver',)))
    >>> reach_over(["driver", "a0"], [there, back])
    (('driver', ('driver', 'a0')), ('a0', ('driver', 'a0')))
    """
    number = {process: position for position, process in enumerate(processes)}
    sources = [0] * len(processes)
    for channel in channels:
        for reader in channel.readers:
            sources[number[reader]] |= 1 << number[channel.writer]
    for middle in range(len(processes)):
        for target in range(len(processes)):
            if sources[target] >> middle & 1:
                sources[target] |= sources[middle]
    return tuple(
        (
            process,
            tuple(other for other in processes if sources[number[process]] >> number[other] & 1),
        )
        for process in processes
    )


# --- check --------------------------------------------------------------------------------------

_LIVE, _FREED = 1, 2


class _Checker:
    """The rules that the runtime relies on."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._channels = plan.channels_by_id()
        self._reads: set[tuple[str, str]] = set()
        self._written: set[str] = set()
        self._called: set[int] = set()

    def run(self) -> None:
        plan = self._plan
        self._check_processes()
        self._check_channels()
        for program in plan.programs:
            self._check_program(program)
        for channel in plan.channels:
            if channel.id not in self._written:
                self._fail(f"{channel.writer} never writes {channel.id}")
            for reader in channel.readers:
                if (channel.id, reader) not in self._reads:
                    self._fail(f"{reader} is a reader of {channel.id} but never reads it")
        self._check_inputs()
        processes = [program.process for program in plan.programs]
        if plan.reach != reach_over(processes, plan.channels):
            self._fail("the reach of the plan does not follow from its channels")

    def _fail(self, text: str, process: str | None = None, op: Op | None = None) -> NoReturn:
        raise InternalError(f"a plan breaks its rules: {text}", process=process, op=op)

    def _check_processes(self) -> None:
        plan = self._plan
        for position, actor in enumerate(plan.actors):
            if actor.id != f"a{position}":
                self._fail(f"actor {position} has the id {actor.id!r}")
        expected = [DRIVER, *(actor.id for actor in plan.actors)]
        found = [program.process for program in plan.programs]
        if found != expected:
            self._fail(f"the programs are those of {found}, they must be those of {expected}")

    def _check_channels(self) -> None:
        plan = self._plan
        if len(self._channels) != len(plan.channels):
            self._fail("two channels have the same id")
        processes = {program.process for program in plan.programs}
        for channel in plan.channels:
            ends = {channel.writer, *channel.readers}
            if not ends <= processes:
                self._fail(f"{channel.id} has an end at {sorted(ends - processes)}, not a process")
            if not channel.readers or len(ends) != len(channel.readers) + 1:
                self._fail(f"{channel.id} must have readers, each once, and not its own writer")
            if channel.slots < 1:
                self._fail(f"{channel.id} has {channel.slots} slots, it needs at least 1")
            if channel.kind != "ring":
                self._fail(f"{channel.id} is of the unknown kind {channel.kind!r}")

    def _check_program(self, program: Program) -> None:
        process, ops = program.process, program.ops
        state: dict[int, int] = {}
        received: set[int] = set()
        has_read = False
        for position, op in enumerate(ops):
            for slot in op.used():
                if state.get(slot) != _LIVE:
                    when = "after it was freed" if slot in state else "before it is filled"
                    self._fail(f"s{slot} is used {when}", process, op)
            for slot in op.made():
                if slot in state:
                    self._fail(f"s{slot} is filled twice", process, op)
                state[slot] = _LIVE
            match op:
                case Free(slots=slots):
                    if len(set(slots)) != len(slots):
                        self._fail("a slot is freed twice", process, op)
                    state.update(dict.fromkeys(slots, _FREED))
                case Read(channel=channel, out=out):
                    has_read = True
                    received.add(out)
                    if process not in self._known(channel, process, op).readers:
                        self._fail(f"{process} is not a reader of {channel}", process, op)
                    if (channel, process) in self._reads:
                        self._fail(f"{channel} is read twice in one execution", process, op)
                    self._reads.add((channel, process))
                case Write(channel=channel, slot=slot):
                    if process == DRIVER and slot in received:
                        self._fail("the driver sends inputs only", process, op)
                    if process != self._known(channel, process, op).writer:
                        self._fail(f"{process} is not the writer of {channel}", process, op)
                    if channel in self._written:
                        self._fail(f"{channel} is written twice in one execution", process, op)
                    self._written.add(channel)
                case Call(actor=actor, node=node, outs=outs):
                    if actor != process or not outs or node in self._called:
                        self._fail("a call is in its own actor's program, once", process, op)
                    self._called.add(node)
                case Input():
                    if process != DRIVER:
                        self._fail("only the driver takes inputs", process, op)
                case Output():
                    if process != DRIVER or position != len(ops) - 1:
                        self._fail("an output is the last op of the driver", process, op)
                case Build():
                    pass
        if process == DRIVER:
            self._check_last(ops)
        elif not has_read:
            self._fail(f"{process} reads nothing, so nothing would ever hold its loop", process)

    def _known(self, channel: str, process: str, op: Op) -> ChannelSpec:
        spec = self._channels.get(channel)
        if spec is None:
            self._fail(f"there is no channel {channel}", process, op)
        return spec

    def _check_last(self, ops: tuple[Op, ...]) -> None:
        if not ops or not isinstance(ops[-1], Output):
            self._fail("the driver's last op must be its output", DRIVER)
        count = len(ops[-1].slots)
        if count == 0 or (count != 1 and not self._plan.is_multi):
            self._fail(f"{count} outputs are listed", DRIVER, ops[-1])

    def _check_inputs(self) -> None:
        plan = self._plan
        keys = [op.key for op in plan.programs[0].ops if isinstance(op, Input)]
        if not keys or len(set(keys)) != len(keys):
            self._fail(f"the driver must take inputs, each once, it takes {keys}", DRIVER)
        if None in keys:
            is_right = len(keys) == 1 and plan.num_positional == 1 and not plan.keywords
        else:
            needed = max((key + 1 for key in keys if isinstance(key, int)), default=0)
            names = {key for key in keys if isinstance(key, str)}
            is_right = plan.num_positional == needed and set(plan.keywords) == names
        if not is_right:
            self._fail(
                f"the driver takes the inputs {keys}, declared are {plan.num_positional} "
                f"positional and {list(plan.keywords)}",
                DRIVER,
            )


# --- text ---------------------------------------------------------------------------------------

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def _name(name: str) -> str:
    """A method or keyword as it is where it is a plain name, quoted where it is not."""
    return name if _PLAIN_NAME.fullmatch(name) else repr(name)


def _slots(slots: Iterable[int]) -> str:
    return ", ".join([f"s{slot}" for slot in slots])


class _Line:
    """Reads one line from left to right."""

    _PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
        "word": re.compile(r"[a-zA-Z]+"),
        "number": re.compile(r"-?\d+", re.ASCII),
        "slot": re.compile(r"s(\d+)", re.ASCII),
        "const": re.compile(r"k\d+", re.ASCII),
        "channel": re.compile(r"c\d+", re.ASCII),
        "actor": re.compile(r"a\d+", re.ASCII),
        "process": re.compile(r"driver|a\d+", re.ASCII),
        "name": _PLAIN_NAME,
        "quoted": re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""),
        "names": re.compile(r"""\[(?:[^\]'"]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*\]"""),
    }

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self._at = 0

    def is_at_end(self) -> bool:
        return self._at == len(self.text)

    def skip(self, literal: str) -> bool:
        """Pass over blanks and then the literal, if it is there."""
        start = self._at
        while self.text.startswith(" ", start):
            start += 1
        if not self.text.startswith(literal, start):
            return False
        self._at = start + len(literal)
        return True

    def expect(self, literal: str) -> None:
        if not self.skip(literal):
            self._refuse(repr(literal))

    def try_take(self, kind: str) -> str | None:
        self.skip("")
        match = self._PATTERNS[kind].match(self.text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[match.lastindex or 0]

    def take(self, kind: str) -> str:
        found = self.try_take(kind)
        if found is None:
            self._refuse(f"a {kind}")
        return found

    def number(self) -> int:
        return int(self.take("number"))

    def slot(self) -> int:
        return int(self.take("slot"))

    def string(self) -> str:
        return cast("str", ast.literal_eval(self.take("quoted")))

    def name(self) -> str:
        """A plain or a quoted name."""
        return self.try_take("name") or self.string()

    def slots(self) -> tuple[int, ...]:
        """One slot or more, between commas."""
        found = [self.slot()]
        while self.skip(","):
            found.append(self.slot())
        return tuple(found)

    def words(self, kind: str) -> tuple[str, ...]:
        """Any number of tokens of a kind."""
        found = []
        while (token := self.try_take(kind)) is not None:
            found.append(token)
        return tuple(found)

    def end(self) -> None:
        self.skip("")
        if not self.is_at_end():
            self._refuse("the end of the line")

    def _refuse(self, wanted: str) -> NoReturn:
        raise ValueError(f"expected {wanted} at column {self._at + 1} of {self.text!r}")


def _parse_op(line: _Line) -> Op:
    match line.take("word"):
        case "Input":
            key: int | str | None = None
            if not line.skip("*"):
                number = line.try_take("number")
                key = line.string() if number is None else int(number)
            line.expect("->")
            return Input(key, line.slot())
        case "Read":
            channel = line.take("channel")
            line.expect("->")
            return Read(channel, line.slot())
        case "Build":
            template = line.take("const")
            line.expect("(")
            slots = line.slots()
            line.expect(")")
            line.expect("->")
            return Build(template, slots, line.slot())
        case "Call":
            return _parse_call(line)
        case "Write":
            slot = line.slot()
            line.expect("->")
            return Write(slot, line.take("channel"))
        case "Output":
            return Output(line.slots())
        case "Free":
            return Free(line.slots())
        case word:
            raise ValueError(f"there is no op {word!r}")


def _parse_call(line: _Line) -> Call:
    actor = line.take("actor")
    line.expect(".")
    method = line.name()
    line.expect("(")
    args: list[Slot | Const] = []
    kwargs: list[tuple[str, Slot | Const]] = []
    while not line.skip(")"):
        if args or kwargs:
            line.expect(",")
        name = line.name()
        if line.skip("="):
            kwargs.append((name, _parse_argument(line.name())))
        else:
            args.append(_parse_argument(name))
    line.expect("->")
    outs = line.slots()
    line.expect("#")
    return Call(actor, method, tuple(args), tuple(kwargs), outs, line.number())


def _parse_argument(text: str) -> Slot | Const:
    if re.fullmatch(r"s\d{1,16}", text, re.ASCII):
        return Slot(int(text[1:]))
    if re.fullmatch(r"k\d{1,16}", text, re.ASCII):
        return Const(text)
    raise ValueError(f"{text!r} is neither a slot nor a constant")


@dataclass(slots=True)
class _Draft:
    """What has been read of a plan so far."""

    head: tuple[int, tuple[str, ...], bool] | None = None
    actors: list[ActorSpec] = field(default_factory=list)
    channels: list[ChannelSpec] = field(default_factory=list)
    reach: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    programs: list[tuple[str, list[Op]]] = field(default_factory=list)

    def add(self, line: _Line) -> None:
        if line.text.partition(" ")[0] not in ("plan", "actor", "channel", "reach", "program"):
            if not self.programs:
                raise ValueError(f"{line.text!r} comes before any program")
            self.programs[-1][1].append(_parse_op(line))
            line.end()
            return
        match line.take("word"):
            case "plan":
                self.head = _parse_head(line)
            case "actor":
                self.actors.append(ActorSpec(line.take("actor"), line.string(), line.string()))
            case "channel":
                self.channels.append(_parse_channel(line))
            case "reach":
                process = line.take("process")
                line.expect("<-")
                self.reach.append((process, line.words("process")))
            case _:
                self.programs.append((line.take("process"), []))
        line.end()


def _parse_head(line: _Line) -> tuple[int, tuple[str, ...], bool]:
    line.expect("positional=")
    positional = line.number()
    line.expect("keywords=")
    keywords = ast.literal_eval(line.take("names"))
    line.expect("returns=")
    returns = line.take("word")
    if returns not in ("one", "list"):
        raise ValueError(f"returns must be 'one' or 'list', found {returns!r}")
    return positional, tuple(keywords), returns == "list"


def _parse_channel(line: _Line) -> ChannelSpec:
    channel, writer = line.take("channel"), line.take("process")
    line.expect("->")
    readers = line.words("process")
    kind = line.take("word")
    line.expect("node=")
    node = line.number()
    line.expect("slots=")
    return ChannelSpec(channel, writer, readers, kind, node, line.number())


def _parse_plan(text: str) -> Plan:
    draft = _Draft()
    for number, line in _numbered_lines(text):
        try:
            draft.add(_Line(line))
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"line {number} of the plan is not understood: {error}") from None
    if draft.head is None:
        raise ValueError("the text has no line that starts with 'plan'")
    positional, keywords, is_multi = draft.head
    return Plan(
        programs=tuple(Program(process, tuple(ops)) for process, ops in draft.programs),
        channels=tuple(draft.channels),
        actors=tuple(draft.actors),
        is_multi=is_multi,
        num_positional=positional,
        keywords=keywords,
        reach=tuple(draft.reach),
    )


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines(): only a newline ends a line.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


# --- JSON ---------------------------------------------------------------------------------------

_JSON_VERSION: Final = 1


def _op_to_data(op: Op) -> dict[str, object]:
    name = type(op).__name__
    match op:
        case Input(key=key, out=out):
            return {"op": name, "key": key, "out": out}
        case Read(channel=channel, out=out):
            return {"op": name, "channel": channel, "out": out}
        case Build(template=template, slots=slots, out=out):
            return {"op": name, "template": template, "slots": slots, "out": out}
        case Call():
            return {
                "op": name,
                "actor": op.actor,
                "method": op.method,
                "args": [str(argument) for argument in op.args],
                "kwargs": [[key, str(argument)] for key, argument in op.kwargs],
                "outs": op.outs,
                "node": op.node,
            }
        case Write(slot=slot, channel=channel):
            return {"op": name, "slot": slot, "channel": channel}
        case Output(slots=slots) | Free(slots=slots):
            return {"op": name, "slots": slots}


def _op_from_data(data: Mapping[str, Any]) -> Op:
    match data["op"]:
        case "Input":
            return Input(data["key"], data["out"])
        case "Read":
            return Read(data["channel"], data["out"])
        case "Build":
            return Build(data["template"], tuple(data["slots"]), data["out"])
        case "Call":
            return Call(
                data["actor"],
                data["method"],
                tuple(_parse_argument(argument) for argument in data["args"]),
                tuple((name, _parse_argument(argument)) for name, argument in data["kwargs"]),
                tuple(data["outs"]),
                data["node"],
            )
        case "Write":
            return Write(data["slot"], data["channel"])
        case "Output":
            return Output(tuple(data["slots"]))
        case "Free":
            return Free(tuple(data["slots"]))
        case name:
            raise ValueError(f"there is no op {checked.found(name)}")


_IDS: Final[Mapping[str, re.Pattern[str]]] = {
    "process": re.compile(r"driver|a\d{1,9}", re.ASCII),
    "channel": re.compile(r"c\d{1,9}", re.ASCII),
    "constant": re.compile(r"k\d{1,9}", re.ASCII),
}
_LARGEST: Final = 1 << 53
_LONGEST: Final = 100_000


def _check_types(plan: Plan) -> None:
    """Check that all parts of a plan are of the types that they are declared to be.

    Raises:
        ValueError: One is not; the text says which.
    """
    for program in plan.programs:
        _check_id("process", program.process)
        for op in program.ops:
            _check_op(op)
    for channel in plan.channels:
        _check_id("channel", channel.id)
        for process in (channel.writer, *channel.readers):
            _check_id("process", process)
        _check_text("kind of a channel", channel.kind)
        _check_number("node of a channel", channel.node)
        _check_number("number of slots", channel.slots)
    for actor in plan.actors:
        _check_id("process", actor.id)
        _check_text("label of an actor", actor.label)
        _check_text("key of an actor", actor.key)
    if not isinstance(plan.is_multi, bool):
        _refuse("is_multi", plan.is_multi)
    _check_number("number of positional arguments", plan.num_positional)
    for keyword in plan.keywords:
        _check_text("keyword", keyword)
    for process, sources in plan.reach:
        for each in (process, *sources):
            _check_id("process", each)


def _check_op(op: Op) -> None:
    for slot in (*op.used(), *op.made()):
        _check_number("slot", slot)
    match op:
        case Input(key=key):
            if isinstance(key, str):
                _check_text("key of an input", key)
            elif key is not None:
                _check_number("key of an input", key)
        case Read(channel=channel) | Write(channel=channel):
            _check_id("channel", channel)
        case Build(template=template):
            _check_id("constant", template)
        case Call():
            _check_id("process", op.actor)
            _check_text("method", op.method)
            for name, _ in op.kwargs:
                _check_text("argument", name)
            _check_number("node of a call", op.node)
        case Output() | Free():
            pass


def _check_id(sort: str, value: object) -> None:
    if not isinstance(value, str) or not _IDS[sort].fullmatch(value):
        _refuse(f"id of a {sort}", value)


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST:
        _refuse(what, value)


def _check_number(what: str, value: object) -> None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not -_LARGEST <= value <= _LARGEST:  # type: ignore[operator]
        _refuse(what, value)


def _refuse(what: str, value: object) -> NoReturn:
    raise ValueError(f"not a plan: {checked.found(value)} is no {what}")
