# SPDX-License-Identifier: Apache-2.0
"""A diagram: boxes in cards, lines between them, and every word about them, placed.

```
card   ┌ a0 (Stage) ┐                     ┌ a1 (Stage) ┐
box    │ fwd x16    │── 16 x 3.15 MB ────>│ fwd x16    │      lines join boxes
       │ 2 ms · 80 %│                     └────────────┘
       └────────────┘
```

``rcg.views.scenes.topology`` makes it, and ``rcg.views.svg.diagram`` paints it. Widgets and saved
pages show the same shapes, and get from here which ops of the plan each of them stands for. A
painter knows nothing of graphs: it finds places, looks and words here.

``str(diagram)`` has a line per card, box and line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from rcg.ir.index import Place
from rcg.views.data.layout import Rect

NOTABLE: Final = 0.005
"""The least share of the critical path that is shown."""

Font = Literal["name", "method", "note"]
Anchor = Literal["start", "middle", "end"]
Ground = Literal["frame", "actor", "other", ""]


@dataclass(frozen=True, slots=True)
class Label:
    """One line of text; longer than its room, it is shortened.

    Attributes:
        text: The text.
        x: Where it is anchored.
        y: The height of its base line.
        room: Its largest width.
        font: ``name`` is bold, ``method`` monospaced, ``note`` small.
        anchor: Which end of it is at x.
        is_faint: Whether it is less important.
    """

    text: str
    x: float
    y: float
    room: float
    font: Font = "note"
    anchor: Anchor = "start"
    is_faint: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """A node of the cluster, an actor or several alike ones, or other boxes that are together.

    Attributes:
        ground: What it looks like; "" for one whose only box is all that there is to see.
        rect: Where it is.
        labels: The texts on it.
        words: The lines of its hover text.
    """

    ground: Ground
    rect: Rect
    labels: tuple[Label, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A method, an input or an output, or a collective.

    Attributes:
        kind: Of which kind its nodes are, as in ``TopologyNode.kind``.
        rect: Where it is.
        is_round: Whether it stands alone, with round ends.
        labels: The texts in it.
        words: The lines of its hover text.
        heat: Its share of the critical path, from 0 to 1.
        ops: The ops that it stands for.
        count: The number of calls that it stands for.
    """

    kind: str
    rect: Rect
    is_round: bool
    labels: tuple[Label, ...]
    words: tuple[str, ...]
    heat: float
    ops: tuple[Place, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Line:
    """Values on their way from a box to another.

    Attributes:
        source: The number of the box that it begins at.
        target: The number of the box that it ends at.
        kind: How the values travel; see ``edge_styles``.
        width: Its width.
        path: Its way, and its tip, as SVG paths.
        words: The lines of its hover text.
        ops: The ops that write and read the values.
        count: The number of values.
        label: The text on it, and the ground of that.
    """

    source: int
    target: int
    kind: str
    width: float
    path: tuple[str, str]
    words: tuple[str, ...]
    ops: tuple[Place, ...]
    count: int
    label: tuple[Label, Rect] | None = None


@dataclass(frozen=True, slots=True)
class Diagram:
    """A picture of a topology, before it is painted.

    Attributes:
        about: What it shows, in numbers.
        width: The width of all that is placed.
        height: The height of it.
        cards: The cards, those around others first.
        boxes: The boxes.
        lines: The lines, in the order of their boxes.
        usual: The text that most lines would have, and do not; "" if there is none.
        groups: A line on each group of the plan.
        is_measured: Whether lines are as wide as their bytes.
    """

    about: str
    width: float
    height: float
    cards: tuple[Card, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    usual: str = ""
    groups: tuple[str, ...] = ()
    is_measured: bool = False

    def __str__(self) -> str:
        return "\n".join([self.about, *self._texts(), *self.groups])

    def _texts(self) -> Iterator[str]:
        yield from (f"{_at(card.rect)} {card.ground}: {_said(card)}" for card in self.cards)
        for number, box in enumerate(self.boxes):
            heat = f" heat {box.heat:.2f}" if box.heat else ""
            yield f"{_at(box.rect)} box {number} {box.kind}{heat}: {_said(box)}"
        for line in self.lines:
            label = f" {line.label[0].text}" if line.label else ""
            ends = f"{line.source} -> {line.target}"
            yield f"line {ends} {line.kind} {line.width:g}{label}: {' / '.join(line.words)}"
        if self.usual:
            yield f"line without a number: {self.usual}"


def _at(rect: Rect) -> str:
    return f"[{rect.x:g} {rect.y:g} {rect.width:g} {rect.height:g}]"


def _said(part: Card | Box) -> str:
    return f"{' | '.join(label.text for label in part.labels)}: {' / '.join(part.words)}"
