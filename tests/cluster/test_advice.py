# SPDX-License-Identifier: Apache-2.0
"""Every kind of advice is a line of Python that works as it is, on a real graph."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray

from rcg.dag import InputNode
from rcg.trace.measured import summarize
from tests.cluster.stage import Stage
from tests.unit.test_trace_placement import places, recorded
from tests.unit.test_trace_verdict import off_processor, two_stages, verdict, with_layers
from tests.unit.test_trace_what_if import pipeline
from tests.unit.traces import trace

pytestmark = pytest.mark.usefixtures("ray_session")


def overlapping(**how):
    """The verdict on two stages between which tensors move."""
    (found,) = summarize(trace(two_stages(**how), end=1 << 40)).graphs
    return found.verdict


ADVISED = {
    "more in flight": lambda: verdict(pipeline(window=1)),
    "more in flight than allowed": lambda: verdict(replace(pipeline(window=1), limit=1)),
    "fewer in flight": lambda: verdict(pipeline(window=10)),
    "overlap": lambda: overlapping(overlap=False, move_ms=2),
    "no overlap": lambda: overlapping(overlap=True, move_ms=0.2, handing_ms=2.0),
    "cuts": lambda: verdict(with_layers(pipeline(), {"a0": (0.5, 0.5), "a1": (0.2, 0.2, 0.6)})),
    "the lock": lambda: verdict(off_processor(0.5, 1.0)),
}


@pytest.mark.parametrize("kind", ADVISED)
def test_a_line_of_advice_runs_unchanged(stages, kind):
    advice = ADVISED[kind]().advice
    first, second = stages(2)
    with InputNode() as inp:
        dag = second.double.bind(first.double.bind(inp))
    names = {"dag": dag, "inputs": [1, 2, 3], "layers": list("abcdef"), "ray": ray}
    graph = names["graph"] = dag.experimental_compile()
    assert advice
    try:
        for each in advice:
            body, _, last = each.code.rpartition("; ")
            exec(body, names)
            exec(last, names)
            if "graph.map" in last:
                assert names["results"] == [4, 8, 12]
        if kind == "cuts":
            assert [len(part) for part in names["parts"]] == [3, 3]
    finally:
        graph.teardown()
        if names["graph"] is not graph:
            names["graph"].teardown()


def test_the_line_that_places_an_actor_starts_one_there(ray_session):
    """In one session there is one node, which stands for both of the trace."""
    (advice,) = places(recorded(["a1", "a2"]))
    node = SimpleNamespace(key=ray.get_runtime_context().get_node_id())
    graph = SimpleNamespace(plan=SimpleNamespace(nodes=[node, node]))
    names = {"E": Stage, "graph": graph, "ray": ray}
    exec(advice.code, names)
    for each in (names["a0"], names["a2"]):
        assert ray.get(each.remote("there").tell.remote())[0] == "there"
