# SPDX-License-Identifier: Apache-2.0
"""A table, stated once: as text, as HTML without a script, and for a terminal with colours.

>>> found = Table(
...     ("process", "state", "memory"),
...     [("a0 (Stage)", state_cell("running"), "1.02 kB"), ("a1", state_cell("stuck"), "31 kB")],
...     "nwf",
...     marked=(1,),
... )
>>> print(found.text())
  process     state     memory
  a0 (Stage)  running  1.02 kB
> a1          stuck      31 kB

The style sheet of its HTML is in ``views/html/elements.py``. This file knows nothing of what is in
a table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from rcg.text import IN_LINE, brief, visible

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_STATES: Final = {
    "running": ("\N{BLACK CIRCLE}", "good"),
    "waiting": ("\N{WHITE CIRCLE}", "slow"),
    "stuck": ("\N{BLACK UP-POINTING TRIANGLE}", "bad"),
    "dead": ("\N{MULTIPLICATION X}", "bad"),
    "idle": ("\N{EN DASH}", "dim"),
    "ready": ("\N{EN DASH}", "dim"),
    "gave up": ("\N{WHITE CIRCLE}", "slow"),
    "ended": ("\N{EN DASH}", "dim"),
    "held": ("\N{BLACK CIRCLE}", "good"),
    "being made": ("\N{WHITE CIRCLE}", "slow"),
    "no tensors": ("\N{EN DASH}", "dim"),
    "failed": ("\N{MULTIPLICATION X}", "bad"),
    "unreachable": ("\N{MULTIPLICATION X}", "bad"),
    "lost": ("\N{MULTIPLICATION X}", "bad"),
    "unknown": ("\N{BLACK UP-POINTING TRIANGLE}", "bad"),
}
_IN_TERMINAL: Final = {
    "strong": "bold", "dim": "bright_black", "good": "green", "slow": "yellow", "bad": "bold red",
}  # fmt: skip
_MARK: Final = "> "


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it says; of several lines, text and terminals show the first.
        looks: How it looks where there are colours, apart by spaces: strong, dim, good, slow, bad,
            code, short (it is not wrapped), op (it keeps its lines).
        hover: What HTML says when the pointer is on it.
        sign: A character before the text where there are colours.
    """

    text: str
    looks: str = ""
    hover: str = ""
    sign: str = ""

    @property
    def line(self) -> str:
        """Its first line; what cannot be shown is escaped."""
        return visible(self.text.partition("\n")[0])

    @property
    def signed(self) -> str:
        """Its text behind its sign."""
        return f"{self.sign} {self.text}" if self.sign else self.text


def state_cell(state: str) -> Cell:
    """Return the cell of the state of a process or of a value."""
    sign, look = _STATES.get(state, ("\N{BULLET}", ""))
    return Cell(state, f"strong short {look}".rstrip(), sign=sign)


@dataclass(frozen=True)
class Table:
    """Rows below a head; columns with nothing in them are left out.

    Attributes:
        head: The names of the columns; all of them may be "".
        rows: The cells of each row; text is a cell without looks.
        kinds: What each column holds, a letter each: "n" for names, which are shortened in text,
            "w" for words, "f" for figures, which are aligned to the right.
        marked: The numbers of the rows that matter most.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    kinds: str
    marked: Collection[int] = ()

    def text(self, indent: str = "") -> str:
        """Return it as lines of text; ``>`` is before a row that is marked."""
        columns = []
        for at, kind in self._used:
            cells = [self.head[at], *(_cell(row[at]).line for row in self.rows)]
            cells = [brief(each, IN_LINE) for each in cells] if kind == "n" else cells
            width = max(map(len, cells))
            columns.append([f"{each:{'>' if kind == 'f' else ''}{width}}" for each in cells])
        lines = list(map("  ".join, zip(*columns, strict=True)))
        if self.marked:
            marks = ["", *(_MARK if row in self.marked else "" for row in range(len(self.rows)))]
            lines = [f"{mark:{len(_MARK)}}{line}" for mark, line in zip(marks, lines, strict=True)]
        lines = lines if any(self.head) else lines[1:]
        return "\n".join(f"{indent}{line}".rstrip() for line in lines)

    def html(self) -> str:
        """Return it as an element, for ``elements.themed``."""
        heads = "".join(
            f'<th scope="col"{_class_of(kind)}>{escape(visible(self.head[at]))}</th>'
            for at, kind in self._used
        )
        body = "".join(
            f"<tr{' class=rcg-marked' if number in self.marked else ''}>"
            f"{''.join(_td(_cell(row[at]), kind) for at, kind in self._used)}</tr>"
            for number, row in enumerate(self.rows)
        )
        return (
            f'<table class="rcg-table"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
        )

    def rich(self) -> RichTable:
        """Return it for a terminal, whose rows are as wide as it at most.

        Raises:
            ImportError: The package ``rich`` is not installed.
        """
        from rich.table import Table as RichTable
        from rich.text import Text

        found = RichTable(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
        for at, kind in self._used:
            found.add_column(
                self.head[at],
                justify="right" if kind == "f" else "left",
                no_wrap=True,
                overflow="ellipsis",
            )
        for number, row in enumerate(self.rows):
            cells = []
            for at, _ in self._used:
                cell = _cell(row[at])
                looks = map(_IN_TERMINAL.get, cell.looks.split())
                sign = f"{cell.sign} " if cell.sign else ""
                cells.append(Text(f"{sign}{cell.line}", style=" ".join(filter(None, looks))))
            found.add_row(*cells, style="reverse" if number in self.marked else "")
        return found

    @property
    def _used(self) -> list[tuple[int, str]]:
        """The columns with something in them, with their kinds."""
        return [
            (at, kind)
            for at, kind in enumerate(self.kinds)
            if any(_cell(row[at]).text for row in self.rows)
        ]


def escaped(text: str) -> str:
    """Return text for HTML. Line breaks stay; other characters that cannot be shown are escaped."""
    return "\n".join(escape(visible(line)) for line in text.split("\n"))


def _cell(cell: str | Cell) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _class_of(kind: str, looks: str = "") -> str:
    names = ["number"] * (kind == "f") + looks.split()
    return f' class="{" ".join(f"rcg-{each}" for each in names)}"' if names else ""


def _td(cell: Cell, kind: str) -> str:
    hover = f' title="{escaped(cell.hover)}"' if cell.hover else ""
    return f"<td{_class_of(kind, cell.looks)}{hover}>{escaped(cell.signed)}</td>"
