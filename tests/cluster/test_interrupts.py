# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment: it is raised, and nothing else changes."""

from __future__ import annotations

import gc
import itertools
import linecache
import sys

import pytest

import rcg
from rcg.dag import InputNode, MultiOutputNode

pytestmark = pytest.mark.usefixtures("ray_session")


@rcg.remote(num_cpus=0)
class Worker:
    def add(self, a: int, b: int) -> int:
        return a + b

    def echo(self, x: int) -> int:
        return x


def compile_two(is_listed: bool):
    """Two inputs, two actors; one output or two."""
    a, b = Worker.remote(), Worker.remote()
    with InputNode() as inp:
        total, echoed = a.add.bind(inp[0], inp.extra), b.echo.bind(inp.extra)
        dag = MultiOutputNode([total, echoed]) if is_listed else a.add.bind(total, echoed)
    return dag.compile()


def expected(i: int, is_listed: bool):
    return [11 * i, 10 * i] if is_listed else 21 * i


_NO_CALLS = ("with ", "try:", "except", "return False", "return None", "pass", "continue", "break")


class InterruptedAtLine:
    """Raises KeyboardInterrupt before the n-th line that runs in rcg.

    Not before ``with``, whose line runs again at the end, between the block and the release of
    its lock, nor before ``try``, which no handler covers, nor before ``except`` and what ends a
    handler by a constant, where the exception that it handles would stay behind: a tracer can raise
    there and a signal cannot, because the interpreter looks for signals after calls only.
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
        return line.lstrip().startswith(_NO_CALLS)


@pytest.mark.full
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
        # Nothing of the interrupted executions stays behind.
        gc.collect()
        last = graph.execute(i, extra=0)
        rcg.get(last)
        del last
        rcg.get(graph.execute(i, extra=0))
        assert not graph._engine.left
        assert not any(buffer.frames for buffer in graph._engine._buffers)
