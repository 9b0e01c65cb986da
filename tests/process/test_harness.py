# SPDX-License-Identifier: Apache-2.0
"""What holds for every run of the tests: new random cases that can be had again, known skips."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RANDOM = """
from hypothesis import given, strategies as st

@given(st.integers(0, 10**9))
def test_hypothesis(number):
    assert number < 10**6

def test_dice(dice):
    print("drawn", dice.random())
    raise AssertionError
"""
SKIPPED = """
import pytest

@pytest.mark.skip(reason="there is a GPU")
def test_known(): pass

@pytest.mark.skip(reason="it did not work")
def test_unknown(): pass

@pytest.mark.xfail(strict=False)
def test_expected(): raise AssertionError

def test_missing():
    pytest.importorskip("a_module_that_is_not_there")
"""


def run(path: Path, text: str, *arguments: str) -> str:
    path.write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *arguments, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout


@pytest.mark.full
def test_random_cases_are_new_in_each_run_and_a_failure_says_how_to_have_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CI", "true")  # where hypothesis by itself draws the same cases each time
    said = [run(tmp_path / "test_random.py", RANDOM, "-n", "2") for _ in range(2)]
    seeds = [re.findall(r"random cases: --hypothesis-seed=(\d+)", each) for each in said]
    assert len(seeds[0]) == 1 and seeds[0] != seeds[1]
    drawn = [re.findall(r"drawn (\S+)", each) for each in said]
    assert drawn[0] != drawn[1]
    commands = re.findall(r"^python -m pytest (\S+) '\S+::(\w+)'$", said[0], re.M)
    option = f"--hypothesis-seed={seeds[0][0]}"
    assert sorted(commands) == [(option, "test_dice"), (option, "test_hypothesis")]
    again = run(tmp_path / "test_random.py", RANDOM, option)
    assert re.findall(r"drawn (\S+)", again) == drawn[0]


def test_only_a_known_reason_skips(tmp_path: Path):
    said = run(tmp_path / "test_skipped.py", SKIPPED)
    assert "1 skipped" in said and "xfailed" not in said
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", said, re.M)
    assert sorted(failed) == ["test_expected", "test_missing", "test_unknown"]
    assert "3 skipped, 1 xfailed" in run(tmp_path / "test_skipped.py", SKIPPED, "--any-skip")
