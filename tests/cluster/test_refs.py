# SPDX-License-Identifier: Apache-2.0
"""``get``, ``put`` and ``wait`` on references of compiled DAGs, of Ray, and of both."""

from __future__ import annotations

import threading

import pytest
import ray

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ChannelTimeout

pytestmark = pytest.mark.usefixtures("ray_session")


@rcg.remote(num_cpus=0, max_concurrency=4)
class Gate:
    """Lets calls through once it is open."""

    def __init__(self):
        self.is_open = threading.Event()

    def echo(self, x):
        return x

    def passed(self, x):
        self.is_open.wait()
        return x

    def open(self):
        self.is_open.set()

    def close(self):
        self.is_open.clear()


@pytest.fixture(scope="module")
def gate(ray_session):
    return Gate.remote()


@pytest.fixture(scope="module")
def other(ray_session):
    return Gate.remote()


@pytest.fixture
def echo(other):
    """On another actor than ``slow``: methods of two graphs on one actor never overlap."""
    with InputNode() as inp:
        dag = other.echo.bind(inp)
    with dag.compile() as graph:
        yield graph


@pytest.fixture
def slow(gate):
    """A compiled DAG whose results wait for the gate, which is closed."""
    rcg.get(gate.close.remote())
    with InputNode() as inp:
        dag = gate.passed.bind(inp)
    with dag.compile() as graph:
        yield graph
        rcg.get(gate.open.remote())


def test_lists(echo, gate):
    compiled = [echo.execute(i) for i in range(3)]
    rays = [gate.echo.remote(10 + i) for i in range(3)]
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


def test_timeouts_lose_nothing(slow, gate, other):
    pending = slow.execute(1)
    done = other.echo.remote(2)
    for refs in (pending, [pending], [pending, done], [done, pending]):
        with pytest.raises(ChannelTimeout):
            rcg.get(refs, timeout=0)
        with pytest.raises(TimeoutError):
            rcg.get(refs, timeout=0.01)
    never = gate.passed.remote(3)
    with pytest.raises((ChannelTimeout, ray.exceptions.GetTimeoutError)):
        rcg.get([never, pending], timeout=0.01)
    with pytest.raises(ValueError, match="timeout"):
        rcg.get(pending, timeout=-2)
    rcg.get(gate.open.remote())
    assert rcg.get([pending, done, never]) == [1, 2, 3]


def test_waiting_for_both_wakes_up(slow, gate, other):
    rcg.get(other.close.remote())
    compiled, rays = slow.execute(1), other.passed.remote(2)
    opener = threading.Thread(target=lambda: rcg.get(gate.open.remote()))
    opener.start()
    assert rcg.wait([rays, compiled]) == ([compiled], [rays])
    opener.join()
    opener = threading.Thread(target=lambda: rcg.get(other.open.remote()))
    opener.start()
    assert rcg.wait([rays, compiled], num_returns=2) == ([rays, compiled], [])
    opener.join()


def test_a_compiled_reference_stays_in_its_process(echo, gate):
    ref = echo.execute(1)
    with pytest.raises(TypeError, match="cannot be used as Ray task/actor argument"):
        gate.echo.remote(ref)
    with pytest.raises(TypeError, match="cannot be used as Ray task/actor argument"):
        gate.echo.options(name="x").remote([ref])
    with pytest.raises(TypeError, match="cannot be used as Ray task/actor argument"):
        Gate.remote(x=ref)
    with InputNode() as inp, pytest.raises(TypeError, match="cannot be used"):
        gate.echo.bind([inp, ref])
    for value in (ref, [ref], {"deep": [[ref]]}):
        with pytest.raises(TypeError, match="was found to be non-serializable"):
            rcg.put(value)
    with pytest.raises(TypeError, match="cannot be used"):
        gate.echo.remote({"deep": [[ref]]})
    assert rcg.get(ref) == 1


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


def test_a_timeout_is_for_all_lists_together(gate, other):
    with InputNode() as inp:
        dag = MultiOutputNode([gate.passed.bind(inp), other.echo.bind(inp)])
    rcg.get(gate.close.remote())
    with dag.compile() as graph:
        executions = [graph.execute(i) for i in range(3)]
        with pytest.raises(ChannelTimeout):
            rcg.get(executions, timeout=0.05)
        rcg.get(gate.open.remote())
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
