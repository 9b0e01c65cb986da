# SPDX-License-Identifier: Apache-2.0
"""Perfetto reads what rcg writes for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rcg.views.chrome import to_chrome
from tests.unit.traces import one_execution


def trace_processor() -> str | None:
    """Returns Perfetto's parser if it is on this machine; the Python package only downloads it."""
    on_path = shutil.which("trace_processor_shell")
    cached = (Path.home() / ".local/share/perfetto/prebuilts").glob("trace_processor_shell*")
    return on_path or next((str(path) for path in cached), None)


@pytest.fixture
def query(tmp_path) -> Iterator:
    processor = pytest.importorskip("perfetto.trace_processor")
    binary = trace_processor()
    if binary is None:
        pytest.skip(
            "Perfetto's trace_processor_shell is not here: put it on the PATH "
            "(https://get.perfetto.dev/trace_processor)"
        )
    path = tmp_path / "trace.json.gz"
    config = processor.TraceProcessorConfig(bin_path=binary)
    to_chrome(one_execution(), path)
    with processor.TraceProcessor(trace=str(path), config=config) as opened:
        yield opened.query


def test_perfetto_reads_it(query):
    errors = {row.name: row.value for row in query("select * from stats where severity != 'info'")}
    assert not {name: value for name, value in errors.items() if value}
    [call] = query("select ts, dur from slice where name = 'fwd' order by ts limit 1")
    assert (call.ts, call.dur) == (40, 50)
    arrows = query(
        "select o.name as out, i.name as into_ from flow "
        "join slice o on o.id = flow.slice_out join slice i on i.id = flow.slice_in"
    )
    assert {(row.out, row.into_) for row in arrows} == {
        ("write c0", "read c0"),
        ("write c1", "read c1"),
        ("write c2", "read c2"),
    }
    names = {row.name for row in query("select name from process where name is not null")}
    assert {"driver", "a0 (Stage)", "a1 (Stage)"} <= names
