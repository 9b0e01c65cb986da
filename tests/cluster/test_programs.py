# SPDX-License-Identifier: Apache-2.0
"""The programs that come with rcg, and its experiments: `rcg.demo`, `rcg.bench`, `benchmarks`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rcg.bench.record import LIMIT, RAY_CALL, RCG, RCG_FUTEX, BenchReport
from tests.cluster.stage import own_output
from tests.harness.board import ROOT


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Ray's own graphs give up after 10 s, which is not much on a loaded machine.
    environ = {**os.environ, "RAY_CGRAPH_get_timeout": "100", "RAY_CGRAPH_submit_timeout": "100"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=280
    )


@pytest.mark.full
def test_the_demo_shows_results_and_timings(tmp_path: Path) -> None:
    done = run("rcg.demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = own_output(done.stdout).splitlines()
    assert "rcg, chain: hello Ada Grace Barbara" in lines
    times = r"( +[\d.]+ (µs|ms)){2} "  # how long does not matter
    assert any(re.match("chain of 3" + times, line) for line in lines)
    assert lines[-1] == "after teardown: goodbye Ada"


@pytest.mark.full
def test_the_bench_races_everyone_and_writes_what_it_shows(tmp_path: Path) -> None:
    """One short round: all take part and agree; their speed does not matter."""
    done = run(
        "rcg.bench",
        *("--rows", "scatter-2,pipeline-4,asyncio,numpy-1mb"),
        *("--rounds", "1", "--seed", "5", "--json", "report.json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    report = BenchReport.from_json((tmp_path / "report.json").read_text())
    assert report.header.seed == 5
    assert [row.name for row in report.rows] == ["scatter-2", "pipeline-4", "asyncio", "numpy-1mb"]
    for row in report.rows:
        assert {RCG, RCG_FUTEX, RAY_CALL, LIMIT} <= row.summaries.keys(), row.absent
        assert row.title in done.stdout
        assert all(summary.samples for summary in row.summaries.values())
    assert "targets met" in done.stdout or "No target" in done.stdout


@pytest.mark.full
def test_the_experiments_run_from_the_repository_beside_rows(tmp_path: Path) -> None:
    saved = tmp_path / "report.json"
    done = run(
        "benchmarks",
        *("--rows", "echo,gloo-edge-1kb,idle,lifecycle,recorder", "--rounds", "1"),
        *("--json", str(saved)),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    report = BenchReport.from_json(saved.read_text())
    assert [row.name for row in report.rows] == ["echo", "gloo-edge-1kb"]
    assert [figure.name for figure in report.figures] == [
        *("idle-ticks", "idle-wakeups", "idle-processes", "compile", "teardown", "recorder"),
    ]
