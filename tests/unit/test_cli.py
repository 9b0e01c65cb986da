# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rcg import cli, doctor
from rcg.version import __version__
from tests.unit.chrome_format import read
from tests.unit.traces import save_run

ROOT = Path(__file__).parents[2]


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
    assert len(read(path).named("Stage.fwd")) == 2
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


def test_what_cannot_be_written_is_one_sentence(saved, tmp_path, capsys):
    assert cli.main(["trace", str(saved), "--perfetto", str(tmp_path / "no" / "run.json")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"rcg {__version__}\n"


@pytest.mark.parametrize("arguments", [["trace"], ["nonsense"], ["doctor", "--nonsense"]])
def test_a_wrong_command_line_is_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: rcg" in capsys.readouterr().err


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
