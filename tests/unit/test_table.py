# SPDX-License-Identifier: Apache-2.0
"""A table says the same as text, as HTML and in a terminal, and nothing breaks out of a cell."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import pytest

from rcg.table import Cell, Table, state_cell
from tests.unit.views_traces import WICKED

TABLE = Table(
    ("process", "state", "nothing", "takes", "doing"),
    [
        ("a0 (Stage)", state_cell("waiting"), "", "12 ms", "x"),
        (Cell("a1 (Stage)", "strong", "of node 2"), state_cell("stuck"), "", "9.8 s", "y\nat z"),
    ],
    "nwwfw",
    marked={1},
)


def rows_of(html: str) -> list[list[str]]:
    found = ElementTree.fromstring(html.replace("class=rcg-marked", 'class="rcg-marked"'))
    return [[cell.text or "" for cell in row] for row in found.iter("tr")]


def test_text_html_and_terminal_have_the_same_cells() -> None:
    assert TABLE.text("  ").splitlines() == [
        "    process     state    takes  doing",
        "    a0 (Stage)  waiting  12 ms  x",
        "  > a1 (Stage)  stuck    9.8 s  y",
    ]
    assert rows_of(TABLE.html()) == [
        ["process", "state", "takes", "doing"],
        ["a0 (Stage)", "○ waiting", "12 ms", "x"],
        ["a1 (Stage)", "▲ stuck", "9.8 s", "y\nat z"],
    ]
    assert '<tr class=rcg-marked><td class="rcg-strong" title="of node 2">' in TABLE.html()
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=60)
    console.print(TABLE.rich())
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[2] == ["a1", "(Stage)", "▲", "stuck", "9.8", "s", "y"]


def test_names_are_shortened_in_text_and_words_are_not() -> None:
    long = "PrefillWorkerWithSpeculativeDecodingAndMore 12345"
    name, words = Table(("", ""), [(long, long)], "nw").text().strip().split("  ")
    assert len(name) == 40 and name.endswith("12345") and words == long


def test_nothing_breaks_out_of_a_cell() -> None:
    table = Table((WICKED, "x"), [(Cell(WICKED, hover=WICKED), WICKED)], "nf")
    assert rows_of(table.html()) and all(map(str.isprintable, table.text().splitlines()))
    assert "<script" not in table.html() and len(table.text().splitlines()) == 2


def test_a_table_without_rows_is_no_text_and_one_without_names_has_no_head() -> None:
    assert Table(("a", "b"), [], "nf").text() == ""
    assert Table(("", ""), [("x", "1")], "nf").text("  ") == "  x  1"
