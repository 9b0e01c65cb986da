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

from dataclasses import dataclass
from typing import Final, Literal

from rcg.ir.index import Place
from rcg.views.data.layout import Rect

NOTABLE: Final = 0.005
"""The least share of the critical path that is shown."""

Font = Literal["name", "method", "note", "strong"]
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Label:
    """One line of text; longer than its room, it is shortened.

    Attributes:
        text: The text.
        x: Where it is anchored.
        y: The height of its base line.
        room: Its largest width.
        font: ``name`` is bold, ``method`` monospaced, ``note`` small, ``strong`` small and bold.
        anchor: Which end of it is at x.
        is_faint: Whether it is less important.
        is_bad: Whether it says what is wrong.
    """

    text: str
    x: float
    y: float
    room: float
    font: Font = "note"
    anchor: Anchor = "start"
    is_faint: bool = False
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A method, an input, an output or a collective; or a card, which is around some of these.

    Attributes:
        kind: Of which kind its nodes are, as in ``TopologyNode.kind``. Of a card: ``frame`` for a
            node of the cluster, ``actor`` for one or several alike ones, ``odd`` for one that takes
            longer or shorter than others of its class, ``other``.
        rect: Where it is.
        labels: The texts in it.
        words: The lines of its hover text.
        is_round: Whether it stands alone, with round ends.
        heat: Its share of the critical path, from 0 to 1.
        ops: The ops that it stands for.
        count: The number of calls that it stands for.
        is_bad: Whether something is wrong with it.
    """

    kind: str
    rect: Rect
    labels: tuple[Label, ...]
    words: tuple[str, ...]
    is_round: bool = False
    heat: float = 0.0
    ops: tuple[Place, ...] = ()
    count: int = 0
    is_bad: bool = False

    def __str__(self) -> str:
        place = f"{self.rect.x:g} {self.rect.y:g} {self.rect.width:g} {self.rect.height:g}"
        heat = f" heat {self.heat:.2f}" if self.heat else " bad" if self.is_bad else ""
        labels = " | ".join(label.text for label in self.labels)
        return f"{self.kind}{heat} [{place}] {labels}: {' / '.join(self.words)}"


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

    def __str__(self) -> str:
        label = f" {self.label[0].text}" if self.label else ""
        ends = f"{self.source} -> {self.target}"
        return f"{ends} {self.kind} {self.width:g}{label}: {' / '.join(self.words)}"


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
    cards: tuple[Box, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    usual: str = ""
    groups: tuple[str, ...] = ()
    is_measured: bool = False

    def __str__(self) -> str:
        boxes = [f"{number} {box}" for number, box in enumerate(self.boxes)]
        usual = [f"line without a number: {self.usual}"] if self.usual else []
        lines = [self.about, *self.cards, *boxes, *self.lines, *usual, *self.groups]
        return "\n".join(map(str, lines))
