# SPDX-License-Identifier: Apache-2.0
"""Who publishes and who reads weights: which version each has, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rcg.display import Displayed, Mimebundle, Views
from rcg.table import Cell, Table
from rcg.text import bytes_text, plural, short_label, time_text

_HEAD: Final = ("weights", "process", "is a", "size", "spare", "version", "waits for")


@dataclass(frozen=True, slots=True)
class Party:
    """A publisher or a reader of weights.

    Attributes:
        weights: The name.
        label: The process.
        is_publisher: Whether it publishes.
        bytes: What it has of them.
        spare_bytes: The memory that it may use beside its tensors: a publisher for a copy, a reader
            for a version that is not complete yet, or its ``lookahead``.
        version: The version that it has; None before the first.
        lag: Of a reader: how many versions are newer.
        waits_for: What it waits for, "" for nothing.
        for_s: How long it has waited, in seconds.
    """

    weights: str
    label: str
    is_publisher: bool
    bytes: int
    spare_bytes: int
    version: int | None
    lag: int
    waits_for: str
    for_s: float


@dataclass(frozen=True)
class WeightsReport(Displayed):
    """All publishers and readers of weights in the cluster; prints as text.

    Attributes:
        parties: The publishers and readers, by name.
    """

    parties: tuple[Party, ...]

    @property
    def about(self) -> str:
        """One sentence about it."""
        if not self.parties:
            return "nobody publishes or reads any"
        count = sum(each.is_publisher for each in self.parties)
        readers = len(self.parties) - count
        return f"{plural(count, 'publisher')}, {plural(readers, 'reader')}"

    def table(self) -> Table:
        """Return what each does, as a table."""
        rows = [
            (
                each.weights,
                Cell(short_label(each.label), hover=each.label),
                "publisher" if each.is_publisher else "reader",
                bytes_text(each.bytes),
                bytes_text(each.spare_bytes),
                ("none" if each.version is None else str(each.version))
                + (f", {each.lag} behind" if each.lag else ""),
                each.waits_for and f"{each.waits_for}, for {time_text(each.for_s * 1e9)}",
            )
            for each in self.parties
        ]
        return Table(_HEAD, rows, "nnwffww")

    def __str__(self) -> str:
        return "\n".join([f"Weights: {self.about}", *([self.table().text()] * bool(self.parties))])

    __repr__ = __str__

    def html(self) -> str:
        """Return it as a table."""
        from rcg.views.html.elements import card, themed  # for notebooks only

        return themed(card("Weights", self.about, self.table().html()))

    def _mimebundle(self, views: Views) -> Mimebundle:
        return {"text/plain": str(self), "text/html": self.html()}


def report_of(found: Sequence[Sequence[Any]]) -> WeightsReport:
    """Return the report of what the owner says; see ``Owner.describe``."""
    return WeightsReport(tuple(Party(*each) for each in found))
