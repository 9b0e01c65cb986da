# SPDX-License-Identifier: Apache-2.0
"""``get``, ``put`` and ``wait`` on references of compiled DAGs, of Ray, and of both."""

from __future__ import annotations

import copy
import pickle

import pytest
import ray

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ChannelTimeout
from tests.cluster.stage import Stage, compile_echo, compile_gated

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def echo(stages):
    with compile_echo(stages(1)[0]) as graph:
        yield graph


@pytest.fixture
def other(stages):
    return stages(2)[1]


def test_lists(echo, other):
    compiled = [echo.execute(i) for i in range(3)]
    rays = [other.echo.remote(10 + i) for i in range(3)]
    assert rcg.get(compiled) == [0, 1, 2]
    assert rcg.get(rays) == [10, 11, 12]
    assert rcg.get([]) == []
    mixed = [rays[0], compiled[2], rays[0], compiled[0], rays[2]]
    assert rcg.get(mixed) == [10, 2, 10, 0, 12]


def test_refs_of_the_other_library_are_refused_with_what_to_change(echo):
    ref = echo.execute(1)
    for call in (ray.get, lambda ref: ray.wait([ref]), ray.cancel):
        with pytest.raises((TypeError, ValueError), match="call rcg's, or `import rcg as ray`"):
            call(ref)
    rays = type("CompiledDAGRef", (), {})()  # has this name in every release
    with pytest.raises(TypeError, match=r"CompiledDAGRef of ray\.dag at position 1, which goes by"):
        rcg.get([ref, rays])
    assert rcg.get(ref) == 1


def test_timeouts_lose_nothing(stages, other, gate):
    (actor,) = stages(1)
    with compile_gated(actor, gate) as slow:
        pending = slow.execute(0)
        done = other.echo.remote(2)
        for refs in (pending, [pending], [pending, done], [done, pending]):
            with pytest.raises(ChannelTimeout):
                rcg.get(refs, timeout=0)
            with pytest.raises(TimeoutError):
                rcg.get(refs, timeout=0.01)
        never = actor.hold_gate.remote(gate)
        with pytest.raises((ChannelTimeout, ray.exceptions.GetTimeoutError)):
            rcg.get([never, pending], timeout=0.01)
        with pytest.raises(ValueError, match="timeout"):
            rcg.get(pending, timeout=-2)
        gate.open()
        assert rcg.get([pending, done, never]) == [0, 2, "passed"]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda ref, actor, _: actor.echo.remote(ref), "as Ray task/actor argument"),
        (lambda ref, actor, _: actor.echo.remote({"deep": [[ref]]}), "cannot be used"),
        (lambda ref, actor, _: actor.echo.bind([InputNode(), ref]), "cannot be used"),
        (lambda ref, *_: Stage.remote(name=ref), "cannot be used"),
        (lambda ref, _, graph: graph.execute(ref), "CompiledDAGRef"),
        (lambda ref, *_: rcg.put({"deep": [[ref]]}), "was found to be non-serializable"),
        (lambda ref, *_: ray.put([ref]), "CompiledDAGRef"),
        (lambda ref, *_: pickle.dumps(ref), "CompiledDAGRef"),
        (lambda ref, *_: copy.copy(ref), "CompiledDAGRef"),
        (lambda ref, *_: copy.deepcopy(ref), "CompiledDAGRef"),
    ],
)
def test_a_compiled_reference_stays_in_its_process(echo, other, use, text):
    ref = echo.execute(1)
    with pytest.raises((TypeError, ValueError), match=text):
        use(ref, other, echo)
    assert rcg.get(echo.execute(rcg.get(ref))) == 1


# --- lists of lists, which graphs with several outputs give


@pytest.fixture
def pair(other):
    """A graph with two outputs."""
    with InputNode() as inp:
        dag = MultiOutputNode([other.echo.bind(inp), other.echo.bind(inp)])
    with dag.compile() as graph:
        yield graph


def test_a_list_of_executions_gives_a_list_of_lists(pair):
    executions = [pair.execute(i) for i in range(5)]
    assert rcg.get(executions) == [[i, i] for i in range(5)]
    assert rcg.get(executions, timeout=30) == [[i, i] for i in range(5)]


def test_lists_keep_their_shape_whatever_is_in_them(pair, echo, other):
    ref, rays = echo.execute("one"), other.echo.remote("rays")
    assert rcg.get([ref, pair.execute(2), [], [[rays], ref]]) == [
        "one",
        [2, 2],
        [],
        [["rays"], "one"],
    ]


def test_a_timeout_is_for_all_lists_together(stages, gate):
    a, b = stages(2)
    with InputNode() as inp:
        dag = MultiOutputNode([a.pass_gate_when.bind(inp, 0, gate), b.echo.bind(inp)])
    with dag.compile() as graph:
        executions = [graph.execute(i) for i in range(3)]
        with pytest.raises(ChannelTimeout):
            rcg.get(executions, timeout=0.05)
        gate.open()
        assert rcg.get(executions) == [[i, i] for i in range(3)]


def test_what_is_no_reference_is_named_in_a_list_of_lists_too(pair):
    with pytest.raises(TypeError, match="found int"):
        rcg.get([pair.execute(1), [3]])


@pytest.mark.parametrize("timeout", [None, 0])
def test_wait_for_lists_says_what_to_wait_for(pair, echo, timeout):
    executions = [pair.execute(i) for i in range(3)]
    for refs in (executions, [echo.execute(1), *executions], [[executions]]):
        with pytest.raises(
            TypeError, match="takes a flat list of references, found a list at"
        ) as e:
            rcg.wait(refs, timeout=timeout)
        assert "for ref in refs" in str(e.value)
    ready, others = rcg.wait([ref for refs in executions for ref in refs], num_returns=6)
    assert len(ready) == 6 and others == []


def test_lists_of_lists_of_rays_own_are_rays_business(other):
    with pytest.raises((ValueError, TypeError)):
        rcg.get([[other.echo.remote(1)]])
