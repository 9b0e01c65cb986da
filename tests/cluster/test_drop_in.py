# SPDX-License-Identifier: Apache-2.0
"""The programs of ``tests/programs``, written for Ray: on rcg with other imports, and on Ray."""

from __future__ import annotations

import io
import textwrap
from functools import partial
from pathlib import Path

import pytest

from rcg.migrate.rewrite import rewrite
from tests.harness.circles import core_where
from tests.harness.readme import ROOT

pytestmark = pytest.mark.usefixtures("ray_session")

PROGRAMS = sorted((ROOT / "tests/programs").glob("*.py"))


def run(path: Path, program: str) -> tuple[str, str]:
    """Run a program; returns what it printed and what it says that it prints."""
    printed = io.StringIO()  # not all of stdout: Ray's processes report there
    namespace = {"__name__": f"program_{path.stem}", "print": partial(print, file=printed)}
    exec(compile(program, str(path), "exec"), namespace)
    _, _, expected = str(namespace["__doc__"]).partition("Prints:\n\n")
    return printed.getvalue(), textwrap.dedent(expected)


@pytest.mark.parametrize(
    "path", core_where(lambda path: path.stem == "refusals", PROGRAMS), ids=lambda path: path.stem
)
@pytest.mark.filterwarnings("ignore:enable_asyncio is not needed")
def test_with_only_its_imports_changed_it_prints_the_same(path: Path) -> None:
    result = rewrite(path.read_text(encoding="utf-8"))
    assert result.remarks == ()
    assert "from ray.dag" not in result.text
    printed, expected = run(path, result.text)
    assert printed == expected


@pytest.mark.full
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_on_ray_itself_it_prints_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = pytest.importorskip("ray.dag.context").DAGContext.get_current()
    # Ray's graphs give up after 10 s, which is not much on a loaded machine.
    for timeout in ("get_timeout", "submit_timeout"):
        monkeypatch.setattr(context, timeout, 100)
    printed, expected = run(path, path.read_text(encoding="utf-8"))
    assert printed == expected
