# SPDX-License-Identifier: Apache-2.0
"""Progress of long work, on a clock of the test's own."""

from __future__ import annotations

import io
import sys
import types

import pytest

from rcg import options
from rcg.progress import Progress, notice, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable, and no tqdm unless a test wants it."""
    monkeypatch.delenv("RCG_PROGRESS", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_short_work_shows_nothing():
    stream, clock = Terminal(), Clock()
    with Progress(10, "echo", stream=stream, clock=clock) as work:
        for _ in range(10):
            clock.now += 0.09
            work.advance()
    assert stream.getvalue() == ""


def test_long_work_shows_how_far_it_is_and_goes_away():
    stream, clock = Terminal(), Clock()
    with Progress(4, "echo", stream=stream, clock=clock) as work:
        work.advance()
        clock.now += 1.0
        work.advance()
        assert stream.getvalue().endswith("[" + "#" * 15 + "." * 15 + "]  50 % echo")
        clock.now += 0.5
        work.start("scatter")
        assert stream.getvalue().endswith(" 50 % scatter")
        clock.now += 0.5
        work.advance(7)
        assert stream.getvalue().endswith("100 % scatter")
    assert stream.getvalue().endswith("\r\x1b[2K\r")
    work.close()


def test_it_is_not_drawn_more_often_than_one_can_see():
    stream, clock = Terminal(), Clock()
    work = Progress(1000, stream=stream, clock=clock)
    clock.now += 2
    for _ in range(1000):
        clock.now += 0.001
        work.advance()
    assert 8 <= stream.getvalue().count("%") <= 12


def test_nothing_is_shown_where_nobody_looks():
    stream, clock = io.StringIO(), Clock()
    with Progress(2, "echo", stream=stream, clock=clock) as work:
        clock.now += 5
        work.advance()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("text", "is_shown"), [("0", False), ("off", False), ("1", True), ("", True)]
)
def test_the_switch(text, is_shown, monkeypatch):
    monkeypatch.setenv("RCG_PROGRESS", text)
    stream, clock = Terminal(), Clock()
    with Progress(2, "echo", stream=stream, clock=clock) as work:
        clock.now += 5
        work.advance()
    assert bool(stream.getvalue()) is is_shown


def test_the_switch_is_a_known_variable(recwarn):
    options.Options.from_environment({"RCG_PROGRESS": "0"})
    assert not recwarn.list
    with pytest.warns(UserWarning, match="did you mean RCG_PROGRESS"):
        options.Options.from_environment({"RCG_PROGRES": "0"})
    with pytest.raises(ValueError, match="`RCG_PROGRESS` must be one of"):
        options.is_progress_wanted({"RCG_PROGRESS": "perhaps"})


def test_iterating_gives_the_items_and_counts_them():
    assert list(progress(["a", "b"], "adding")) == ["a", "b"]
    assert list(progress(3)) == [0, 1, 2]
    stream, clock = Terminal(), Clock()
    for item in Progress(3, "adding", items="abc", stream=stream, clock=clock):
        clock.now += 1
        if item == "b":
            break
    assert " 33 % adding" in stream.getvalue()
    assert stream.getvalue().endswith("\r")  # gone, though it was left


def test_a_total_that_is_not_known():
    stream, clock = Terminal(), Clock()
    for _ in Progress(None, "reading", items=iter("abc"), stream=stream, clock=clock):
        clock.now += 1
    assert "reading: 3" in stream.getvalue()


def test_a_notebook_without_widgets_gets_a_line_of_text(monkeypatch):
    notebook(monkeypatch)
    stream, clock = io.StringIO(), Clock()
    with Progress(2, "a long label", stream=stream, clock=clock) as work:
        clock.now += 1
        work.advance()
        clock.now += 1
        work.start("short")
    lines = stream.getvalue().split("\r")
    assert lines[1].endswith(" 50 % a long label")
    assert len(lines[2]) >= len(lines[1])  # what was longer is written over
    assert lines[3].isspace()
    assert "\x1b" not in stream.getvalue()


def test_tqdm_where_it_is(monkeypatch):
    tqdm = pytest.importorskip("tqdm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "tqdm")
    before = tqdm.tqdm.monitor
    stream, clock = Terminal(), Clock()
    with Progress(4, "echo", stream=stream, clock=clock) as work:
        clock.now += 1
        work.advance(2)
        assert "echo:  50%" in stream.getvalue()
    assert tqdm.tqdm.monitor is before


def test_widgets_in_a_notebook(monkeypatch):
    pytest.importorskip("ipywidgets")
    auto = pytest.importorskip("tqdm.auto")
    made = []

    class Bar:
        def __init__(self, **options):
            made.append(options)

        def set_description(self, label, refresh):
            made.append(label)

        def refresh(self):
            made.append(self.n)

        def close(self):
            made.append("closed")

    notebook(monkeypatch)
    monkeypatch.setattr(auto, "tqdm", Bar)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    clock = Clock()
    with Progress(4, "echo", stream=io.StringIO(), clock=clock) as work:
        clock.now += 1
        work.advance(2)
    assert made[0]["total"] == 4
    assert made[1:] == ["echo", 2, "closed"]


def test_a_notice_is_no_error_so_a_notebook_does_not_show_it_in_red(monkeypatch, capsys):
    notice("it takes a while")
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", "it takes a while\n")
    notebook(monkeypatch)
    notice("it takes a while")
    found = capsys.readouterr()
    assert (found.out, found.err) == ("it takes a while\n", "")
    monkeypatch.setattr(sys, "stdout", None)
    notice("nobody reads it")
