# SPDX-License-Identifier: Apache-2.0
"""``rcg attach`` and ``rcg.live``: a graph of another process, seen from here."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys

import pytest

import rcg
from rcg.errors import AttachError
from rcg.runtime.observe import attach
from rcg.wire import sockets
from tests.cluster.stage import ROOT, in_thread, until
from tests.harness.peers import suspend

pytestmark = pytest.mark.usefixtures("ray_session")


ATTACHED = """
import select, threading
signal.signal(signal.SIGUSR1, lambda *_: say(*(each.name for each in threading.enumerate())))
from tests.cluster.stage import Stage
a, b = Stage.remote(), Stage.remote()
with InputNode() as inp:
    first = a.echo.bind(inp).compile(name="first")
    busy = b.echo.bind(inp).compile(name="busy")
    named = a.echo.bind(inp).compile(name=busy.get_id()[:8])
say(busy.get_id())
while not select.select([sys.stdin], [], [], 0.001)[0]:
    busy.execute(3).get()
busy.teardown()
say("over")
sys.stdin.read()
"""


ATTACH = [sys.executable, "-m", "rcg", "attach"]


def rcg_attach(*arguments):
    """What ``rcg attach`` says: its status, and both of its outputs."""
    done = subprocess.run([*ATTACH, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


def is_recording(program):
    """The threads with which it answers somebody, and records."""
    os.kill(program.pid, signal.SIGUSR1)
    return {"rcg-attached", "rcg-profile"} & set(program.line().split())


def test_a_graph_of_another_process_is_reported_and_profiled(driver, tmp_path, monkeypatch):
    program = driver(ATTACHED, stdin=subprocess.PIPE)
    graph_id = program.line()
    live = rcg.live(graph_id[:12], pid=program.pid)
    assert (live.name, live.graph_id, live.pid) == ("busy", graph_id, program.pid)
    assert re.match(rf"busy \(\w+\) of process {program.pid}: .", repr(live))
    assert rcg.live(graph_id[:8], pid=program.pid).name == graph_id[:8], "a name, before an id"
    report = live.report()
    assert report.asked and [each.label for each in report.processes] == ["driver", "a0 (Plain)"]
    with live.profiler() as profile:
        begun = live.report().completed
        until(lambda: live.report().completed > begun + 3)
    (found,) = profile.trace.graphs
    assert (found.graph_id, found.name, found.lanes[0].pid) == (graph_id, "busy", program.pid)
    assert len(profile.executions()) > 3
    page = tmp_path / "page.html"
    status, said, _ = rcg_attach("busy", "--pid", program.pid, "--profile", 0.1, "--html", page)
    assert status == 0 and "busy (" in said and "a0 (Plain)" in said and "<svg" in page.read_text()
    status, said, _ = rcg_attach("busy", "--pid", program.pid)
    assert status == 0 and f"busy ({graph_id[:8]})" in said
    status, said, error = rcg_attach("--pid", program.pid)
    assert (status, said) == (1, "") and "\n  first (" in error and "\n  busy (" in error
    for name in ("bus", graph_id[:3]):
        with pytest.raises(AttachError, match=r"no graph '\w+' in process .* first \(.*busy \("):
            rcg.live(name, pid=program.pid)
    with pytest.raises(ValueError, match="from 0 to 3600 seconds, found -1"):
        live.profile(-1)
    resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (1000, -1))  # no room for the answer
    with pytest.raises(AttachError, match=r"cannot do that: OSError: .*File too large"):
        live.profile(1)
    resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (-1, -1))
    wait = sockets.wait_for_message

    def interrupted(*arguments):
        if arguments[2:] == (3600,):
            raise KeyboardInterrupt
        return wait(*arguments)

    with monkeypatch.context() as patched:  # Ctrl-C
        patched.setattr(sockets, "wait_for_message", interrupted)
        assert live.profile(3600, until_interrupt=True).trace.graphs[0].graph_id == graph_id
    with live.profiler() as profile:
        program.process.stdin.write("\n")
        program.process.stdin.flush()
        program.expect("over")
    assert profile.trace.graphs[0].graph_id == graph_id
    with pytest.raises(AttachError, match=f"process {program.pid} has ended this graph"):
        live.report()


def kill_and_raise(program):
    program.kill()
    raise KeyError("of the block")


@pytest.mark.full
def test_a_profile_of_another_process_ends_with_either_process(driver, monkeypatch):
    program = driver(ATTACHED, stdin=subprocess.PIPE)
    live = rcg.live(program.line(), pid=program.pid)
    asker = subprocess.Popen([*ATTACH, "busy", "--profile", "3600"], cwd=ROOT)
    until(lambda: len(is_recording(program)) == 2)
    asker.kill()
    asker.wait()
    until(lambda: not is_recording(program))
    suspend(program.pid)
    monkeypatch.setattr(attach, "_ANSWER_TIMEOUT_S", 0.5)
    with pytest.raises(AttachError, match=r"does not answer within 0\.5 s: it is stopped"):
        live.report()
    os.kill(program.pid, signal.SIGCONT)
    profiled = in_thread(lambda: live.profile(3600))
    until(lambda: len(is_recording(program)) == 2)
    with pytest.raises(KeyError, match="of the block") as raised, live.profiler():
        kill_and_raise(program)
    assert f"process {program.pid} has ended" in raised.value.__notes__[0]
    with pytest.raises(AttachError, match=f"process {program.pid} has ended"):
        profiled()
    with pytest.raises(AttachError, match=f"no compiled graph in process {program.pid}"):
        rcg.live(pid=program.pid)
