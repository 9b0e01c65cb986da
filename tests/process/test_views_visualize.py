# SPDX-License-Identifier: Apache-2.0
"""``visualize``: which file is written, what is returned, and what a missing Graphviz means."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import stat
import sys
from base64 import b64decode
from itertools import combinations
from pathlib import Path
from typing import Literal

import pytest

from rcg.trace.model import Mark
from rcg.views.data.folding import fold
from rcg.views.data.layout import lay_out
from rcg.views.data.topology import topology_of
from rcg.views.scenes.topology import diagram_of, diagram_of_folded
from rcg.views.svg.diagram import svg_of
from rcg.views.text import ascii_of, dot_of
from rcg.views.visualize import FORMATS, by_dot, visualize
from tests.unit.trace_by_hand import NODES_PLAN
from tests.unit.views_plans import ring_of_stages, scatter_gather, steps_around_allreduces

TOPOLOGY = topology_of(scatter_gather(3))
MEETING = topology_of(steps_around_allreduces(3))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, and nothing to open files with."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return work


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found; empty."""
    found = tmp_path / "programs"
    found.mkdir()
    monkeypatch.setenv("PATH", str(found))
    return found


def install(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_ascii_is_returned_and_printed_only_if_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = visualize(TOPOLOGY, filename="ignored", format="ascii")
    assert text == ascii_of(TOPOLOGY)
    assert capsys.readouterr().out == ""
    assert visualize(TOPOLOGY, format="ascii", view=True) == text
    assert capsys.readouterr().out == text + "\n"
    assert written(folder) == []


def test_ascii_has_no_channel_details() -> None:
    with pytest.raises(
        ValueError,
        match=r"^Parameters 'channel_details' are not compatible with 'ascii' format\.$",
    ):
        visualize(TOPOLOGY, format="ascii", channel_details=True)


@pytest.mark.parametrize("format", ["dot", "gv", "DOT"])
def test_source_is_written_and_returned(folder: Path, format: str) -> None:
    source = visualize(TOPOLOGY, format=format, channel_details=True)
    assert source == dot_of(TOPOLOGY, channel_details=True)
    assert written(folder) == [f"compiled_graph.{format.lower()}"]
    assert (folder / written(folder)[0]).read_text(encoding="utf-8") == source


def test_svg_needs_no_program(folder: Path, programs: Path) -> None:
    source = visualize(TOPOLOGY, format="svg", title="Mine", dark=True, legend=False, view=True)
    assert source == dot_of(TOPOLOGY, legend=False)
    drawn = (folder / "compiled_graph.svg").read_text(encoding="utf-8")
    assert drawn == svg_of(diagram_of(TOPOLOGY), "Mine", dark=True, legend=False)


@pytest.mark.parametrize(
    ("filename", "format", "expected"),
    [
        ("graph", "svg", "graph.svg"),
        ("graph.svg", "svg", "graph.svg"),
        ("graph.SVG", None, "graph.SVG"),
        ("graph.svg", None, "graph.svg"),
        ("graph.dot", None, "graph.dot"),
        ("run.1", "dot", "run.1.dot"),
        ("graph.svg", "dot", "graph.svg.dot"),
        (Path("graph"), "gv", "graph.gv"),
    ],
)
def test_names_of_files(
    folder: Path, filename: str | Path, format: str | None, expected: str
) -> None:
    visualize(TOPOLOGY, filename=filename, format=format)
    assert written(folder) == [expected]


def test_a_file_in_another_folder(tmp_path: Path) -> None:
    visualize(TOPOLOGY, filename=tmp_path / "there.svg")
    assert (tmp_path / "there.svg").exists()
    with pytest.raises(FileNotFoundError, match=r"no folder 'missing' to write 'g\.svg' into"):
        visualize(TOPOLOGY, filename="missing/g.svg")


def test_wrong_arguments_write_nothing(folder: Path) -> None:
    with pytest.raises(ValueError, match="unknown format 'word'") as raised:
        visualize(TOPOLOGY, format="word")
    assert all(name in str(raised.value) for name in FORMATS)
    with pytest.raises(ValueError, match="`filename` must name a file, found ''"):
        visualize(TOPOLOGY, filename="")
    assert written(folder) == []


def test_without_graphviz_the_picture_is_an_svg(folder: Path, programs: Path) -> None:
    visualize(TOPOLOGY, filename="compiled_graph")
    assert written(folder) == ["compiled_graph.svg"]


def test_nothing_is_written_unless_asked(folder: Path) -> None:
    """What is returned is Graphviz source, as Ray's is, and a notebook shows the picture."""
    drawing = visualize(TOPOLOGY, title="Mine")
    assert drawing == dot_of(TOPOLOGY) and isinstance(drawing, str)
    assert written(folder) == []
    shown = drawing._repr_mimebundle_()
    assert shown["text/plain"] == ascii_of(TOPOLOGY)
    (picture,) = re.findall(r"base64,([A-Za-z0-9+/=]+)", shown["text/html"])
    assert ">Mine<" in b64decode(picture).decode()
    assert type(pickle.loads(pickle.dumps(drawing))) is str
    text = visualize(TOPOLOGY, format="ascii")
    assert text._repr_mimebundle_() == {"text/plain": text}


def test_the_layouts(folder: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (visualize(MEETING, layout=each)._draw() for each in ("phases", "actors"))
    name = ' font-weight="600">a0 (Stage)<'
    assert one.count(name) == 2 and other.count(name) == 1
    assert visualize(MEETING)._draw() == one
    visualize(MEETING, filename="g", layout="phases")
    assert written(folder) == ["g.svg"]
    with pytest.raises(ValueError, match="'png' is drawn by Graphviz, whose layout is 'dot'"):
        visualize(MEETING, format="png", layout="actors")
    with pytest.raises(ValueError, match="unknown layout 'neato': it must be one of phases, "):
        visualize(MEETING, layout="neato")
    with pytest.raises(ImportError, match=r"needs Graphviz: its .*`dot` is not .*apt install"):
        visualize(MEETING, layout="dot")
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ImportError, match=r"not installed: pip install 'rcg\[notebook\]'; layout="):
        visualize(MEETING, layout="dot")


NEEDS_DOT = pytest.mark.skipif(
    shutil.which("dot") is None, reason="Graphviz's dot is not installed"
)


@pytest.mark.parametrize("layout", ["phases", "actors", pytest.param("dot", marks=NEEDS_DOT)])
@pytest.mark.parametrize("form", ["ascii", "dot", "svg"])
def test_every_picture_marks_the_actors_with_which_something_is_wrong(
    layout: Literal["phases", "actors", "dot"], form: str
) -> None:
    title = "chain: a1 (Worker) died"

    def drawn(marks: dict[str, Mark]) -> str:
        found = visualize(
            topology_of(scatter_gather(3), marks=marks), layout=layout, title=title, legend=False
        )
        forms = found._repr_mimebundle_()
        image = b64decode(re.findall(r'base64,([^"]+)"', forms["text/html"])[0]).decode()
        return {"ascii": forms["text/plain"], "dot": str(found), "svg": image}[form]

    text = drawn({"a1": Mark("lost", "died")})
    assert title in text
    for sign in {
        "ascii": ("Worker_154777:work (died)", "Method: work State: died"),
        "dot": ("penwidth=3", "State: died"),
        "svg": (">died</text>", 'class="rcg-bad-line"'),
    }[form]:
        assert text.count(sign) == 1
    assert "died" not in drawn({}).replace(title, "")
    over = drawn({f"a{at}": Mark("over", "torn down") for at in range(4)})
    assert over.count("torn down") == (8 if form == "ascii" else 4)
    assert "penwidth" not in over and "rcg-bad" not in over


@NEEDS_DOT
def test_graphviz_places_what_rcg_draws() -> None:
    """The same boxes, lines and words; none is on another, and lines end at their boxes."""
    nodes = NODES_PLAN
    for plan in (scatter_gather(5), steps_around_allreduces(3), ring_of_stages(4, 3), nodes):
        folded = fold(topology_of(plan))
        ours, theirs = (diagram_of_folded(folded, None, lay_out=each) for each in (lay_out, by_dot))
        for drawn in (ours, theirs):
            for one, other in combinations(drawn.boxes, 2):
                assert not one.rect.overlaps(other.rect)
            for line in drawn.lines:
                x, y = re.findall(r"-?[\d.]+", line.path[1])[:2]
                box = drawn.boxes[line.target].rect
                assert box.y <= float(y) <= box.bottom
                assert min(abs(float(x) - box.x), abs(float(x) - box.right)) <= 24
        assert [box.words for box in ours.boxes] == [box.words for box in theirs.boxes]
        assert [line.words for line in ours.lines] == [line.words for line in theirs.lines]
        assert len(ours.cards) == len(theirs.cards)


@pytest.mark.parametrize("asked", [{"filename": "compiled_graph.png"}, {"format": "png"}])
def test_without_graphviz_a_warning_names_the_svg(
    folder: Path, programs: Path, asked: dict[str, str]
) -> None:
    with pytest.warns(
        UserWarning, match="picture is in 'compiled_graph.svg'; 'compiled_graph.png' needs"
    ) as caught:
        source = visualize(TOPOLOGY, **asked)
    assert source == dot_of(TOPOLOGY)
    assert written(folder) == ["compiled_graph.svg"]
    (warning,) = caught
    assert warning.filename == __file__
    assert "apt install graphviz" in str(warning.message)


def test_a_graphviz_that_fails_is_no_error(folder: Path, programs: Path) -> None:
    install(programs, "dot", "sys.exit('Format: \"webp\" not recognized')")
    with pytest.warns(UserWarning, match='its `dot` failed: Format: "webp" not recognized'):
        visualize(TOPOLOGY, format="webp")
    assert written(folder) == ["compiled_graph.svg"]


def test_graphviz_gets_the_source_and_the_name(folder: Path, programs: Path) -> None:
    install(programs, "dot", "print(sys.argv[-1]); sys.stdout.write(sys.stdin.read())")
    source = visualize(TOPOLOGY, filename="-graph.pdf", channel_details=True)
    assert written(folder) == ["-graph.pdf"]
    assert (folder / "-graph.pdf").read_text() == f"-Tpdf\n{source}"
    visualize(TOPOLOGY, filename="graph")
    assert (folder / "graph.png").read_text().startswith("-Tpng")


@NEEDS_DOT
def test_graphviz_draws(folder: Path) -> None:
    visualize(TOPOLOGY, format="png")
    assert written(folder) == ["compiled_graph.png"]
    assert (folder / "compiled_graph.png").read_bytes().startswith(b"\x89PNG")


def test_view_opens_the_file_that_was_written(
    folder: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = folder / "seen"
    os.mkfifo(seen)  # reading waits for the viewer
    install(programs, "xdg-open", f"Path({str(seen)!r}).write_text(sys.argv[1])")
    visualize(TOPOLOGY, format="svg", view=True)  # no display: nothing is started
    monkeypatch.setenv("DISPLAY", ":0")
    visualize(TOPOLOGY, format="dot", view=True)
    assert seen.read_text() == str(folder / "compiled_graph.dot")


def test_view_never_fails(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    (programs / "xdg-open").write_text("not a program")
    (programs / "xdg-open").chmod(0o755)
    visualize(TOPOLOGY, format="svg", view=True)
