# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from rcg import cli, doctor, top
from rcg.runtime.observe import drivers
from rcg.runtime.observe.drivers import Driver, Graph
from rcg.runtime.observe.live import Meter
from tests.unit.chrome_format import read
from tests.unit.live_reports import GRAPH_ID, chain_that_hangs, does, later, report_of
from tests.unit.test_progress import Terminal
from tests.unit.traces import save_run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_run(tmp_path)


def test_trace_prints_the_summary(saved, capsys):
    assert cli.main(["trace", str(saved)]) == 0
    found = capsys.readouterr()
    assert "Stage" in found.out
    assert found.err == ""
    assert cli.main(["trace", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 8


def test_trace_writes_what_perfetto_reads(saved, tmp_path, capsys):
    path = tmp_path / "run.json.gz"
    assert cli.main(["trace", str(saved), "--perfetto", str(path)]) == 0
    assert len(read(path).named("fwd")) == 2
    assert str(path) in capsys.readouterr().err


def test_trace_writes_a_page(saved, tmp_path, capsys):
    pytest.importorskip("rcg.views.html.page")
    path = tmp_path / "run.html"
    assert cli.main(["trace", str(saved), "--html", str(path), "--title", "A <b> run"]) == 0
    text = path.read_text()
    assert "A &lt;b&gt; run" in text
    assert "<title>" in text


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.write_text("no trace"), "is not a trace that rcg wrote"),
        (lambda path: path.mkdir(), "Is a directory"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(make, expected, tmp_path, capsys):
    path = tmp_path / "run.rcg"
    make(path)
    assert cli.main(["trace", str(path)]) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("rcg: error: ")
    assert str(path) in found.err and expected in found.err
    assert len(found.err.splitlines()) == 1


def test_no_command_prints_the_help(capsys):
    assert cli.main([]) == 2
    assert "doctor" in capsys.readouterr().err


def test_bench_gets_its_own_arguments(capsys):
    assert cli.main(["bench", "--list"]) == 0
    assert "echo" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--rows", "nonsense"])
    assert ended.value.code == 2


@pytest.mark.parametrize("state", ["ok", "missing"])
def test_doctor_says_whether_rcg_works(state, monkeypatch, capsys):
    check = doctor.Check("machine", "system", state, "here", is_needed=True)
    monkeypatch.setattr(doctor, "examine", lambda: doctor.DoctorReport((check,)))
    assert cli.main(["doctor"]) == (0 if state == "ok" else 1)
    assert "system" in capsys.readouterr().out
    cli.main(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["is_fine"] is (state == "ok")


# --- top ------------------------------------------------------------------------------------------


def driver(report, at_s, **facts):
    graphs = (Graph(at_s, report),)
    return Driver(**{"pid": 7, "command": "python train.py", "graphs": graphs, **facts})


@pytest.fixture
def found(monkeypatch):
    """What is found, one list for each look; the last one again and again."""
    running = report_of(does("a0", "running"), does("a1", "waiting", "a0 (Stage)"))
    looks = [[driver(running, 5.0)], [driver(later(running, {"a1": 1.5}, completed=8), 7.0)]]
    asked = []

    def find(pid):
        asked.append(pid)
        return looks.pop(0) if len(looks) > 1 else looks[0]

    monkeypatch.setattr(top, "find_drivers", find)
    monkeypatch.setattr(top.time, "sleep", lambda _: None)
    monkeypatch.setitem(sys.modules, "rich", None)  # no package for what is printed once
    return looks, asked


def test_top_once_prints_rates_and_a_row_for_each_actor(found, capsys):
    assert cli.main(["top", "--once", "7"]) == 0
    assert found[1] == [7, 7]
    assert capsys.readouterr().out.splitlines() == [
        "process 7: python train.py",
        "",
        "pipeline (87752519): running",
        "4 /s, 3 of 10 in flight, 0 values queued, waiting 38 %, 4.1 kB of 1.05 MB",
        "  process     state                busy   memory  doing",
        "  driver      waiting                    1.02 kB  waits for a1",
        "  a0 (Stage)  running  ▬▬▬▬▬▬▬▬▬▬ 100 %  1.02 kB  work, execution 8",
        "  a1 (Stage)  waiting  ▬▬          25 %  1.02 kB  waits for a0",
    ]


def test_a_figure_has_its_maximum_once_it_has_fallen():
    meter = Meter()
    meter.take(0, report_of(does("a0", "running"), used_bytes=8192))
    meter.take(1, report_of(does("a0", "running"), used_bytes=8192, completed=90))
    sample = meter.take(2, report_of(does("a0", "running"), completed=100, in_flight=1))
    assert top.figures_of(sample) == [
        "10 /s (max 90 /s)",
        "1 of 10 in flight (max 3)",
        "0 values queued",
        "waiting 0 %",
        "4.1 kB of 1.05 MB (max 8.19 kB)",
    ]


def test_top_json_has_all_of_it(found, capsys):
    assert cli.main(["top", "--json"]) == 0
    (process,) = json.loads(capsys.readouterr().out)
    assert (process["pid"], process["trouble"]) == (7, "")
    (graph,) = process["graphs"]
    assert (graph["name"], graph["graph_id"], graph["throughput"]) == ("pipeline", GRAPH_ID, 4)
    assert [row["busy"] for row in graph["rows"]] == [None, 1, 0.25]
    assert graph["most"]["throughput"] == 4


def test_top_says_where_a_graph_hangs_and_who_does_not_answer(found, capsys):
    silent = Driver(8, "python other.py", trouble="does not answer within 2 s: it is stopped")
    found[0][:] = [[driver(chain_that_hangs(40, 11, 7.2), 5.0), silent]]
    assert cli.main(["top", "--once"]) == 0
    text = capsys.readouterr().out
    assert "pipeline (87752519): a11 (Stage) holds up 40 others: in work for 7.2 s" in text
    assert "a12 to a39 (Stage)  waiting" in text
    assert "process 8: python other.py\ndoes not answer within 2 s: it is stopped" in text


def test_top_of_nothing_is_one_sentence(found, capsys):
    found[0][:] = [[]]
    assert cli.main(["top", "--once"]) == 1
    assert "no process of this user on this machine has a compiled graph" in capsys.readouterr().err
    assert cli.main(["top", "--json", "12"]) == 1
    assert "process 12 has no compiled graph" in capsys.readouterr().err


def test_the_live_view_needs_rich_and_says_so(found, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setitem(sys.modules, "rich.live", None)
    assert cli.main(["top"]) == 1
    assert "pip install 'rcg[notebook]'" in capsys.readouterr().err


@pytest.mark.parametrize("count", [3, 64])
@pytest.mark.parametrize("width", [60, 130])
def test_the_live_view_shows_every_actor_within_the_terminal(monkeypatch, count, width):
    console = pytest.importorskip("rich.console").Console(
        file=io.StringIO(), width=width, force_terminal=False
    )
    report = report_of(*[does(f"a{i}", "running") for i in range(count)])
    watch = top.Watch(lambda: [driver(report, 5.0)])
    console.print(top.drawing_of(watch.look(), width))
    text = console.file.getvalue()
    assert {int(each) for each in re.findall(r"a(\d+) \(Stage\)", text)} == set(range(count))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == (count + 1 if count == 3 or width == 60 else 33) + 6  # with the driver


def test_only_a_positive_time_is_taken(capsys):
    for wrong in ("0", "nan", "soon"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["top", "--interval", wrong])
    assert "must be from 0.05 to 3600 seconds, found nan" in capsys.readouterr().err


def test_only_listening_addresses_of_drivers_are_asked(monkeypatch, tmp_path):
    head = "Num       RefCount Protocol Flags    Type St Inode Path"
    ours = "@rcg-12-0123456789abcdef"
    lines = [
        f"00000000: 00000002 00000000 00010000 0005 01 4711 {ours}",
        f"00000000: 00000003 00000000 00000000 0005 03 4712 {ours}",  # of a member
        "00000000: 00000002 00000000 00010000 0001 01 4713 /run/rcg-12-0123456789abcdef",
        "00000000: 00000002 00000000 00010000 0005 01 4714 @rcg-12-other",
        "00000000: 00000002 00000000 00010000 0005 01 4715",
    ]
    table = tmp_path / "unix"
    table.write_text("\n".join([head, *lines]))
    monkeypatch.setattr(drivers, "_TABLE", table)
    assert drivers._listening() == [(12, "\0" + ours[1:])]


def test_the_command_of_a_process_and_whether_it_is_stopped():
    assert Path(sys.executable).name.partition(".")[0] in drivers._command_of(os.getpid())
    assert drivers._state_of(os.getpid()) == "R"
    assert (drivers._command_of(0), drivers._state_of(0)) == ("", "")
