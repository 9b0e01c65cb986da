# SPDX-License-Identifier: Apache-2.0
"""The bench runs graphs of another version of rcg, in processes of their own."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import numpy as np
import pytest

from rcg.bench.beside import Visitor, VisitorFailed, start_both
from rcg.bench.graphs import lent
from rcg.bench.measure import Pace
from rcg.bench.record import HERE
from rcg.bench.rows import ROWS
from tests.harness.board import ROOT

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.full]

PACE = Pace(calls=20, time_ns=10**11, warm_up=2)


@pytest.fixture(scope="module")
def visitor(ray_session):
    made = Visitor(HERE, ROOT)
    yield made
    made.end()


@pytest.mark.parametrize("name", ["echo", "asyncio", "pipeline-4", "scatter-2", "arguments-8"])
def test_it_takes_turns_on_a_row(visitor, name):
    row = next(row for row in ROWS if row.name == name)
    payload = row.payload(random.Random(0))
    loop = asyncio.new_event_loop()
    session = visitor.open(row, payload, loop)
    value = session.check()
    assert value == {"scatter-2": [b"x", b"x"], "arguments-8": 8}.get(name, b"x")
    for _ in range(2):
        samples = session.turn(PACE)
        assert len(samples) * row.in_flight >= PACE.calls
        assert min(samples) > 0
    session.close()
    loop.close()


@pytest.mark.parametrize("name", ["numpy-10mb-loan", "numpy-10mb-new-loan"])
def test_it_lends_arrays_where_its_version_can(visitor, name):
    row = next(row for row in ROWS if row.name == name)
    payload = row.payload(random.Random(0))
    session = visitor.open(row, payload, None)
    assert np.array_equal(session.check(), payload[0])
    assert min(session.turn(PACE)) > 0
    session.close()


def test_a_graph_that_lends_nothing_gets_the_arrays_as_they_are():
    payload = (np.arange(3),)
    assert lent(object(), payload) is payload


def test_its_actors_are_processes_of_this_machine(visitor):
    assert len(set(visitor.pids())) == 4
    for pid in visitor.pids():
        assert "ray::" in Path(f"/proc/{pid}/cmdline").read_text()
    assert os.getpid() not in visitor.pids()


def test_what_goes_wrong_there_is_said_here(visitor):
    row = next(row for row in ROWS if row.name == "echo")
    with pytest.raises(VisitorFailed, match="UnpicklableError"):
        visitor.open(row, (Unpicklable(),), None)
    visitor.open(row, (b"x",), None).close()  # and it goes on


def test_a_folder_without_a_built_rcg_is_absent(tmp_path):
    (tmp_path / "rcg").mkdir()
    (tmp_path / "rcg" / "__init__.py").write_text("raise ImportError('nothing here')\n")
    found, absent = start_both(tmp_path)
    for each in found:
        each.end()
    assert [each.name for each in found] == [HERE]
    assert absent == {"rcg beside": "ImportError: nothing here"}


class Unpicklable:
    """A value that reaches the other process and cannot be sent on from there."""

    def __reduce__(self):
        return eval, ("type('Lock', (), {'__reduce__': lambda self: 1 / 0})()",)
