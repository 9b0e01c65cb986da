# SPDX-License-Identifier: Apache-2.0
"""What documents and notebooks refer to is there: files, anchors, pictures, figures."""

from __future__ import annotations

import colorsys
import importlib
import json
import re
import types
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from docs.pictures import make, speed
from rcg.bench.record import LIMIT, RCG, BenchReport, SampleSummary
from rcg.views.html.findings import JUDGED
from tests.harness import readme
from tests.harness.drawn import STALE, digest
from tests.harness.readme import README, ROOT

PACKAGE = ROOT / "rcg"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PICTURES = sorted(ROOT.glob("docs/pictures/*.svg"))

_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"\]\(\s*([^()\s]+)\s*\)|\b(?:src|srcset|href)=\"([^\"]+)\"")


def names_of(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def prose_of(text: str) -> str:
    """The text without blocks of code."""
    return _FENCE.sub("", text)


def links_of(text: str) -> list[str]:
    """The targets of links and pictures within the repository."""
    found = ["".join(each) for each in _TARGET.findall(prose_of(text))]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    counts: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#+ (.+)$", prose_of(text), re.MULTILINE):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return anchors


def broken(text: str, folder: Path) -> list[str]:
    """The links of a text that lead nowhere."""
    wrong = []
    for target in links_of(text):
        path, _, anchor = target.partition("#")
        file = (folder / path).resolve() if path else None
        if file is not None and (not file.exists() or not file.is_relative_to(ROOT)):
            wrong.append(target)
        elif anchor and (file is None or file.suffix == ".md"):
            there = text if file is None else file.read_text(encoding="utf-8")
            wrong += [target] if anchor not in anchors_of(there) else []
    return wrong


@pytest.mark.parametrize("document", names_of(DOCUMENTS))
def test_links_of_documents_lead_somewhere(document: str) -> None:
    path = ROOT / document
    assert not broken(path.read_text(encoding="utf-8"), path.parent)


@pytest.mark.parametrize("notebook", names_of(sorted(ROOT.glob("notebooks/*.ipynb"))))
def test_links_of_notebooks_lead_somewhere(notebook: str) -> None:
    cells = json.loads((ROOT / notebook).read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    assert not broken(text, ROOT / "notebooks")


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = (
        "# A title: of `two` parts\n## Twice\n## Twice\n"
        "[1](#a-title-of-two-parts) [2](#twice-1) [3](#twice-2) [4](README.md#install)\n"
        "[5](README.md#nothing) [6](docs) [7](docs/none.md) [8](https://example.org/none)\n"
        '[9](../outside.md) <img src="none.svg"> [two\nlines](none.md)\n'
        "```\n[in code](none)\n```\n"
    )
    wrong = ["#twice-2", "README.md#nothing", "docs/none.md", "../outside.md", "none.svg"]
    assert broken(text, ROOT) == [*wrong, "none.md"]


@pytest.mark.parametrize("document", names_of(DOCUMENTS))
def test_files_that_a_document_names_are_there(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|md|h|c|toml|cfg|mjs|ipynb))`", text))
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not {name for name in missing if not (PACKAGE / name).exists()}


def test_every_page_of_the_site_is_in_its_table_of_contents() -> None:
    """Sphinx says the same, for those who have it."""
    index = ROOT / "docs/index.md"
    trees = re.findall(r"^```{toctree}\n(.*?)^```$", index.read_text(), re.DOTALL | re.MULTILINE)
    lines = [re.sub(r".*<(.*)>", r"\1", line) for tree in trees for line in tree.splitlines()]
    listed = {(index.parent / line).resolve() for line in lines if line[:1] not in ("", ":")}
    pages = {*ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("*.md")}
    assert {page.with_suffix("") for page in pages - {index, README}} == listed


@pytest.mark.parametrize("module", ["rcg", "rcg.collective", "rcg.dag", "rcg.experimental"])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """Those of ``rcg.errors`` and ``rcg.weights`` get there by themselves."""
    pages = "".join(page.read_text() for page in ROOT.glob("docs/reference/api*.md"))
    there: set[str] = set()
    current = ""
    for kind, target in re.findall(r"^\.\. (\w+):: ([\w.]+)$", pages, re.MULTILINE):
        current = target if kind == "currentmodule" else current
        there |= {target, f"{current}.{target}"}
    wanted = {name for name in importlib.import_module(module).__all__ if name != "__version__"}
    for name in wanted:
        thing = getattr(importlib.import_module(module), name)
        names = {f"{home}.{name}" for home in (module, "rcg", "rcg.dag")} | {
            f"{module}.{name}.bind"
        }
        assert isinstance(thing, types.ModuleType) or names & there, name


def test_tables_of_speed_say_what_was_measured() -> None:
    of = speed.Reports.load()
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in speed.PAGES}
    shown = set(re.findall("<!-- measured: (.*) -->", "".join(pages.values())))
    assert shown == set(speed.TEXTS)
    for name, page in pages.items():
        assert speed.renewed(page, of) == page, f"{name}: run python -m docs.pictures.speed"


def test_a_measurement_goes_into_the_tables() -> None:
    """Another run of two nodes, of which one row lacks a contestant."""
    of = speed.Reports.load()
    times = SampleSummary(1, 2.0, 1234.4, 2.34)
    changed = [replace(row, summaries={RCG: times, LIMIT: times}) for row in of.two.rows]
    header = replace(of.two.header, machine="a CPU", load=0.25, end_load=1.0)
    other = replace(of, two=BenchReport(header, tuple(changed), ()))
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    came = speed.renewed(page, other)
    assert "One run on a CPU, 2 cores, load 0.2 to 1.0 (Ray " in came
    assert "| echo, an actor on the other node | 1,234 (2.3) |  |  | 1,234 (2.3) |" in came
    assert "| 1,234 µs, of which a raw TCP ping-pong takes 1,234 |" in came
    pipeline = "chain of 4 on two nodes, 8 in flight, per item"  # its limit is not raw TCP
    assert f"| {pipeline} | 1,234 (2.3) |  |  |  |" in came


@pytest.mark.parametrize("picture", names_of(PICTURES))
def test_pictures_need_nothing_else_and_are_shown(picture: str) -> None:
    """An image can run no script and load nothing; light and dark are files of their own."""
    path = ROOT / picture
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert not re.search(r"<script|<foreignObject|@import|@font-face|prefers-color-scheme", text)
    assert not re.search(r"(?:href=|url\()[\"']?+(?!#)", text)
    name, _, look = path.stem.rpartition("-")
    assert (path.parent / f"{name}-{'dark' if look == 'light' else 'light'}.svg").exists()
    shown = [README, *(ROOT / f"docs/guide/{page}.md" for page in ("profiling", "pictures"))]
    assert any(f"pictures/{name}-light.svg" in page.read_text(encoding="utf-8") for page in shown)


def test_pictures_and_texts_of_the_guides_program_are_of_one_recording() -> None:
    """The answer that it prints is that of each picture; what is said about it follows from it."""
    page = make.PAGE.read_text(encoding="utf-8")
    answer, *_ = readme.blocks(make.PAGE)[1].text.splitlines()
    share, gain = re.findall(r"(\d+) % of the critical path.* gives ([\d.]+x)", answer)[0]
    for name in ("notebook", "profile"):
        for look in ("light", "dark"):
            picture = (ROOT / f"docs/pictures/{name}-{look}.svg").read_text(encoding="utf-8")
            words = " ".join(re.findall(r">([^<>]+)</t(?:ext|span)>", picture))
            assert f"{share} % of the critical path" in words, name
            assert gain in words, name
    assert f"limits this: {share} % ...`" in page
    assert f"{share} % allow {make.allowed(int(share))} |" in page
    rate = re.search(r"throughput +(\S+ /s)", page)
    assert rate is not None
    assert f">{rate[1]} " in (ROOT / "docs/pictures/profile-light.svg").read_text(encoding="utf-8")


def test_the_guide_is_renewed_with_what_its_program_prints() -> None:
    page = make.PAGE.read_text(encoding="utf-8")
    printed = readme.blocks(make.PAGE)[1].text.replace("...\n", "")
    answer = printed.splitlines()[0]
    other = re.sub(r"\d+ % of the critical", "80 % of the critical", answer)
    found = make.renewed_page(page, printed.replace(answer, other))
    assert other in found and answer not in found
    assert "limits this: 80 % ...`" in found and ": 80 % allow 1.67x |" in found
    assert make.renewed_page(page, printed) == page
    with pytest.raises(ValueError, match="is not in list"):
        make.renewed_page(page, "nothing")


def test_the_cell_of_a_picture_is_the_program_of_the_guide() -> None:
    assert make.cell_of(readme.blocks(make.PAGE)[0].text) == [
        "with ray.profile() as p:",
        "    ray.get([graph.execute(number) for number in range(100)])",
        "p",
    ]


@pytest.mark.parametrize("page", ["docs/guide/pictures.md", "notebooks/profiling.ipynb"])
def test_prose_names_the_colours_of_comparisons(page: str) -> None:
    names = {15: "red", 45: "orange", 70: "yellow", 170: "green", 260: "blue"}  # by their last hue
    text = re.sub(r'(?:\\n|[\s",])+', " ", (ROOT / page).read_text(encoding="utf-8"))
    for word in ("better", "worse"):
        colour, pattern = JUDGED[word]
        red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        hue = 360 * colorsys.rgb_to_hsv(red, green, blue)[0]
        name = next(name for last, name in names.items() if hue <= last)
        said = f"{name} and hatched" if pattern else name
        assert f"{said} is {word}" in text or f"{word} is {said}" in text


@pytest.mark.parametrize("picture", names_of(PICTURES))
def test_pictures_were_drawn_by_the_views_of_today(picture: str) -> None:
    assert (ROOT / picture).read_text(encoding="utf-8").endswith(f"<!-- {digest()} -->\n"), STALE
