# SPDX-License-Identifier: Apache-2.0
"""Frees graphs and actors that only IPython's history holds, so that a cell can be run again.

IPython keeps every value that a cell ends with: in ``Out``, ``_``, ``__``, ``___``, ``_7``, in a
second table of names, and in its display hook. Deleting one of these leaves the others. So a graph
that ends a cell would never be freed, with its loops, its memory and its actors, even when its name
refers to a newer graph.

After each cell this room looks at these values and counts their other references, as Python's
garbage collector does. A value without other references is dropped if it had a name and lost it, or
if it is a graph that never had a name and a newer graph runs. A note replaces it in the history.

A value with a name, or with a reference from another object of the user, is kept.
"""

from __future__ import annotations

import gc
import importlib
import re
import sys
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, NoReturn

from rcg.actors import ActorHandle
from rcg.dag.nodes import DAGNode
from rcg.frames import is_ours
from rcg.runtime.control import registry
from rcg.runtime.driver.compiled_dag import CompiledDAG, live_graphs
from rcg.runtime.driver.engine import Engine
from rcg.runtime.observe.report import Reports
from rcg.runtime.refs import CompiledDAGRef
from rcg.text import visible

_EVENT: Final = "post_run_cell"
_LATEST: Final = ("_", "__", "___")
_NUMBERED: Final = re.compile(r"_\d+")
_MAX_ITEMS: Final = 10_000  # of the values of cells that are looked at after each cell
_MAX_TEXT_CHARS: Final = 100

_RESOURCES: Final = (CompiledDAG, Engine, DAGNode, ActorHandle)

Place = tuple[dict[Any, Any], Any]
"""A table of IPython's, and the name of a value in it."""


class LetGo:
    """The note that replaces a value which only IPython's history held, and says why."""

    __slots__ = ("_text", "_why")

    def __init__(self, text: str, why: str) -> None:
        self._text = text
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # notebooks look for such names
            raise AttributeError(name)
        raise AttributeError(
            f"{self._text} was let go, because {self._why}: give it a name to keep it",
            name=name,
            obj=self,
        )

    def __repr__(self) -> str:
        return f"<{self._text} was let go: {self._why}>"


def attach() -> None:
    """Look after each cell of the IPython that this process runs in, if any; again is harmless."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return
    calls = shell.events.callbacks[_EVENT]
    if not any(isinstance(getattr(call, "__self__", None), _Keeper) for call in calls):
        shell.events.register(_EVENT, _Keeper(shell).look)


@dataclass(slots=True)
class _Seen:
    """A value of ours, or one that holds some, as it was found.

    Attributes:
        value: The value. Held here and nowhere else of this room.
        places: Where IPython keeps it.
        fixed: How many more references IPython has, which pass by themselves.
        holders: Which of those that were found hold it, with one entry per reference.
        is_alone: Whether only IPython holds it, itself or through others.
    """

    value: Any
    places: list[Place] = field(default_factory=list)
    fixed: int = 0
    holders: list[_Seen] = field(default_factory=list)
    is_alone: bool = False


class _Keeper:
    """Checks the history of a shell after each cell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        # What had a name, by id: a weak reference, or the number of the cell that it ended.
        self._named: dict[int, Any] = {}
        # What lost its name and was still held by others when garbage was looked for.
        self._searched: set[int] = set()

    def look(self, result: Any = None) -> None:
        """Drop values that only IPython keeps and that no longer have a name.

        After a ``get`` that was interrupted, show first what it waited for.
        """
        error = getattr(result, "error_in_exec", None)
        if isinstance(error, KeyboardInterrupt) and hasattr(error, "__notes__"):
            _show_given_up()
        found = self._find()
        names = self._names()
        lost = [
            seen
            for seen in _resources(found)
            if id(seen.value) not in names and self._had_name(seen)
        ]
        _count(found)
        if any(not seen.is_alone for seen in lost):
            self._look_for_garbage(lost)
            _count(found)
        newest = _newest()
        gone = {id(seen): "its name stands for something else" for seen in lost if seen.is_alone}
        for seen in found.values():
            if seen.is_alone and type(seen.value) is Engine and id(seen.value) != newest:
                gone.setdefault(id(seen), "it had no name and a newer graph was compiled")
        self._remember(found, names)
        _let_go(found, gone)

    def _look_for_garbage(self, lost: list[_Seen]) -> None:
        """Drop what holds values that lost their names and is of no use itself."""
        _clear_frames([seen.value for seen in lost])
        held = {id(seen.value) for seen in lost}
        if not held <= self._searched:
            gc.collect()  # once for each; exceptions and their frames hold each other
        self._searched = held

    def _find(self) -> dict[int, _Seen]:
        """Return what is kept of ours, and what holds it, by id."""
        found: dict[int, _Seen] = {}
        for place in self._places():
            value = place[0][place[1]]
            found.setdefault(id(value), _Seen(value)).places.append(place)
        result = getattr(self._shell.last_execution_result, "result", None)
        if id(result) in found:
            found[id(result)].fixed = 1
        del result
        budget = [_MAX_ITEMS]
        for seen in list(found.values()):
            _look_into(seen, found, budget)
        ours = [seen for seen in found.values() if _is_ours(seen.value)]
        return {id(each.value): each for seen in ours for each in _with_holders(seen)}

    def _places(self) -> Iterator[Place]:
        shell = self._shell
        names, hidden, hook = shell.user_ns, shell.user_ns_hidden, vars(shell.displayhook)
        out = names.get("_oh", {})
        yield from ((out, number) for number in list(out))
        for name in list(hidden):
            if isinstance(name, str) and (name in _LATEST or _NUMBERED.fullmatch(name)):
                yield hidden, name
                if name in names and names[name] is hidden[name]:
                    yield names, name
        yield from ((hook, name) for name in _LATEST if name in hook)

    def _names(self) -> set[int]:
        """Return the ids of what the user's names stand for."""
        hidden = self._shell.user_ns_hidden
        values = [
            value
            for name, value in list(self._shell.user_ns.items())
            if name not in hidden or hidden[name] is not value
        ]
        # The name of a graph is its engine's, too: that is what references hold.
        engines = {id(value._engine) for value in values if type(value) is CompiledDAG}
        return set(map(id, values)) | engines

    def _had_name(self, seen: _Seen) -> bool:
        known = self._named.get(id(seen.value))
        if isinstance(known, weakref.ref):
            return known() is seen.value
        return known is not None and known == _number(seen)

    def _remember(self, found: dict[int, _Seen], names: set[int]) -> None:
        named: dict[int, Any] = {}
        for key, seen in found.items():
            if key in names or self._had_name(seen):
                try:
                    named[key] = weakref.ref(seen.value)
                except TypeError:  # lists and the like
                    named[key] = _number(seen)
        self._named = named


def _show_given_up() -> None:
    """Show the reports of the graphs whose last ``get`` ended without its result."""
    found = [graph.report() for graph in live_graphs()]
    given_up = Reports(each for each in found if each.processes[0].state == "gave up")
    if given_up:
        importlib.import_module("IPython.display").display(given_up)


def _number(seen: _Seen) -> int:
    """Return a cell that a value ended; -1 if it ended none."""
    return min((key for _, key in seen.places if isinstance(key, int)), default=-1)


def _newest() -> int:
    """Return the id of the engine that was made last of those that run."""
    live = registry.live(Engine)
    return id(live[-1]) if live else 0


def _is_ours(value: Any) -> bool:
    return isinstance(value, (CompiledDAGRef, *_RESOURCES))


def _look_into(seen: _Seen, found: dict[int, _Seen], budget: list[int]) -> None:
    """Add what a value holds."""
    waiting = [seen]
    while waiting:
        holder = waiting.pop()
        for item in _items(holder.value, budget):
            known = found.get(id(item))
            if known is None:
                known = found[id(item)] = _Seen(item)
                waiting.append(known)
            known.holders.append(holder)


def _items(value: Any, budget: list[int]) -> list[Any]:
    """Return what a container holds, if that can be of ours; the engine of a reference or graph."""
    if isinstance(value, CompiledDAGRef):
        first = getattr(value, "_first", None)  # of an output that is listed twice
        return [value._source] if first is None else [value._source, first]
    if isinstance(value, CompiledDAG):
        # Its method `execute` is bound to the engine: a second reference, if nobody else has it.
        is_own = sys.getrefcount(vars(value)["execute"]) <= 2
        return [value._engine] * (1 + is_own)
    kind = type(value)
    if kind not in (list, tuple, set, dict) or len(value) > budget[0]:
        return []
    budget[0] -= len(value)
    items = list(value.values() if kind is dict else value)
    return [item for item in items if _is_ours(item) or type(item) in (list, tuple, set, dict)]


def _with_holders(seen: _Seen) -> Iterator[_Seen]:
    known = set()
    waiting = [seen]
    while waiting:
        each = waiting.pop()
        if id(each) not in known:
            known.add(id(each))
            yield each
            waiting += each.holders


def _resources(found: dict[int, _Seen]) -> list[_Seen]:
    """Return what holds actors: graphs, nodes and handles, and containers with such in them.

    Not references: their results are wanted as long as their graph is there.
    """
    named: dict[int, _Seen] = {}
    waiting = [seen for seen in found.values() if isinstance(seen.value, _RESOURCES)]
    while waiting:
        seen = waiting.pop()
        if id(seen) not in named and not isinstance(seen.value, CompiledDAGRef):
            named[id(seen)] = seen
            waiting += seen.holders
    return list(named.values())


def _count(found: dict[int, _Seen]) -> None:
    """Find out what only IPython holds, itself or through others that only it holds."""
    for seen in found.values():
        seen.is_alone = False
    is_more = True
    while is_more:
        is_more = False
        for seen in found.values():
            inside = sum(holder.is_alone for holder in seen.holders)
            # Two more: of `seen`, and the argument.
            own = len(seen.places) + seen.fixed + inside + 2
            if not seen.is_alone and sys.getrefcount(seen.value) <= own:
                seen.is_alone = is_more = True


def _let_go(found: dict[int, _Seen], gone: dict[int, str]) -> None:
    """Put a note where these values are, and where those are that hold them."""
    reasons: dict[int, tuple[_Seen, str]] = {}
    for seen in found.values():
        if id(seen) in gone:
            for each in _with_holders(seen):
                reasons.setdefault(id(each), (each, gone[id(seen)]))
    for each, why in reasons.values():
        if each.places:
            note = LetGo(_text(each.value), why)
            for table, name in each.places:
                table[name] = note


def _text(value: Any) -> str:
    if not _is_ours(value):
        return f"{type(value).__name__} of {len(value)}"
    return visible(repr(value))[:_MAX_TEXT_CHARS]


def _clear_frames(values: list[Any]) -> None:
    """Empty those frames of the last error that hold one of these values, or a reference of it.

    Python keeps the frames of the last error for a debugger. Those that are in rcg's own code are
    of no use to users; one of theirs is emptied if it holds what has lost its name.
    """
    ids = set(map(id, values))
    for frame in _frames_of_last_error():
        is_own = is_ours(frame)
        local = frame.f_locals if frame.f_locals is not frame.f_globals else {}
        if local and (is_own or any(_holds(value, ids) for value in local.values())):
            try:
                frame.clear()
            except RuntimeError:  # it runs
                continue
            _ = frame.f_locals  # Python keeps a copy, which this brings up to date
        del local


def _holds(value: Any, ids: set[int]) -> bool:
    found = {id(value): _Seen(value)}
    _look_into(found[id(value)], found, [_MAX_ITEMS])
    return not ids.isdisjoint(found)


def _frames_of_last_error() -> Iterator[FrameType]:
    errors = [getattr(sys, "last_value", None)]
    known = set()
    while errors:
        error = errors.pop()
        if error is None or id(error) in known:
            continue
        known.add(id(error))
        yield from (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        errors += [error.__cause__, error.__context__]
