# SPDX-License-Identifier: Apache-2.0
"""The registry: the compiled graphs of this process, and the followers of graphs compiled later.

It keeps nothing alive, and knows only the ids of graphs. There is no lock: a signal handler or
``__del__`` may register a new graph in the middle of any operation.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, Protocol, TypeVar


class Registered(Protocol):
    """A compiled graph, as the registry sees it."""

    def get_id(self) -> str:
        """Return its id."""

    def face(self) -> Any:
        """Return the ``CompiledDAG`` of the graph."""


class Follower(Protocol):
    """Gets every new graph of the process, such as a profiler."""

    def graph_started(self, graph: Any) -> None:
        """Take note of a new graph."""


_G = TypeVar("_G", bound=Registered)

# By id: all graphs that still exist, and those of them that are not torn down. Copied in
# one step where they are looked through, because other threads compile.
_graphs: Final[weakref.WeakValueDictionary[str, Registered]] = weakref.WeakValueDictionary()
_live: Final[weakref.WeakValueDictionary[str, Registered]] = weakref.WeakValueDictionary()
# By the address of each, which is another's only after it is gone.
_following: Final[dict[int, weakref.ref[Follower]]] = {}


def add(graph: Registered) -> None:
    """Enter a new graph, and tell all followers."""
    _graphs[graph.get_id()] = graph
    _live[graph.get_id()] = graph
    for reference in _following.copy().values():
        follower = reference()
        if follower is not None:
            follower.graph_started(graph)


def note_ended(graph: Registered) -> None:
    """Note that a graph was torn down. Idempotent."""
    _live.pop(graph.get_id(), None)


def find(graph_id: str) -> Registered | None:
    """Return the graph of an id, also one that was torn down; None if this process has none."""
    return _graphs.get(graph_id)


def live(kind: type[_G]) -> list[_G]:
    """Return the graphs that are not torn down and are of this class, the oldest first."""
    found = (reference() for reference in _live.valuerefs())
    return [graph for graph in found if isinstance(graph, kind)]


def faces() -> list[Any]:
    """Return the ``CompiledDAG`` of each graph that is not torn down, the oldest first."""
    found = (reference() for reference in _live.valuerefs())
    return [graph.face() for graph in found if graph is not None]


def follow(follower: Follower) -> None:
    """Register a follower of new graphs; it is not kept alive."""
    key = id(follower)
    _following[key] = weakref.ref(follower, lambda _: _following.pop(key, None))
