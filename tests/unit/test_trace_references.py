# SPDX-License-Identifier: Apache-2.0
"""Transfers of tensors by reference in a trace: as sums, pictures and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcg.errors import TraceError
from rcg.profiling import Profile
from rcg.trace.analysis.transfers import reference_sums, references_table
from rcg.trace.model import TensorTransfer
from rcg.trace.trace import Trace
from rcg.views.svg.pictures import references_picture
from tests.unit.chrome_format import read
from tests.unit.test_trace_save import rewritten

A, B = (f"Actor({name}, {digit * 32})" for name, digit in (("Maker", "a"), ("Ta<ker", "b")))


def transfer(start: int, waited: int, moved: int, *, target: str = B, **changes: object) -> object:
    fields = {"object": "k-1", "source": A, "transport": "gloo", "bytes": 1 << 20, "error": ""}
    fields.update(changes)
    return TensorTransfer(
        target=target, start_ns=start, waited_ns=waited, end_ns=start + waited + moved, **fields
    )


@pytest.fixture
def trace() -> Trace:
    transfers = (
        transfer(1_000, 500, 2_000),
        transfer(1_200, 100, 5_000),  # overlaps with the first
        transfer(2_000, 0, 300, target=A, source=B, transport="object_store", bytes=10),
        transfer(9_000, 700, 0, error="it is gone", bytes=0),
    )
    return Trace((), 900, 20_000, {"host": "x"}, transfers)


def test_sums_tell_waiting_from_moving(trace):
    first, second = reference_sums(trace.transfers)
    assert (first.source, first.target, first.transport) == (A, B, "gloo")
    assert (first.transfers, first.bytes, first.failed) == (3, 2 << 20, 1)
    assert (first.waited_ns, first.moved_ns) == (1_300, 7_000)
    assert (second.bytes, second.moved_ns) == (10, 300)
    table = references_table([first, second])
    row = table.text().splitlines()[1]
    assert row.split("  ")[:3] == ["> Maker aaaaaaaa", " Ta<ker bbbbbbbb", "gloo"]
    assert "7 µs   300 GB/s" in row  # 2.1 MB in 7 us


def test_a_profile_without_graphs_shows_them(trace):
    profile = Profile(trace)
    assert "Tensors by reference: 4 transfers" in str(profile)
    assert "4 transfers of tensors" in repr(profile)
    assert "data:image/svg+xml" in profile._repr_mimebundle_()["text/html"]


def test_the_page_has_their_table(trace, tmp_path):
    Profile(trace).save_html(tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert "Maker aaaaaaaa" in page and "object_store" in page
    assert "<ker" not in page  # names are the user's


def test_many_transfers_give_a_small_picture():
    many = tuple(transfer(at * 1_000, 300, 600, target=f"t{at % 7}") for at in range(20_000))
    picture = references_picture(Trace((), 0, 20_000_000, {}, many))
    assert len(picture) < 300_000
    assert "the latest 5000 are drawn" in picture


@pytest.mark.parametrize(
    "change", [{"waited_ns": 1 << 40}, {"bytes": -1}, {"end_ns": 0}, {"source": 3}]
)
def test_a_file_with_wrong_ones_is_refused(trace, tmp_path: Path, change):
    trace.save(tmp_path / "t.rcg")
    rewritten(tmp_path / "t.rcg", lambda head: head["transfers"][0].update(change))
    with pytest.raises(TraceError, match="is not a trace that rcg wrote"):
        Trace.load(tmp_path / "t.rcg")


def test_perfetto_gets_threads_in_which_nothing_overlaps(trace, tmp_path):
    trace.to_chrome(tmp_path / "t.json")
    found = read(tmp_path / "t.json").slices
    gets = [each for each in found if each.category == "communication"]
    assert sorted(each.args["bytes"] for each in gets) == [10, 1 << 20, 1 << 20]
    assert all(each.parent is None for each in found)
    waits = [each for each in found if each.name.startswith("wait: from ")]
    assert sorted(each.end - each.start for each in waits) == [100, 500, 700]
    assert "failed: it is gone" in waits[-1].name
