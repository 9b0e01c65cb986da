# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment: it is raised, and nothing else changes."""

from __future__ import annotations

import itertools
import linecache
import signal
import sys
import threading

import pytest

import rcg
from rcg.dag import InputNode, MultiOutputNode

pytestmark = pytest.mark.usefixtures("ray_session")

EXECUTIONS = 3000


@rcg.remote(num_cpus=0)
class Worker:
    def add(self, a: int, b: int) -> int:
        return a + b

    def echo(self, x: int) -> int:
        return x


class Interrupter:
    """Sends Ctrl-C to the main thread, again and again, while it is on."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._main = threading.main_thread().ident
        self.sent = 0

    def _run(self) -> None:
        while not self._is_over.wait(0.0007):
            self.sent += 1
            signal.pthread_kill(self._main, signal.SIGINT)

    def __enter__(self) -> Interrupter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The last one may still be on its way when the thread has ended.
        self._is_over.set()
        while True:
            try:
                self._thread.join()
                for _ in range(1000):
                    pass
                return
            except KeyboardInterrupt:
                continue


def through_interrupts(run_one):
    """Runs ``run_one(i)`` for every i, taking Ctrl-C as it comes; returns how many came."""
    seen = 0
    i = 0
    with Interrupter():
        while i < EXECUTIONS:
            try:
                run_one(i)
                i += 1
            except KeyboardInterrupt:
                seen += 1
    return seen


def compile_two(is_listed: bool):
    """Two inputs, two actors; one output or two."""
    a, b = Worker.remote(), Worker.remote()
    with InputNode() as inp:
        total, echoed = a.add.bind(inp[0], inp.extra), b.echo.bind(inp.extra)
        dag = MultiOutputNode([total, echoed]) if is_listed else a.add.bind(total, echoed)
    return dag.compile()


def expected(i: int, is_listed: bool):
    return [11 * i, 10 * i] if is_listed else 21 * i


class InterruptedAtLine:
    """Raises KeyboardInterrupt before the n-th line that runs in rcg.

    Not before ``with``, which comes once more on the way out, between the block and the release of
    its lock, nor before ``try``, which no handler covers: a tracer can raise there and a signal
    cannot, because the interpreter looks for signals after calls only.
    """

    def __init__(self, n: int) -> None:
        self._left = n

    def __call__(self, frame, event, _):
        if "/rcg/" not in frame.f_code.co_filename or frame.f_code.co_name == "__del__":
            return None  # Python itself swallows what is raised in __del__
        if event == "line" and not self._is_no_call(frame):
            if not self._left:
                sys.settrace(None)
                raise KeyboardInterrupt
            self._left -= 1
        return self

    @staticmethod
    def _is_no_call(frame) -> bool:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        return line.lstrip().startswith(("with ", "try:"))


@pytest.mark.parametrize("is_listed", [False, True], ids=["one output", "two outputs"])
def test_ctrl_c_before_any_line_of_execute_or_get(is_listed):
    """Whichever line it comes before, later executions get their own results."""
    with compile_two(is_listed) as graph:
        i = 0
        for line in itertools.count():
            interrupt = InterruptedAtLine(line)
            try:
                sys.settrace(interrupt)
                assert rcg.get(graph.execute(i, extra=10 * i)) == expected(i, is_listed)
                break
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            for _ in range(2):
                i += 1
                assert rcg.get(graph.execute(i, extra=10 * i)) == expected(i, is_listed), line
        assert line > 20


@pytest.mark.parametrize("is_listed", [False, True], ids=["one output", "two outputs"])
def test_results_belong_to_their_executions_whenever_ctrl_c_comes(is_listed):
    """The same with signals, which come between any two instructions."""
    with compile_two(is_listed) as graph:

        def run_one(i: int) -> None:
            assert rcg.get(graph.execute(i, extra=10 * i)) == expected(i, is_listed)

        assert through_interrupts(run_one) > 0
        run_one(-1)


def test_an_interrupted_get_can_be_repeated():
    worker = Worker.remote()
    with InputNode() as inp:
        dag = worker.echo.bind(inp)
    with dag.compile() as graph:

        def run_one(i: int) -> None:
            ref = graph.execute(i)
            while True:
                try:
                    assert rcg.get(ref) == i
                    return
                except KeyboardInterrupt:
                    interrupted.append(i)

        interrupted: list[int] = []
        through_interrupts(run_one)
        assert interrupted
        run_one(-1)
