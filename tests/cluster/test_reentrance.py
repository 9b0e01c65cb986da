# SPDX-License-Identifier: Apache-2.0
"""A graph that is used in the middle of its own use: nothing waits for itself.

Users' code runs in the middle of rcg's: values are pickled, the garbage collector runs ``__del__``
wherever Python makes a container, a signal handler runs between any two instructions, a log handler
where something is logged. Each may use the graph again, or wait for another thread that does.

Every situation is a program of its own, which ends with the stacks of all threads if it hangs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.stage import Driver

pytestmark = pytest.mark.usefixtures("ray_session")

SETTING = """\
import asyncio, contextlib, faulthandler, gc, itertools, logging, os, random, threading
faulthandler.dump_traceback_later(120, exit=True)
import numpy as np
from rcg.errors import ChannelClosed
from tests.cluster.stage import Gate, Stage

stage = Stage.remote()

def compiled(**options):
    with InputNode() as inp:
        graph = stage.echo.bind(inp).compile(**options)
    graph.kept = graph.execute("kept")  # for `get`
    return graph

async def once(graph, value):
    return await (await graph.execute_async(value))

def profiled(graph):
    with graph.profile() as profile:
        pass
    return profile.trace

# Ways to use a graph, each with what comes of it.
USES = {
    "execute": lambda graph: ray.get(graph.execute(b"inner")) == b"inner",
    "execute_async": lambda graph: asyncio.run(once(graph, b"inner")) == b"inner",
    "get": lambda graph: ray.get(graph.kept) == "kept",
    "wait": lambda graph: ray.wait([graph.kept])[1] == [],
    "report": lambda graph: graph.get_id()[:8] in str(graph.report()),
    "statistics": lambda graph: graph.statistics().executions > 0,
    "profile": lambda graph: profiled(graph) is not None,
    "compile": lambda graph: compiled().teardown() is None,
    "teardown": lambda graph: graph.teardown() is None,
}
EXECUTE = {
    "execute": lambda graph, value: ray.get(graph.execute(value)),
    "execute_async": lambda graph, value: asyncio.run(once(graph, value)),
}

def check(graph, use, execute, value):
    '''Execute with something in the middle of it that uses the graph.'''
    try:
        assert execute(graph, value) == "outer"
    except ChannelClosed:
        assert use == "teardown"
    else:
        if use != "teardown":
            assert ray.get(graph.execute("after")) == "after"
            graph.kept = None
            assert graph.statistics().in_flight == 0 and not graph._engine.left
    graph.teardown()

"""

PICKLING = """\
class Using:
    def __reduce__(self):
        assert USES[use](graph), use
        return str, ("outer",)

for how, execute in EXECUTE.items():
    for use in USES:
        if how == "execute" or use != "execute_async":  # a loop runs on that thread
            graph = compiled()
            check(graph, use, execute, Using())
say("done")
"""

LOCKING = """\
class Locking:
    def __reduce__(self):
        pickling.set()
        with lock:
            return str, ("outer",)

def hold():
    with lock:
        held.set()
        pickling.wait()
        outcome.append(USES[use](graph))

for execute in EXECUTE.values():
    for use in USES:
        graph = compiled()
        lock, held, pickling, outcome = threading.Lock(), threading.Event(), threading.Event(), []
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        check(graph, use, execute, Locking())
        thread.join()
        assert outcome == [True]
say("done")
"""

COLLECTING = """\
class Trash:
    '''Garbage whose end, on the main thread, is the n-th one that uses the graph.'''

    def __init__(self):
        self.itself = self

    def __del__(self):
        global come
        if threading.current_thread() is not threading.main_thread() or inside:
            return
        come += 1
        if come >= turn and come < turn + most:
            inside.append(None)
            try:
                problems.extend([] if USES[use](graph) else [use])
            except BaseException as error:
                problems.append((use, turn, repr(error)))
            inside.pop()

def refill(phase, _):
    if phase == "stop" and refilling:
        Trash()

refilling, inside, problems = [], [], []
gc.callbacks.append(refill)
value = ["outer", np.zeros(5000), np.zeros(3), b"x" * 9000]

for use in USES:
    if use == "execute_async":
        continue  # asyncio itself does not bear it
    most, step, last = {"teardown": (1, 9, 60), "compile": (1, 25, 60)}.get(use, (40, 40, 200))
    turn = 0
    while turn < last:
        graph, come = compiled(), 0
        gc.collect()
        before = gc.get_threshold()
        gc.set_threshold(1)
        refilling.append(None)
        try:
            for _ in range(6):
                assert ray.get(graph.execute(value))[0] == "outer"
        except ChannelClosed:
            assert use == "teardown"
        finally:
            refilling.clear()
            gc.set_threshold(*before)
        assert come > turn or turn, "nothing was collected"
        graph.teardown()
        turn += step
assert not problems, problems
say("done")
"""

# A tracer runs where a signal handler could: before every line of rcg's.
AT_EVERY_LINE = """\
import sys
outer = sys.argv[1]

class AtLine:
    '''Calls something before the n-th line of the runtime.'''

    def __init__(self, n, call):
        self.left, self.call, self.has_come = n, call, False

    def __call__(self, frame, event, _):
        code = frame.f_code
        rooms = "/rcg/runtime/", "/rcg/threads", "/rcg/dag/context"
        if not any(part in code.co_filename for part in rooms):
            return None
        if event == "line" and not self.has_come:
            if self.left == 0:
                self.has_come = True
                self.call()
            self.left -= 1
        return self

OUTER = {
    "execute": lambda graph: ray.get(graph.execute(("a", 1))) == ("a", 1),
    "report": USES["report"],
    "statistics": USES["statistics"],
    "profile": USES["profile"],
    "teardown": USES["teardown"],
}

def inner(graph, uses):
    def call():
        for use in uses:
            try:
                assert USES[use](graph)
            except (ChannelClosed, ray.errors.TraceError):
                assert "teardown" in (outer, *uses) or outer == "profile"
    return call

def run(graph, uses, n):
    '''Whether there was an n-th line.'''
    at = AtLine(n, inner(graph, uses))
    sys.settrace(at)
    try:
        OUTER[outer](graph)
    except (ChannelClosed, ray.errors.TraceError):
        assert "teardown" in (outer, *uses) or outer == "profile"
    finally:
        sys.settrace(None)
    return at.has_come

import rcg.errors
ray.errors = rcg.errors
cheap = ["execute", "get", "report", "statistics"]
graph = compiled()
for n in itertools.count():
    if outer == "teardown":
        graph = compiled()
    if not run(graph, cheap + (["profile"] if n % 8 == 0 else []), n):
        break
lines = n
reached = []
for n in range(0, lines, 1 + lines // 40):
    graph = compiled()
    reached.append(run(graph, ["teardown"], n))
    graph.teardown()
# How many lines there are depends on how long others take: not all of them come each time.
assert sum(reached) > len(reached) // 2, reached
assert lines > 15, lines
say("done")
"""

SIGNALS = """\
import signal
graph = compiled()
handled, inside = [], []

def handle(*_):
    if inside:
        return
    inside.append(None)
    use = random.choice(["execute", "get", "wait", "report", "statistics", "profile"])
    assert USES[use](graph)
    handled.append(use)
    inside.pop()

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0011)
count = 0
while len(handled) < 300:
    value = random.choice([b"x", ("outer", count), [np.arange(3000), count]])
    refs = [graph.execute(value) for _ in range(random.choice([1, 5, 15]))]  # 10 have room
    for got in ray.get(refs):
        assert type(got) is type(value)
    count += 1
signal.signal(signal.SIGALRM, lambda *_: graph.teardown())
try:
    while True:
        ray.get(graph.execute(b"x"))
except ChannelClosed:
    signal.setitimer(signal.ITIMER_REAL, 0)
say("done")
"""

LOGGING = """\
import rcg.runtime.driver.session
from pathlib import Path
rcg.runtime.driver.session._PATIENCE_S = 0.05  # after which a teardown says whom it waits for

class Handler(logging.Handler):
    def emit(self, record):
        if "is still in Plain.pass_gate" in record.getMessage():
            said.append(record)
            for use in ("report", "statistics"):
                assert USES[use](graph)
            gate.open()
        elif "teardown" in record.getMessage():
            graph.teardown()
        else:
            assert USES[record.getMessage()](graph)

handler = Handler()
for name in ("rcg", "users"):
    logging.getLogger(name).addHandler(handler)
log = logging.getLogger("users")
graph = compiled()
for use in USES:
    if use != "teardown":
        log.warning(use)
for end in (lambda: log.warning("teardown"), lambda: graph.teardown()):
    said = []
    gate = Gate(Path(sys.argv[1]) / str(id(end)))
    with InputNode() as inp:
        graph = stage.pass_gate.bind(inp, gate).compile()
    graph.execute(1)
    gate.wait_for()
    end()
    assert len(said) == 1
    gate.close()
say("done")
"""

INTERRUPTED = """\
import signal, time
with InputNode() as inp:
    graph = stage.note.bind(inp).compile()
seen, over, count, begun = {}, [], 5, threading.Event()
swallowed = []  # Ctrl-C in __del__, which Python does not pass on
sys.unraisablehook = lambda found: swallowed.append(repr(found.exc_value))

def work(name):
    for number in itertools.count():
        if over:
            return
        value = (name, number, bytes(random.choice([0, 10, 70_000])))
        ref = graph.execute(value)
        execution = ref.execution_index
        assert seen.setdefault(execution, value[:2]) == value[:2], "two have one index"
        assert ray.get(ref)[:2] == value[:2]

def press():
    begun.wait()  # before that, Ctrl-C would end the program
    for _ in range(150):
        time.sleep(random.expovariate(500))  # at random moments
        os.kill(os.getpid(), signal.SIGINT)
    over.append(None)

threads = [threading.Thread(target=work, args=(name,)) for name in range(1, count)]
pressing = threading.Thread(target=press)
for thread in [*threads, pressing]:
    thread.start()
pressed, started = 0, 0
while not over:
    try:
        begun.set()
        started += 1
        work(f"main {started}")
    except KeyboardInterrupt:
        pressed += 1
while True:
    try:
        for thread in [*threads, pressing]:
            thread.join()
        break
    except KeyboardInterrupt:
        pressed += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
last = graph.execute(("last", 0, b""))
ray.get(last)
noted = [value[:2] for value in ray.get(stage.noted.remote())]
assert len(noted) == last.execution_index + 1
assert noted[-1] == ("last", 0)
for execution, value in seen.items():
    assert noted[execution] == value
# What is not seen was submitted by an `execute` that Ctrl-C kept from returning.
missing = set(range(len(noted) - 1)) - set(seen)
assert all(str(noted[execution][0]).startswith("main") for execution in missing)
assert pressed > 50, pressed
del last
gc.collect()
graph.statistics()  # lets go of what was dropped
assert len(graph._engine.left) <= len(swallowed), (graph._engine.left, swallowed)
assert sum(len(buffer.frames) for buffer in graph._engine._buffers) <= len(swallowed)
graph.teardown()
say("done", len(noted), pressed, len(missing))
"""

Drivers = Callable[..., Driver]


def finishes(program: Driver) -> None:
    assert program.line().startswith("done")


@pytest.mark.full
def test_values_that_use_the_graph_while_they_are_pickled(driver: Drivers) -> None:
    finishes(driver(SETTING + PICKLING))


@pytest.mark.full
def test_values_that_wait_while_they_are_pickled_for_one_who_uses_the_graph(
    driver: Drivers,
) -> None:
    finishes(driver(SETTING + LOCKING))


@pytest.mark.full
def test_del_uses_the_graph_wherever_garbage_is_collected(driver: Drivers) -> None:
    finishes(driver(SETTING + COLLECTING))


@pytest.mark.full
@pytest.mark.parametrize("outer", ["execute", "report", "statistics", "profile", "teardown"])
def test_the_graph_is_used_before_every_line_of_its_own_use(driver: Drivers, outer: str) -> None:
    finishes(driver(SETTING + AT_EVERY_LINE, outer))


def test_signal_handlers_use_the_graph(driver: Drivers) -> None:
    finishes(driver(SETTING + SIGNALS))


@pytest.mark.full
def test_log_handlers_use_the_graph_and_tear_it_down(driver: Drivers, tmp_path) -> None:
    finishes(driver(SETTING + LOGGING, tmp_path))


def test_many_threads_submit_while_ctrl_c_is_pressed(driver: Drivers) -> None:
    """Nothing is lost, and indices are those of the frames."""
    finishes(driver(SETTING + INTERRUPTED))
