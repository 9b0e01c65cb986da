# SPDX-License-Identifier: Apache-2.0
"""The magics, in a real IPython shell, on real actors."""

from __future__ import annotations

import gc
import os
import sys
from functools import partial

import pytest

import rcg
from rcg.dag import InputNode
from rcg.errors import AttachError
from rcg.magics import magics
from rcg.profiling import Profile
from rcg.runtime.observe.attach import find_live
from rcg.trace.trace import Trace
from tests.harness.shell import interactive_shell

pytestmark = pytest.mark.usefixtures("ray_session")

NAMES = ("rcg_profile", "rcg_graph", "rcg_schedule", "rcg_report", "rcg_top")


@pytest.fixture(scope="module")
def shell():
    """A shell with the extension loaded."""
    with interactive_shell() as made:
        made.run_line_magic("load_ext", "rcg")
        yield made


@pytest.fixture
def graph(stages):
    a, b = stages(2)
    with InputNode() as inp:
        dag = b.double.bind(a.echo.bind(inp))
    with dag.compile() as compiled:
        yield compiled


@pytest.fixture
def cell(shell, graph, monkeypatch):
    """Runs a cell, where `cdag` is the graph; returns its value and what it displayed."""
    shown = []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, **_: shown.append(data))
    shell.user_ns.update(cdag=graph, rcg=rcg)

    def run(source):
        shown.clear()
        result = shell.run_cell(source, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            # IPython keeps it somewhere, and its frames would keep the graph: so another is raised.
            error.__traceback__ = None
            raise type(error)(*error.args)
        return result.result, list(shown)

    yield run
    for name in [name for name in shell.user_ns if not name.startswith("_")]:
        if name not in ("In", "Out", "exit", "quit", "open", "get_ipython"):
            del shell.user_ns[name]
    shell.displayhook.flush()  # the values that `Out` holds
    sys.last_type = sys.last_value = sys.last_traceback = None
    gc.collect()


def test_a_line_is_profiled_and_its_value_returned(cell):
    value, shown = cell("%rcg_profile rcg.get([cdag.execute(i) for i in range(20)])")
    assert value == [2 * i for i in range(20)]
    (bundle,) = shown
    assert "20 executions" in bundle["text/plain"]
    assert bundle["text/html"].count("<img") == 4


def test_a_cell_is_profiled_and_its_variables_survive(cell, shell, tmp_path):
    files = f"--html {tmp_path}/page.html --perfetto={tmp_path}/x.json.gz"
    value, shown = cell(
        f"""%%rcg_profile -o profile {files} -n 3
refs = [cdag.execute(i) for i in range(5)]
total = sum(rcg.get(refs))
text = "$HOME {{total}}  two  spaces"
total
"""
    )
    assert value is None  # the profile is what stands below the cell
    assert shell.user_ns["total"] == 20
    assert shell.user_ns["text"] == "$HOME {total}  two  spaces"
    profile = shell.user_ns["profile"]
    assert isinstance(profile, Profile)
    assert profile.executions().is_complete.sum() == 15
    assert len(shown) == 1
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "x.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_a_profile_is_named_by_the_option_or_the_variable(cell):
    rcg.profiles(keep=0)
    cell("%rcg_profile --quiet --name 'with 3' rcg.get(cdag.execute(4))")
    cell("%rcg_profile --quiet -o before rcg.get(cdag.execute(4))")
    assert [run.name for run in rcg.profiles()] == ["with 3", "before"]


def test_quiet_shows_nothing(cell, shell):
    value, shown = cell("%%rcg_profile --quiet -o p\nrcg.get(cdag.execute(4));x = 1")
    assert (value, shown) == (None, [])
    assert shell.user_ns["p"].trace.num_events > 0


def test_an_error_in_the_cell_is_the_users_and_the_profile_is_kept(cell, shell, capsys):
    with pytest.raises(ZeroDivisionError):
        cell("%%rcg_profile -o p\nrcg.get(cdag.execute(1))\n1 / 0")
    assert "1 / 0" in capsys.readouterr().out
    assert shell.user_ns["p"].trace.num_events > 0


def test_code_may_begin_with_a_minus(cell):
    assert cell("%rcg_profile --quiet -rcg.get(cdag.execute(4))")[0] == -8
    assert cell("%rcg_profile --quiet -- -1")[0] == -1


def test_values_may_touch_their_options(cell, shell):
    value, shown = cell("%rcg_profile -n3 -op --quiet cdag.execute(2).get()")
    assert (value, shown) == (4, [])
    assert shell.user_ns["p"].executions().is_complete.sum() == 3
    cell("order = 5\nn = 2")
    assert cell("%rcg_profile --quiet -(order)")[0] == -5  # code
    assert cell("%rcg_profile --quiet -- -n")[0] == -2


def test_a_semicolon_at_the_end_is_harmless(cell):
    assert cell("%rcg_profile --quiet cdag.execute(4).get();")[0] is None
    cell("%%rcg_profile --quiet;\n1")
    for magic in ("%rcg_graph cdag;", "%rcg_graph ;", "%rcg_schedule cdag ;"):
        assert len(cell(magic)[1]) == 1


def test_options_may_come_after_the_name(cell, capsys):
    _, (plain,) = cell("%rcg_graph cdag")
    _, (before,) = cell("%rcg_graph --channels cdag")
    for line in ("cdag --channels", "(cdag)  --channels;", "[cdag, -1 - -2][0] --channels"):
        assert cell(f"%rcg_graph {line}")[1] == [before] != [plain]
    cell("%rcg_top cdag --text --interval=1")
    assert "execution" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_reported_at_the_end(
    cell, shell, capsys, monkeypatch, tmp_path
):
    from IPython.core.error import UsageError

    shown = []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, **_: shown.append(data))
    with pytest.raises(UsageError):
        cell(
            f"%rcg_profile -o p --html {tmp_path}/{'x' * 300}.html --perfetto {tmp_path}/x.json "
            "cdag.execute(1).get()"
        )
    text = capsys.readouterr().err
    assert text.startswith("UsageError: %rcg_profile: --html: ") and "cannot be written" in text
    assert len(text.strip().splitlines()) == 1
    assert len(shown) == 1 and (tmp_path / "x.json").stat().st_size
    assert shell.user_ns["p"].trace.num_events


def test_an_interrupted_profile_shows_what_was_recorded_and_no_frame_of_ours(
    cell, shell, capsys, monkeypatch
):
    shown = []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, **_: shown.append(data))
    with pytest.raises(KeyboardInterrupt):
        cell("%%rcg_profile -o p\ncdag.execute(1).get()\nraise KeyboardInterrupt")
    assert len(shown) == 1 and "<img" in shown[0]["text/html"]
    assert shell.user_ns["p"].trace.num_events
    printed = capsys.readouterr().out
    assert "----> 2 raise KeyboardInterrupt" in printed and "rcg/magics" not in printed
    with pytest.raises(ZeroDivisionError):  # what the user's code raises, too
        cell("%rcg_profile --quiet 1 / 0")
    assert "rcg/magics" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "how", ["--html={}", "--html {}", "--html='{}'", '--html="{}"', "--html '{}'"]
)
def test_files_may_be_quoted(cell, tmp_path, how):
    path = tmp_path / "a page.html" if "'" in how or '"' in how else tmp_path / "page.html"
    cell(f"%rcg_profile --quiet {how.format(path)} 1")
    assert path.exists()


def test_files_may_be_named_from_home(cell, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    cell("%rcg_profile --quiet --html ~/page.html 1")
    assert (tmp_path / "page.html").exists()


def test_rcg_profile_of_a_graph_of_another_process(cell, graph, monkeypatch):
    # It is this very process here.
    monkeypatch.setattr(magics, "find_live", partial(find_live, pid=os.getpid()))
    name = graph.get_id()[:12]
    value, shown = cell(f"%rcg_profile --attach {name} -o p cdag.execute(4).get()")
    assert value == 8 and "a1 (Plain).double" in shown[0]["text/plain"]
    assert cell("p.trace.graphs[0].graph_id")[0] == graph.get_id()
    with pytest.raises(AttachError, match="no graph 'other'"):
        cell("%rcg_profile --attach other cdag.execute(4).get()")


def test_a_schedule_of_nothing_says_so(cell, capsys):
    cell("%rcg_profile --quiet -o p 1;")
    assert cell("%rcg_schedule p")[1] == []
    out = capsys.readouterr().out
    assert "%rcg_schedule: there is nothing to show: no execution is in it" in out
    assert len(out.strip().splitlines()) == 1


def test_there_is_a_widget_of_each_graph_that_did_something(cell, shell, monkeypatch, capsys):
    from dataclasses import replace
    from types import SimpleNamespace

    made = []
    views = SimpleNamespace(
        TopologyWidget=lambda what, **options: made.append((what, options)) or "made"
    )
    monkeypatch.setitem(sys.modules, "rcg_widgets", views)
    cell("%rcg_profile --quiet -o p cdag.execute(1).get()")
    trace = shell.user_ns["p"].trace
    (graph,) = trace.graphs
    empty = replace(graph, lanes=tuple(replace(e, events=e.events[:0]) for e in graph.lanes))
    shell.user_ns["many"] = Profile(replace(trace, graphs=(empty, *[graph] * 5)))
    assert len(cell("%rcg_graph many --widget")[1]) == 3
    assert [options for _, options in made] == [{"graph": 1}, {"graph": 2}, {"graph": 3}]
    assert "2 more graphs" in capsys.readouterr().out
    made.clear()
    cell("%rcg_graph cdag --widget")
    assert made == [(shell.user_ns["cdag"], {})]


def test_loading_twice_is_harmless(shell, cell, capsys):
    cell("%load_ext rcg")
    cell("%reload_ext rcg")
    assert cell("%rcg_profile --quiet 1 + 1")[0] == 2


def test_the_graph_its_schedule_and_its_report(cell, shell, capsys):
    for magic in ("%rcg_graph", "%rcg_graph cdag", "%rcg_graph --channels cdag.plan"):
        _, (bundle,) = cell(magic)
        assert bundle["text/html"].count("<img") == 1
    _, (bundle,) = cell("%rcg_schedule")
    assert "Schedule" in bundle["text/plain"]
    cell("%rcg_profile --quiet -o p rcg.get([cdag.execute(i) for i in range(30)])")
    for magic in ("%rcg_graph p", "%rcg_schedule p", "%rcg_schedule p.trace"):
        _, (bundle,) = cell(magic)
        assert bundle["text/html"].count("<img") == 1
    _, (bundle,) = cell("%rcg_report")
    assert "executions in flight" in bundle["text/plain"]
    assert "<table" in bundle["text/html"]
    cell("%rcg_top --text")
    assert "executions" in capsys.readouterr().out
    assert isinstance(shell.user_ns["p"].trace, Trace)


def test_graphs_that_have_not_run_are_left_out_and_the_newest_comes_first(
    cell, shell, graph, stages, capsys
):
    a, b = stages(2)
    with InputNode() as inp:
        dag = b.double.bind(a.echo.bind(inp))
    rcg.get(graph.execute(1))
    with dag.compile() as unused, dag.compile() as newest:
        rcg.get(newest.execute(1))
        _, (bundle,) = cell("%rcg_report")
        text = bundle["text/plain"]
        assert text.index(newest.title) < text.index(graph.title)
        assert unused.title not in text
        assert "1 more graph has not run yet" in capsys.readouterr().out
        cell("%rcg_top --text")
        printed = capsys.readouterr().out
        assert printed.index(newest.title) < printed.index(graph.title)
        assert unused.title not in printed and "1 more graph has not run yet" in printed
        shell.user_ns["unused"] = unused
        cell("%rcg_top --text unused")
        assert "0 executions" in capsys.readouterr().out


def test_without_graphs_it_says_so(shell, capsys):
    from rcg.runtime.driver.compiled_dag import live_graphs

    gc.collect()
    for each in live_graphs():
        each.teardown()
    for name in NAMES[1:]:
        shell.run_cell(f"%{name}")
        assert "there is no compiled graph in this process" in capsys.readouterr().err


def test_interactive_views_say_what_they_need(cell, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rcg_widgets", None)  # as if it were not installed
    cell("%rcg_profile --widget rcg.get(cdag.execute(1))")
    assert "pip install 'rcg[notebook]'" in capsys.readouterr().out
    for magic in ("%rcg_graph --widget", "%rcg_schedule --widget cdag"):
        assert "<img" in cell(magic)[1][0]["text/html"]
        assert capsys.readouterr().out.count("pip install 'rcg[notebook]'") == 1
    cell("%rcg_top")
    out = capsys.readouterr().out
    assert "pip install 'rcg[notebook]'" in out
    assert "1 execution" in out


@pytest.mark.parametrize("what", ["cdag", "cdag.plan", "cdag.report()", "rcg.report()"])
def test_things_show_themselves(cell, shell, what):
    data, _ = shell.display_formatter.format(eval(what, shell.user_ns))
    assert set(data) == {"text/plain", "text/html"}
    assert "<script" not in data["text/html"]
