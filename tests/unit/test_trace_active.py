# SPDX-License-Identifier: Apache-2.0
"""Graphs that did nothing while a trace was recorded: not shown beside those that did something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rcg.errors import TraceError
from rcg.ir.ids import DRIVER
from rcg.profiling import Profile
from rcg.trace.model import GraphTrace, OpenOp
from rcg.trace.trace import Trace
from rcg.views.html.page import page_of
from tests.unit.traces import event, graph_trace
from tests.unit.views_traces import pipeline, simulated, static_part

WAITING = OpenOp(0, 0, 10, 10, 0)
IN_A_CALL = OpenOp(1, 0, 10, 0, -1)


def named(graph: GraphTrace, graph_id: str) -> GraphTrace:
    return replace(graph, graph_id=graph_id * 8)


def idle(graph_id: str) -> GraphTrace:
    """A graph whose actors wait for input."""
    return named(graph_trace({}, opens={"a0": WAITING, "a1": WAITING}), graph_id)


def busy(graph_id: str) -> GraphTrace:
    return named(simulated(pipeline(2), 4).graphs[0], graph_id)


def mixed(*graphs: GraphTrace) -> Trace:
    return replace(simulated(pipeline(2), 4), graphs=graphs)


@pytest.mark.parametrize(
    ("graph", "is_active"),
    [
        (graph_trace({}), False),
        (idle("dead"), False),
        (graph_trace({"a0": [event(1, 0, 0, 5)]}), True),
        (graph_trace({}, opens={"a0": WAITING, "a1": IN_A_CALL}), True),
        (graph_trace({}, opens={"a0": OpenOp(0, 0, 10, 0, -1)}), False),  # about to wait
        (graph_trace({}, opens={DRIVER: OpenOp(3, 0, 10, 10, 2)}), True),
    ],
)
def test_a_graph_is_active_if_something_ended_or_somebody_is_in_the_middle_of_it(
    graph: GraphTrace, is_active: bool
) -> None:
    assert graph.is_active is is_active


def test_only_the_active_ones_are_shown_and_the_others_counted() -> None:
    profile = Profile(mixed(idle("dead"), busy("beef"), idle("f00d")))
    texts = [
        str(profile),
        profile._repr_mimebundle_()["text/plain"],
        profile.trace._repr_mimebundle_()["text/plain"],
        static_part(page_of(profile.trace, "A page")),
    ]
    for text in texts:
        assert "beef" in text
        assert "dead" not in text and "f00d" not in text
        assert "2 more graphs did nothing" in text


def test_the_only_active_one_is_the_default() -> None:
    profile = Profile(mixed(idle("dead"), busy("beef"), idle("f00d")))
    assert profile.graph().graph_id.startswith("beef")
    assert len(profile.executions()) == len(profile.executions(1))


def test_a_name_comes_before_the_beginning_of_an_id() -> None:
    named = replace(busy("beef"), name="a")
    profile = Profile(mixed(busy("a1a1"), named))
    assert profile.graph("a") is not profile.graph("a1")
    assert profile.graph("a").graph_id.startswith("beef")
    assert profile.graph("bee").name == "a"


def test_of_several_the_message_says_how_to_choose() -> None:
    profile = Profile(mixed(idle("dead"), busy("beef"), busy("cafe")))
    with pytest.raises(TraceError) as caught:
        profile.what_if(in_flight=2)
    text = str(caught.value)
    assert "graph=1" in text
    assert "1: CompiledDAG(beefbeef): 4 executions" in text and "2: CompiledDAG(cafecafe)" in text
    with pytest.raises(TraceError, match=r"no graph 7; .*graph=1"):
        profile.graph(7)
    with pytest.raises(TraceError, match="no graph was recorded"):
        Profile(Trace((), 0, 1)).graph()
