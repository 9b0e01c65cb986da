# SPDX-License-Identifier: Apache-2.0
"""Graphviz source and the text form."""

from __future__ import annotations

import re

from hypothesis import given

from rcg.views.data.topology import Topology, topology_of
from rcg.views.text import ascii_of, dot_of
from tests.unit.random_graphs import Case, cases
from tests.unit.views_plans import planned, two_parts, wicked

QUOTED = r'"((?:[^"\\]|\\.)*)"'


def pairs(topology: Topology) -> list[tuple[int, int]]:
    return [(edge.source, edge.target) for edge in topology.edges]


# --- Graphviz source


@given(cases())
def test_dot_has_every_node_and_edge_once(case: Case) -> None:
    topology = topology_of(planned(case.graph))
    source = dot_of(topology)
    nodes = [int(found) for found in re.findall(r"^\t(\d+) \[", source, re.M)]
    edges = [(int(a), int(b)) for a, b in re.findall(r"^\t(\d+) -> (\d+) \[", source, re.M)]
    assert nodes == [node.id for node in topology.nodes]
    assert edges == pairs(topology)
    assert dot_of(topology_of(planned(case.graph))) == source


def test_dot_has_the_labels_and_shapes_of_ray() -> None:
    lines = dot_of(two_parts()).splitlines()
    starts = [
        r'0 [label="Task 0\nInputNode" fillcolor=lightblue shape=rectangle',
        r'1 [label="Task 1\nActor: Splitter\nID: 054777...\nMethod: return_two" fillcolor="#',
        r'2 [label="Task 2\nClassMethodOutputNode[0]" fillcolor=orange shape=rectangle',
        r'3 [label="Task 3\nClassMethodOutputNode[1]" fillcolor=orange shape=rectangle',
        r'4 [label="Task 4\nActor: Stage\nID: 154777...\nMethod: echo" fillcolor="#',
        r'5 [label="Task 5\nActor: Stage\nID: 154777...\nMethod: echo" fillcolor="#',
        r'6 [label="Task 6\nMultiOutputNode" fillcolor=yellow shape=rectangle',
    ]
    drawn = [line.strip() for line in lines if re.match(r"\t\d+ \[", line)]
    assert len(drawn) == len(starts)
    for line, start in zip(drawn, starts, strict=True):
        assert line.startswith(start)
    fills = re.findall(r'fillcolor="(#[0-9a-f]{6})" shape=oval', "\n".join(lines))
    assert fills[1] == fills[2] != fills[0]


def test_dot_escapes_what_users_wrote() -> None:
    source = dot_of(wicked())
    (label,) = [each for each in re.findall(QUOTED, source) if "Method" in each]
    assert label == r"Task 1\nActor: A\"];}\\n\\\nID: 054777...\nMethod: say \"hi\"\\"
    # Nothing but the structure is left without the quoted strings.
    bare = re.sub(QUOTED, "", source)
    assert bare.count("}") == 1 and bare.count("]") == bare.count("[")


# --- text


def drawn(text: str) -> tuple[list[int], set[tuple[int, int]]]:
    """Read the drawing back: its nodes, and which takes whose value."""
    lines = text.partition("Graph Built:\n")[2].splitlines()
    start = max(len(re.split(r"  +[*o|]", line)[0]) for line in lines) + 2
    rails: dict[int, int] = {}
    nodes: list[int] = []
    edges: set[tuple[int, int]] = set()
    for line in lines:
        node = int(line.partition(":")[0])
        nodes.append(node)
        marks = line[start:]
        edges |= {(rails[at], node) for at, mark in enumerate(marks) if mark == "o"}
        rails |= {at: node for at, mark in enumerate(marks) if mark == "*"}
    return nodes, edges


def listed(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Read the lists with the expressions that Ray's own tests use."""
    nodes = [int(found) for found in re.findall(r'^(\d+) \[label="Task \d+', text, re.M)]
    edges = re.findall(r"^(\d+) (?:--->|\+\+\+>) (\d+)", text, re.M)
    return nodes, [(int(source), int(target)) for source, target in edges]


@given(cases())
def test_ascii_lists_and_draws_every_node_and_edge_once(case: Case) -> None:
    topology = topology_of(planned(case.graph))
    text = ascii_of(topology)
    nodes = [node.id for node in topology.nodes]
    assert listed(text) == (nodes, pairs(topology))
    drawn_nodes, drawn_edges = drawn(text)
    assert sorted(drawn_nodes) == nodes
    assert drawn_edges == set(pairs(topology))
    assert ascii_of(topology_of(planned(case.graph))) == text


def test_ascii_has_the_sections_of_ray() -> None:
    assert (
        ascii_of(two_parts())
        == """\
Nodes Information:
0 [label="Task 0  InputNode"]
1 [label="Task 1  Actor: 054777... Method: return_two"]
2 [label="Task 2  ClassMethodOutputNode[0]"]
3 [label="Task 3  ClassMethodOutputNode[1]"]
4 [label="Task 4  Actor: 154777... Method: echo"]
5 [label="Task 5  Actor: 154777... Method: echo"]
6 [label="Task 6  MultiOutputNode"]

Edges Information:
0 ---> 1
1 ---> 2 (same process)
1 ---> 3 (same process)
2 ---> 4
3 ---> 5
4 ---> 6
5 ---> 6

Legend:
+++> : Represents Accelerator-type data channels
---> : Represents Shared Memory data channels, or no channel in the same process
* makes a value, o takes it, | is a value on its way to those below

Graph Built:
0:InputNode                   *
1:Splitter_054777:return_two  o-*
2:Output[0]                   *-o
3:Output[1]                   | o-*
4:Stage_154777:echo           o-* |
5:Stage_154777:echo           *-|-o
6:MultiOutputNode             o-o
"""
    )
