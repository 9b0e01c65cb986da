# SPDX-License-Identifier: Apache-2.0
"""Programs that are interrupted, exit or are killed, and what they leave behind: nothing."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import rcg
from rcg.dag import InputNode
from rcg.errors import ActorDiedError
from tests.cluster.stage import Stage, mapped_by, segments_of, until
from tests.harness.circles import core_has

pytestmark = pytest.mark.usefixtures("ray_session")

# What the programs share: actors, a gate whose files are the arguments, and a graph.
USUAL = """
import asyncio, contextlib, os, sys, threading
import numpy as np
from tests.cluster.stage import Passage, Stage

gate = Passage(*sys.argv[1:3])
a, b = Stage.remote("a"), Stage.remote("b")

def compile_gated(**options):
    with InputNode() as inp:
        dag = b.note.bind(a.pass_gate_when.bind(inp, 0, gate))
    return dag.experimental_compile(**options)

async def wait_for(ref):
    return await ref

def interrupted(call, what):
    try:
        say(what)
        call()
    except KeyboardInterrupt:
        say("interrupted")
"""


@pytest.fixture(autouse=True)
def no_new_file():
    """No test leaves a file in /dev/shm.

    Others on this machine may have one for a moment, and Ray's own compiled graphs leave theirs.
    """

    def names():
        return {
            name for name in os.listdir("/dev/shm") if not name.startswith(("sem.hdr", "sem.obj"))
        }

    before = names()
    yield
    until(lambda: names() <= before)


def nothing_is_mapped(segments):
    until(lambda: not mapped_by(segments))


def named_memory(pid):
    """What a process has open or mapped in /dev/shm that has a name there."""
    mapped = Path(f"/proc/{pid}/maps").read_text().splitlines()
    found = {line.split(maxsplit=5)[-1] for line in mapped}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(fd))
        except FileNotFoundError:
            continue  # closed since
    return {path for path in found if path.startswith("/dev/shm/") and "(deleted)" not in path}


def test_memory_has_no_name_while_a_graph_is_used(stages):
    """Named semaphores crashed where a name was taken or too long (ray#62427, ray#62328)."""
    a, b = stages(2)
    pids = [os.getpid(), *rcg.get([a.pid.remote(), b.pid.remote()])]
    with InputNode() as inp:
        dag = b.echo.bind(a.echo.bind(inp))
    with dag.experimental_compile() as graph:
        held = rcg.get(graph.execute(np.arange(1_000_000)))
        for pid in pids:
            assert segments_of(pid)
            assert named_memory(pid) == set()
        assert held[-1] == 999_999


# --- Ctrl-C

INTERRUPTED = """
graph = compile_gated()
ref = graph.execute(0)
later = graph.execute(1)
ours = [ref]
interrupted(lambda: ray.get(ref), "get")
interrupted(lambda: ref.get(timeout=1000), "get with a timeout")
interrupted(lambda: ray.get([later, ref]), "get of a list, out of order")
interrupted(lambda: ray.get([ref, a.echo.remote(1)]), "get of both kinds")
interrupted(lambda: ray.wait([ref]), "wait")

kept = []
def submit():
    for i in range(2, 100):
        kept.append(graph.execute(i))
interrupted(submit, "execute")

interrupted(lambda: asyncio.run(wait_for(ref)), "await")

async def execute_it():
    await graph.execute_async(-1)
interrupted(lambda: asyncio.run(execute_it()), "execute_async")

say("open the gate")
refs = [ref, later, *kept]
assert ray.get(refs) == list(range(len(refs))), refs
assert ray.get(graph.execute("more")) == "more"
assert ray.get(b.noted.remote()) == [*range(len(refs)), "more"]
say("all is there")
graph.teardown()
"""


def test_ctrl_c_interrupts_every_wait_and_loses_nothing(driver, gate):
    program = driver(USUAL + INTERRUPTED, *gate.paths)
    gate.wait_for()
    for wait in (
        "get",
        "get with a timeout",
        "get of a list, out of order",
        "get of both kinds",
        "wait",
        "execute",
        "await",
        "execute_async",
    ):
        program.expect(wait)
        program.interrupt()
        program.expect("interrupted")
    program.expect("open the gate")
    gate.open()
    program.expect("all is there")
    program.finish()


CLEAN_UP = """
graph = compile_gated(teardown_timeout=1000)
ref = graph.execute(0)
say(graph.get_id())
def tell():
    while not graph.is_teardown:
        os.sched_yield()
    say("teardown")
threading.Thread(target=tell).start()
try:
    graph.teardown()
except KeyboardInterrupt:
    # It went on to its end nevertheless.
    say("interrupted", graph.is_teardown, ray.get(a.join_threads.remote(graph.get_id())))

holding = a.hold_gate.remote(Passage(*sys.argv[3:5]))
interrupted(compile_gated, "compile")
say("open the gate")
with compile_gated() as graph:
    say(ray.get(graph.execute(1)), ray.get(holding))
"""


@pytest.mark.full
def test_ctrl_c_in_compile_and_teardown_cleans_up_first(driver, gates):
    first, second = gates(), gates()
    program = driver(USUAL + CLEAN_UP, *first.paths, *second.paths)
    first.wait_for()
    program.line()
    program.expect("teardown")
    program.interrupt()
    first.open()
    program.expect("interrupted True []")
    second.wait_for()
    program.expect("compile")
    program.interrupt()
    program.expect("interrupted", "open the gate")
    second.open()
    program.expect("1 passed")
    program.finish()


# --- exit

LEAVE = {
    "with results unread, arrays held and graphs forgotten": """
held = ray.get(graph.execute(np.arange(1_000_000)))
refs = [graph.execute(np.arange(1_000_000)) for _ in range(5)]
other = compile_gated()
with InputNode() as inp:
    graph = a.echo.bind(inp).experimental_compile()
say(ray.get(graph.execute(1)))
""",
    "while a method runs and threads wait": """
ref = graph.execute(0)
def wait(use):
    with contextlib.suppress(ray.exceptions.RayChannelError):
        use()
for use in (lambda: ray.get(ref), lambda: ray.wait([ref]), lambda: asyncio.run(wait_for(ref))):
    threading.Thread(target=wait, args=[use], daemon=True).start()
say(1)
""",
    "after a shutdown of Ray": """
say(ray.get(graph.execute(1)))
import ray as plain
plain.shutdown()
try:
    while True:
        ray.get(graph.execute(1))
except ray.exceptions.RayActorError as error:
    assert "Ray was shut down" in str(error), error
graph.teardown(kill_actors=True)
# Asking for the cause of the deaths has not started another Ray.
assert not plain.is_initialized()
""",
    "with event loops that were not closed": """
loop = asyncio.new_event_loop()
say(loop.run_until_complete(wait_for(graph.execute(1))))
task = loop.create_task(wait_for(graph.execute(0)))
loop.run_until_complete(asyncio.wait([task], timeout=0.01))
task.cancel()
loop.run_until_complete(asyncio.wait([task]))
""",
    "while results are awaited and executions wait for room": """
async def one():
    return await (await graph.execute_async(0))

async def leave():
    tasks = [asyncio.ensure_future(one()) for _ in range(30)]
    await asyncio.wait(tasks, timeout=0.05)

asyncio.run(leave())
say(1)
""",
    "with a code": """
say(ray.get(graph.execute(1)))
""",
}


@pytest.mark.parametrize("how", core_has("with a code", LEAVE))
def test_exit_without_teardown_is_clean_and_leaves_nothing(driver, gate, how):
    source = USUAL + "graph = compile_gated()\n" + LEAVE[how] + "say('pause'); input()\n"
    if how == "with a code":
        source += "sys.exit(3)"
    read, write = os.pipe()
    program = driver(source, *gate.paths, stdin=read)
    os.close(read)
    program.expect("1", "pause")
    segments = segments_of(program.pid)
    assert segments or "shutdown" in how
    # The gate stays closed: nothing waits for the method that is held there.
    os.write(write, b"\n")
    os.close(write)
    program.finish(3 if how == "with a code" else 0)
    nothing_is_mapped(segments)


EXCEPTION = """
graph = compile_gated()
ray.get(graph.execute(1))
raise KeyError("the only traceback")
"""


@pytest.mark.full
def test_an_uncaught_exception_is_the_only_thing_that_is_said(driver, gate):
    program = driver(USUAL + EXCEPTION, *gate.paths)
    assert program.process.wait(120) == 1
    assert program.stderr.count("Traceback") == 1
    assert "the only traceback" in program.stderr
    assert "Exception ignored" not in program.stderr


# --- kill -9


def test_a_killed_actor_leaves_no_memory(stages):
    (a,), victim = stages(1), Stage.remote()
    with InputNode() as inp:
        dag = a.echo.bind(victim.echo.bind(inp))
    before = segments_of("self")
    graph = dag.experimental_compile()
    segments = segments_of("self") - before
    assert segments
    held = rcg.get(graph.execute(np.arange(1_000_000)))
    os.kill(rcg.get(victim.pid.remote()), signal.SIGKILL)

    def go_on(graph):
        while True:
            rcg.get(graph.execute(np.arange(1_000_000)))

    with pytest.raises(ActorDiedError):
        go_on(graph)
    graph.teardown()
    np.testing.assert_array_equal(held, np.arange(1_000_000))
    del graph, held
    gc.collect()
    nothing_is_mapped(segments)
