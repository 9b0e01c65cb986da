# SPDX-License-Identifier: Apache-2.0
"""The registry of compiled graphs: which live, which can still be found, and who follows them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from rcg.runtime.control import registry


class Graph:
    def __init__(self, graph_id: str) -> None:
        self._id = graph_id

    def get_id(self) -> str:
        return self._id


class Other(Graph):
    pass


class Follower:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def graph_started(self, graph: Any) -> None:
        self.seen.append(graph)


@pytest.fixture
def is_empty() -> Iterator[None]:
    following = set(registry._following)  # the face of the package follows for good
    yield
    gc.collect()
    assert not registry.live(Graph) and not registry._graphs
    assert set(registry._following) == following


@pytest.mark.usefixtures("is_empty")
def test_graphs_live_until_they_end_and_are_found_as_long_as_they_exist():
    graphs = [Graph(str(number)) for number in range(3)]
    for graph in graphs:
        registry.add(graph)
    assert registry.live(Graph) == graphs  # the oldest first
    for _ in range(2):
        registry.note_ended(graphs[1])
        assert registry.live(Graph) == [graphs[0], graphs[2]]
        assert registry.find("1") is graphs[1]
    assert registry.find("3") is None
    del graph, graphs[:]
    assert registry.live(Graph) == [] and registry.find("1") is None


@pytest.mark.usefixtures("is_empty")
def test_only_graphs_of_a_class_are_asked_for():
    one, other = Graph("one"), Other("other")
    registry.add(one)
    registry.add(other)
    assert registry.live(Other) == [other]
    assert registry.live(Graph) == [one, other]


@pytest.mark.usefixtures("is_empty")
def test_followers_learn_of_new_graphs_as_long_as_they_exist():
    early, first, second = Graph("early"), Follower(), Follower()
    registry.add(early)
    registry.follow(first)
    registry.follow(first)  # once is enough
    registry.follow(second)
    late = Graph("late")
    registry.add(late)
    assert first.seen == second.seen == [late]
    seen = second.seen
    del second
    registry.add(Graph("latest"))
    assert len(first.seen) == 2 and len(seen) == 1


@pytest.mark.usefixtures("is_empty")
def test_a_follower_may_compile_and_follow_in_the_middle():
    class Compiling(Follower):
        def graph_started(self, graph: Any) -> None:
            super().graph_started(graph)
            if len(self.seen) == 1:
                made.append(Graph("inner"))
                registry.follow(other)
                registry.add(made[0])

    made: list[Graph] = []
    follower, other = Compiling(), Follower()
    registry.follow(follower)
    outer = Graph("outer")
    registry.add(outer)
    assert follower.seen == [outer, made[0]] and other.seen == made
    assert registry.live(Graph) == [outer, made[0]]
