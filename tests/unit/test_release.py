# SPDX-License-Identifier: Apache-2.0
"""What a release is made of: version, notes, workflow, and the page of what was tried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

import rcg
from rcg.doctor import software
from release import compat, files, publishing

WORKFLOWS = files.ROOT / ".github" / "workflows"


def test_the_version_has_one_place():
    assert files.version() == rcg.__version__


def test_the_changelog_has_the_version_and_can_be_read():
    date, text = publishing.section_of(rcg.__version__)
    assert date
    assert text.startswith("The first release") and "### Added" in text
    publishing.section_of("Unreleased")
    assert len(text.splitlines()) < 80


@pytest.mark.parametrize(
    ("changelog", "expected"),
    [
        ("## [Unreleased]\n\n## [{v}] - not yet released\n", "no date"),
        ("## [Unreleased]\n\n* More.\n\n## [{v}] - 2026-12-01\n", "under Unreleased"),
        ("## [Unreleased]\n\n## [0.0.1] - 2026-12-01\n", "no section"),
    ],
)
def test_what_is_not_ready_is_not_published(
    changelog: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "CHANGELOG.md").write_text(changelog.format(v=rcg.__version__))
    monkeypatch.setattr(publishing, "ROOT", tmp_path)
    with pytest.raises(files.Failure, match=expected):
        publishing.check_ready()


def test_the_workflow_publishes_only_what_make_release_has_made_and_an_aarch64_machine_has_tried():
    jobs = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]
    assert set(jobs["publish"]["needs"]) == {"build", "aarch64"}
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert {"run": "make release RELEASE=--final"} in jobs["build"]["steps"]


def test_the_workflow_of_a_change_runs_what_ci_runs_over_the_whole_history():
    workflow = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())
    assert "pull_request" in workflow[True]  # YAML reads the key `on` as a truth value
    job = workflow["jobs"]["run"]
    assert job["steps"][0]["with"]["fetch-depth"] == 0  # the last commits choose tests
    assert job["container"]["image"].startswith(f"python:{compat.PYTHONS[0]}-")
    assert job["steps"][-1] == {"run": ".ci/run"} and os.access(files.ROOT / ".ci/run", os.X_OK)


def test_the_oldest_ray_that_is_tried_is_the_one_that_is_claimed():
    oldest = tuple(map(int, compat.RAYS[-1].split(".")[:2]))
    assert oldest == software.OLDEST_RAY
    assert compat.PYTHONS[0] == ".".join(map(str, software.OLDEST_PYTHON))


def test_the_page_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compat, "PAGE", tmp_path / "page.md")
    good = compat.Outcome("3.13.0", "2.60.0", "2.5.5", "337 passed in 187.79s", is_good=True)
    bad = compat.Outcome("3.14", "2.60.0", "", "failed: no interpreter", is_good=False)
    compat.write_page([good, bad])
    rows = [line for line in compat.PAGE.read_text().splitlines() if line.startswith("| 3")]
    assert rows == [
        "| 3.13.0 | 2.60.0 | 2.5.5 | 337 passed |",
        "| 3.14 | 2.60.0 |  | failed: no interpreter |",
    ]
