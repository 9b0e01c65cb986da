# SPDX-License-Identifier: Apache-2.0
"""Looking at a graph: its report, its statistics, its plan and its picture."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64decode

import numpy as np
import pytest
import ray

import rcg
from rcg.dag import InputNode
from rcg.errors import ActorDiedError, ChannelTimeout
from rcg.runtime.observe.drivers import find_drivers
from tests.cluster.faults import until_seen
from tests.cluster.nodes import but_gates, local_writer, near_driver
from tests.cluster.stage import ROOT, Stage, until
from tests.harness.peers import suspend

pytestmark = pytest.mark.usefixtures("ray_session")


def compile_gated(a, b, gate, **options):
    with InputNode() as inp:
        return b.echo.bind(a.pass_gate_when.bind(inp, 0, gate)).compile(**options)


def row(text, label):
    """The line of the table that is about one process."""
    lines = [line.removeprefix("> ").strip() for line in text.splitlines()[2:]]
    return next(line for line in lines if line.startswith(label))


def states_of(graph):
    """The states of the actors of a graph, in the order of the plan."""
    return [each.state for each in but_gates(graph, graph.report().processes)[1:]]


def rooms_of(_):
    """The modules of rcg that an actor's process has."""
    return [name for name in sys.modules if name.startswith("rcg.")]


def test_an_actor_that_executes_has_loaded_neither_views_nor_analysis(stages):
    (stage,) = stages(1)
    with InputNode() as inp, stage.echo.bind(inp).compile() as graph:
        assert rcg.get([graph.execute(i) for i in range(3)]) == [0, 1, 2]
        loaded = ray.get(rcg.unwrap(stage).__ray_call__.remote(rooms_of))
    assert "rcg.runtime.actor.loop" in loaded
    seeing = ("rcg.views", "rcg.trace.analysis", "rcg.trace.export", "rcg.profiling")
    assert [name for name in loaded if name.startswith(seeing)] == []


# --- report


def test_it_says_who_does_what_where_and_who_waits_for_whom(stages, gate):
    a, b = stages(2)
    with compile_gated(a, b, gate) as graph:
        refs = [graph.execute(i) for i in range(4)]
        gate.wait_for()
        # What is sent to another node arrives there a moment later.
        until(lambda: states_of(graph) == ["running", "waiting"])
        until(lambda: [each.length for each in graph.report().backlogs] == [3])
        report = graph.report()
        by_label = {activity.label: activity for activity in report.processes}
        busy, idle = by_label["a0 (Plain)"], by_label["a1 (Plain)"]
        assert (busy.state, busy.execution) == ("running", 0)
        assert (busy.where, busy.site) == ("in pass_gate_when", "test_seeing.py:34")
        assert "stage.py" in busy.stack[0] and "in pass_gate_when" in busy.stack[0]
        assert (idle.state, idle.waiting_for) == ("waiting", "a0 (Plain)")
        writer = local_writer(graph, "c0", "a0")
        assert [(q.writer, q.reader, q.length) for q in report.backlogs] == [
            (writer, "a0 (Plain)", 3)
        ]
        text = str(report)
        assert repr(report) == text
        assert "running: 4 of 10 executions in flight" in text
        assert f"c0: {writer} -> a0 (Plain): 3 of {graph.plan.channels[0].slots}" in text
        assert re.search(r"a0 \(Plain\) is in:\n  .*stage.py:\d+ in pass_gate_when", text)
        gate.open()
        assert rcg.get(refs) == [0, 1, 2, 3]


def test_a_stopped_process_is_said_not_to_answer(stages, gate):

    a, b = stages(2)
    pid = rcg.get(a.pid.remote())
    with compile_gated(a, b, gate) as graph:
        ref = graph.execute(0)
        gate.wait_for()
        until_seen(graph, "a0 (Plain)", "pass_gate_when")
        suspend(pid)
        try:
            text = str(graph.report())
        finally:
            os.kill(pid, signal.SIGCONT)
        assert "a0 (Plain) does not answer" in text
        assert "in pass_gate_when" in text
        gate.open()
        assert rcg.get(ref) == 0


def test_it_works_after_a_death_and_after_teardown(stages, gate):
    # Not the host of another node: with it the driver would lose `b` as well.
    (b,), mortal = stages(1), near_driver(Stage).remote("mortal")
    graph = compile_gated(mortal, b, gate)
    ref = graph.execute(0)
    gate.wait_for()
    until_seen(graph, "a0 (Plain)", "pass_gate_when")
    rcg.kill(mortal)
    with pytest.raises(ray.exceptions.ActorDiedError):
        rcg.get(ref)
    report = graph.report()
    assert report.state == "broken"
    dead = next(activity for activity in report.processes if activity.label == "a0 (Plain)")
    assert dead.state == "dead"
    assert "pass_gate_when" in dead.op
    graph.teardown()
    report = graph.report()
    assert report.state == "closed"
    assert "pass_gate_when" in str(report)
    assert "ended" in row(str(report), "a1 (Plain)")


def test_what_is_wrong_with_a_graph_stands_over_its_pictures(victims, stages):
    (stage,) = stages(1)
    victim = victims.take()
    with InputNode() as inp:
        graph = stage.echo.bind(victim.full.bind(inp)).compile(name="two")
    title = f"two ({graph.get_id()[:8]})"
    with rcg.profile() as before:
        rcg.get(graph.execute(8))
    assert (graph.state, graph.title, before.trace.graphs[0].title) == ("", title, title)
    assert graph._repr_mimebundle_()["text/plain"] == repr(graph)
    with rcg.profile() as during:
        rcg.kill(victim)
        until(lambda: graph.state)
    died = f"{title}: a0 (Mortal) died"
    assert graph.title == during.trace.graphs[0].title == died
    found = graph._repr_mimebundle_()
    assert found["text/plain"] == died
    pictures = re.findall(r'base64,([^"]+)', found["text/html"])
    assert pictures and all(f">{died}<".encode() in b64decode(each) for each in pictures)
    assert all(b64decode(each).count(b">died</text>") == 1 for each in pictures)
    assert during.trace.graphs[0].marks == graph.seen().marks == {"a0": ("lost", "died")}
    graph.teardown()
    assert graph.title == f"{died}; torn down"
    assert graph.visualize(format="ascii").count("(torn down)") == 1  # and one has died

    with InputNode() as inp:
        graph = stage.echo.bind(inp).compile()
    graph.teardown()
    assert graph.state == "torn down"

    with InputNode() as inp:
        dag = victim.full.bind(inp)
    with pytest.raises(ActorDiedError) as raised:
        dag.compile()
    text = "a0 (Mortal) is dead, so the graph cannot be compiled: it was killed by `ray.kill`"
    assert raised.value.message == text
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("waits", [True, False])
def test_pictures_show_an_actor_that_is_stopped_while_it_waits(victims, stages, waits):
    """In shared memory it waits for its input, which is there: it must be asked."""
    (stage,) = stages(1)
    victim = victims.take()
    pid = ray.get(victim.pid.remote())
    with InputNode() as inp:
        graph = stage.echo.bind(victim.full.bind(inp)).compile(report_after=None)
    with graph:
        rcg.get(graph.execute(8))
        assert graph.seen().marks == {}
        suspend(pid)
        try:
            ref = graph.execute(8)
            if waits:
                with pytest.raises(ChannelTimeout):
                    rcg.get(ref, timeout=1.5)
            until(lambda: graph.seen().marks == {"a0": ("stuck", "does not answer")})
            began_s = time.monotonic()
            drawn = graph.visualize(format="ascii")
            assert time.monotonic() - began_s < 2  # 0.2 s, and what drawing takes
            assert drawn.startswith(f"{graph.seen().stated_title}\n")
            assert drawn.count("(does not answer)") == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        rcg.get(ref)
        assert graph.seen().marks == {}
    victims.give_back(victim)


def test_an_actor_that_failed_to_start_names_its_own_error_in_a_sentence(ray_session):
    with InputNode() as inp:
        dag = Broken.remote().echo.bind(inp)
    with pytest.raises(ActorDiedError) as raised:
        dag.compile()
    assert raised.value.message.endswith(": its __init__ raised ValueError: no model there")


@rcg.remote(num_cpus=0)
class Broken:
    def __init__(self):
        raise ValueError("no model there")

    def echo(self, x):
        return x


def test_all_graphs_of_the_process(stages):
    (a,) = stages(1)
    gc.collect()
    before = len(rcg.report())
    with InputNode() as inp:
        dag = a.echo.bind(inp)
    with dag.compile() as one, dag.compile() as two:
        reports = rcg.report()
        assert {one.get_id(), two.get_id()} <= {report.graph_id for report in reports}
        assert one.title in str(reports)
    assert len(rcg.report()) == before


def test_a_process_without_graphs_says_so():
    program = "import rcg; print(rcg.report())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "no compiled graph is alive in this process"


def test_the_report_shows_unfetched_failures(stages):
    (a,) = stages(1)
    with InputNode() as inp:
        dag = a.fail_when.bind(inp, 2)
    with dag.compile() as graph:
        for i in range(5):
            graph.execute(i)
        assert rcg.get(graph.execute(9)) == 9
        assert graph.statistics().failures_dropped == 1
        text = str(graph.report())
        assert "failures that were dropped unread: 1, the last: " in text
        assert "Plain.fail_when, execution 2" in text and "no 2" in text


# --- statistics


def test_statistics_count_executions_and_memory(stages):
    a, b = stages(2)
    with InputNode() as inp:
        dag = b.echo.bind(a.echo.bind(inp))
    with dag.compile() as graph:
        assert graph.statistics().executions == 0
        array = np.zeros(1_000_000)
        refs = [graph.execute(array) for _ in range(3)]
        values = rcg.get(refs[:2])
        ready, _ = rcg.wait(refs, num_returns=3)
        assert len(ready) == 3
        found = graph.statistics()
        assert (found.executions, found.completed, found.in_flight) == (3, 3, 0)
        assert found.buffered == 1
        assert found.used_bytes >= array.nbytes
        assert found.used_bytes == sum(each.shared_bytes for each in found.processes)
        assert found.cap_bytes > found.used_bytes
        processes = but_gates(graph, found.processes)
        assert [each.label for each in processes] == ["driver", "a0 (Plain)", "a1 (Plain)"]
        assert processes[1].pid == rcg.get(a.pid.remote())
        assert processes[1].waits > 0
        assert "3 executions, 3 completed" in str(found)
        with pytest.raises(AttributeError):
            found.executions = 5
        del values, refs, ready
        gc.collect()
        assert graph.statistics().buffered == 0


def test_a_report_without_time_asks_no_actor(stages, monkeypatch):
    (a,) = stages(1)
    with InputNode() as inp:
        graph = a.echo.bind(inp).compile()
    try:
        asked = []
        questions = graph._engine.session.control.questions
        notify = questions._notify
        monkeypatch.setattr(questions, "_notify", lambda: (asked.append(1), notify()))
        assert "driver" in str(graph.report(timeout=0))
        assert not asked
        graph.report()
        assert len(asked) == 1
    finally:
        graph.teardown()


def test_a_graph_is_found_weakly_as_long_as_a_ref_is_held(stages):
    (a,) = stages(1)
    with InputNode() as inp:
        graph = a.echo.bind(inp).compile()
    find, ref = graph.weak(), graph.execute(5)
    graph_id = graph.get_id()
    assert find() is graph
    del graph
    found = find()
    assert found is not None and found.get_id() == graph_id and rcg.get(ref) == 5
    del found, ref
    until(lambda: find() is None)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(None, ValueError), (-2, ValueError), ("1", TypeError), (True, TypeError)],
)
def test_a_report_takes_a_number_of_seconds(stages, timeout, error):
    (a,) = stages(1)
    with InputNode() as inp, a.echo.bind(inp).compile() as graph:
        with pytest.raises(error, match="timeout"):
            graph.report(timeout=timeout)
        assert graph.report().state == "running"


# --- from another process

WATCHED = """
from tests.cluster.stage import Stage
a, b = Stage.remote(), Stage.remote()
with InputNode() as inp:
    graph = b.echo.bind(a.echo.bind(inp)).compile()
assert ray.get(graph.execute(3)) == 3
say(graph.get_id())
assert sys.stdin.readline() == "hold\\n"
line = ctypes.create_string_buffer(8)
ctypes.PyDLL(None).read(0, line, 8)  # with Python's lock
say("went on", line.value)
sys.stdin.readline()
"""


def rcg_top(pid):
    """What ``rcg top`` says of a process: its status, and the JSON."""
    command = [sys.executable, "-m", "rcg", "top", "--once", "--json", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.returncode, json.loads(done.stdout)


def silence_of(pid):
    """Why a process does not answer, in 0.5 s."""
    (found,) = find_drivers(pid, timeout_s=0.5)
    assert bool(found.trouble) != bool(found.graphs)
    return found.trouble


@pytest.mark.full
def test_rcg_top_asks_drivers_and_says_which_do_not_answer(driver):
    program = driver(WATCHED, stdin=subprocess.PIPE)
    graph_id = program.line()
    status, (found,) = rcg_top(program.pid)
    (graph,) = found["graphs"]
    assert (status, found["pid"], found["trouble"]) == (0, program.pid, "")
    assert (graph["graph_id"], graph["name"]) == (graph_id, "graph")
    assert (graph["completed"], graph["in_flight"], graph["throughput"]) == (1, 0, 0)
    assert [(row["label"], row["state"]) for row in graph["rows"]] == [
        ("driver", "ready"),
        ("a0 (Plain)", "ready"),
        ("a1 (Plain)", "ready"),
    ]

    def say(text):
        program.process.stdin.write(text)
        program.process.stdin.flush()

    say("hold\n")
    until(lambda: "native code that it runs holds Python's lock" in silence_of(program.pid))
    say("go on\n")
    program.expect("went on b'go on\\n'")
    until(lambda: not silence_of(program.pid))
    suspend(program.pid)
    status, (found,) = rcg_top(program.pid)
    assert (status, found["pid"], found["graphs"]) == (0, program.pid, [])
    assert found["trouble"] == (
        "does not answer within 2 s: it is stopped, by a signal or a debugger"
    )
    program.kill()
    assert rcg_top(program.pid) == (1, [])
