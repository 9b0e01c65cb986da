# SPDX-License-Identifier: Apache-2.0
"""What the magics say of a command line, in a real IPython shell without a graph."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import rcg
import rcg.ipython
from rcg.runtime.observe.activity import Activity
from rcg.runtime.observe.report import Report
from tests.harness.driven import plan_of
from tests.harness.peers import noted
from tests.harness.shell import interactive_shell

NAMES = ("rcg_profile", "rcg_graph", "rcg_schedule", "rcg_report", "rcg_top")


@pytest.fixture(scope="module")
def shell():
    """A shell with the extension loaded, where `cdag` is no graph."""
    with interactive_shell() as made:
        made.run_line_magic("load_ext", "rcg")
        made.user_ns.update(rcg=rcg, cdag=SimpleNamespace(plan=plan_of(1, 2)))
        yield made


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("%rcg_profile", "there is nothing to run"),
        ("%rcg_profile --hmtl x.html cdag", "unrecognized arguments: --hmtl"),
        ("%rcg_profile -n 0 cdag", "-n takes a number from 1 to 1,000,000, found 0"),
        ("%rcg_profile -o 3x cdag", "-o takes a variable's name, found '3x'"),
        ("%rcg_profile 1 +", "invalid syntax"),
        ("%%rcg_profile code here\ncdag", "'code here' is not an option"),
        ("%%rcg_profile\nawait cdag.execute_async(1)", "a magic cannot await"),
        ("%rcg_graph rcg", "rcg is a module; it takes a compiled graph"),
        ("%rcg_report cdag.plan", "cdag.plan is not a compiled graph"),
        ("%rcg_top cdag --interval 0.01", "from 0.05 to 86,400, found 0.01"),
        ("%rcg_profile --html /nowhere/x.html 1 / 0", "there is no folder '/nowhere'"),
        ("%rcg_profile --perfetto /tmp 1 / 0", "--perfetto takes a file, found the folder '/tmp'"),
        ("%rcg_graph 1 / 0", "cannot be evaluated: ZeroDivisionError: division by zero"),
        ("%rcg_graph 3", "3 is an int; it takes a compiled graph"),
        ("%rcg_graph cdag --channels plan", "there is unexpected text after the options: 'plan'"),
        ("%rcg_graph rcg.profiling.Profile()", "this profile is still being recorded"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(shell, capsys, source, sentence):
    from IPython.core.error import UsageError

    result = shell.run_cell(source)
    assert isinstance(result.error_before_exec or result.error_in_exec, UsageError)
    printed = capsys.readouterr().err
    assert printed.startswith("UsageError: ")
    assert sentence in printed
    assert len(printed.strip().splitlines()) == 1


HUGE = ("9" * 19, "-" + "9" * 19, "9" * 400, "1" + "0" * 5000, "9" * 200_000)
NOT_NUMBERS = ("1e400", "nan", "0x10", "1__0", "\ud800", "1\0", "\N{SUPERSCRIPT TWO}", "")
NO_FILES = (
    "\0",
    "/tmp/\udfff/x",
    "~nobody-of-that-name/x.html",
    "~\ud800/x",
    "/no\n/where/x.html",
    "x" * 100_000 + "/y",
    "/",
    ".",
    "",
)
WRONG = [
    *(f"rcg_profile -n {text} 1" for text in (*HUGE, *NOT_NUMBERS)),
    *(f"rcg_profile -n={text} 1" for text in (*HUGE, *NOT_NUMBERS)),
    *(f"rcg_top --interval={text}" for text in ("1e400", "-1e400", "nan", "9" * 400, "1e300")),
    *(f"rcg_top --interval {text}" for text in (*HUGE, "1\0", "\ud800", "1,5")),
    *(f'rcg_profile --html "{text}" 1' for text in NO_FILES),
    *(f"rcg_profile --perfetto='{text}' 1" for text in NO_FILES),
    *(f"rcg_profile -o {text} 1" for text in ("\0", "\ud800", "x" * 99 + "-", '""')),
    *(f"rcg_profile {text}" for text in ("a\0", "'\ud800'", "(" * 5000)),
    *(f"{name} {text}" for name in NAMES[1:] for text in ("a\0", "'\ud800'", "(" * 5000)),
    *(f"{name} --{text}" for name in NAMES for text in ("a\0", "\ud800", "x" * 9)),
]


def test_no_number_and_no_path_raises_anything_but_one_sentence(shell):
    from IPython.core.error import UsageError

    for line in WRONG:
        name, _, rest = line.partition(" ")
        with noted(f"{line[:80]!a}"), pytest.raises(UsageError) as caught:
            shell.run_line_magic(name, rest)
        text = str(caught.value)
        assert text.isprintable() and len(text) < 600, line[:80]
        assert text.startswith(f"%{name}"), line[:80]


@pytest.mark.parametrize("name", NAMES)
def test_help_is_printed_and_nothing_runs(shell, capsys, name):
    assert shell.run_cell(f"%{name} --help").result is None
    out = capsys.readouterr().out
    assert out.startswith(f"usage: %{name}")
    assert "In code: " in out


@pytest.mark.parametrize(
    ("notes", "state", "count"),
    [
        (["rcg: a0 (Stage) holds up 1 other"], "gave up", 1),
        (["rcg: a0 (Stage) holds up 1 other"], "idle", 0),
        ([], "gave up", 0),  # Ctrl-C came elsewhere
    ],
)
def test_after_an_interrupted_get_the_report_is_shown(shell, monkeypatch, notes, state, count):
    driver = Activity(
        "driver", "driver", 1, state, "Read c1 -> s0", "reading", 3, 9.8, "a0 (Stage)", 0, 1, 1.0
    )
    busy = Activity(
        "a0", "a0 (Stage)", 2, "running", "Call a0.f(s0)", "in f", 3, 9.8, "", 0, 1, 1.0, ()
    )
    report = Report("5f1c" * 8, "running", (driver, busy), (), 0, 0)
    graph = SimpleNamespace(report=lambda: report)
    monkeypatch.setattr(rcg.ipython, "live_graphs", lambda: [graph])
    shown = []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, **_: shown.append(data))
    rcg.ipython.attach()
    error = KeyboardInterrupt()
    for note in notes:
        error.add_note(note)
    shell.user_ns["error"] = error
    shell.run_cell("raise error")
    assert len(shown) == count
    if count:
        assert shown[0]["text/plain"].startswith("a0 (Stage) holds up 1 other: in f for 9.8 s")
        assert "<table" in shown[0]["text/html"]
