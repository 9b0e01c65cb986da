# SPDX-License-Identifier: Apache-2.0
"""What a release publishes beside wheels and sdist: its notes, the SBOM and the checksums."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path
from typing import Final

from release.files import DIST, ROOT, Failure, run, tool, version

_HEADING: Final = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>.+))?$", re.MULTILINE)


def write_files(built: list[Path]) -> list[Path]:
    """Write the notes, the SBOM and the checksums into ``dist/``; returns the files."""
    run(tool("twine"), "check", "--strict", *built)
    notes = DIST / "RELEASE_NOTES.md"
    notes.write_text(section_of(version())[1])
    wheel = next(path for path in built if path.suffix == ".whl")
    sbom = DIST / f"rcg-{version()}.cdx.json"
    with zipfile.ZipFile(wheel) as archive:
        sbom.write_bytes(archive.read(f"rcg-{version()}.dist-info/sboms/rcg.cdx.json"))
    sums = DIST / "SHA256SUMS"
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in (*built, sbom)]
    sums.write_text("".join(lines))
    return [notes, sbom, sums]


def section_of(wanted: str) -> tuple[str, str]:
    """Return the date and the text of a version in CHANGELOG.md.

    Raises:
        Failure: It has no such version.
    """
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = list(_HEADING.finditer(text))
    for number, heading in enumerate(headings):
        if heading["version"] == wanted:
            last = number + 1 == len(headings)
            end = len(text) if last else headings[number + 1].start()
            return heading["date"] or "", text[heading.end() : end].strip() + "\n"
    raise Failure(f"CHANGELOG.md has no section ## [{wanted}]")


def check_ready() -> None:
    """Check that this commit may be published.

    Raises:
        Failure: CHANGELOG.md gives the version no date, there are changes that are not listed under
            a version or not committed, or the tag of this commit is another version's.
    """
    date, _ = section_of(version())
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise Failure(f"CHANGELOG.md gives {version()} no date, but {date!r}")
    if section_of("Unreleased")[1].strip():
        raise Failure(f"CHANGELOG.md has changes under Unreleased, not under {version()}")
    if run("git", "status", "--porcelain").strip():
        raise Failure("there are changes that are not committed")
    tags = run("git", "tag", "--points-at", "HEAD").split()
    if f"v{version()}" not in tags:
        raise Failure(f"this commit has no tag v{version()}, but {tags}")
