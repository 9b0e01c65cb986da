# SPDX-License-Identifier: Apache-2.0
"""The report of references to tensors as tables: each reference, and each process that holds some.

This file must not know where a report comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from rcg.text import bytes_text, count_text, short_label, time_text
from rcg.views.html.elements import Cell, card, table, themed

_MAX_ROWS: Final = 50
_ID: Final = 16  # digits of an id that tell references apart

_STATES: Final = {
    "held": ("\N{BLACK CIRCLE}", "rcg-good"),
    "being made": ("\N{WHITE CIRCLE}", "rcg-slow"),
    "no tensors": ("\N{EN DASH}", "rcg-dim"),
    "failed": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "lost": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "dead": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "unknown": ("\N{BLACK UP-POINTING TRIANGLE}", "rcg-bad"),
}


class LiveData(Protocol):
    """One reference (``rcg.rdt.observe.LiveTensors``)."""

    @property
    def ref(self) -> str: ...  # noqa: D102
    @property
    def owner(self) -> str: ...  # noqa: D102
    @property
    def transport(self) -> str: ...  # noqa: D102
    @property
    def bytes(self) -> int: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def age_s(self) -> float: ...  # noqa: D102
    @property
    def pulls(self) -> int: ...  # noqa: D102
    @property
    def waiters(self) -> tuple[str, ...]: ...  # noqa: D102


class OwnerData(Protocol):
    """One process that holds tensors (``rcg.rdt.observe.Owner``)."""

    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def objects(self) -> int: ...  # noqa: D102
    @property
    def bytes(self) -> int: ...  # noqa: D102
    @property
    def freed(self) -> int: ...  # noqa: D102
    @property
    def unkept(self) -> int: ...  # noqa: D102
    @property
    def answers(self) -> bool: ...  # noqa: D102
    @property
    def death(self) -> str: ...  # noqa: D102


class TensorsData(Protocol):
    """The report (``rcg.rdt.observe.TensorsReport``)."""

    @property
    def refs(self) -> Sequence[LiveData]: ...  # noqa: D102
    @property
    def owners(self) -> Sequence[OwnerData]: ...  # noqa: D102
    @property
    def about(self) -> str: ...  # noqa: D102


def tensors_report_of(report: TensorsData, *, dark: bool | None = None) -> str:
    """Return a report as HTML without a script.

    Args:
        report: The report.
        dark: Whether to use dark colours; None leaves it to the reader's browser.
    """
    shown = report.refs[:_MAX_ROWS]
    about = report.about
    if len(shown) < len(report.refs):
        about += f"; the {len(shown)} largest are shown"
    head = ("reference", "owner", "transport", "size", "state", "age", "sent", "waited for by")
    rows = [_row(each) for each in shown]
    body = (
        table(head, rows, [each.state in ("failed", "lost", "dead", "unknown") for each in shown])
        if rows
        else ""
    )
    if report.owners:
        owners = [_owner_row(each) for each in report.owners]
        marked = [not each.answers for each in report.owners]
        heads = ("owner", "objects", "size", "freed", "freed unasked", "pid")
        body += table(heads, owners, marked)
    return themed(card("Tensors by reference", about, body), dark=dark)


def _row(each: LiveData) -> list[Cell]:
    sign, colour = _STATES.get(each.state, ("\N{BULLET}", ""))
    is_known = bool(each.transport)
    return [
        Cell(each.ref[:_ID], "rcg-code", each.ref),
        Cell(short_label(each.owner), "rcg-strong", each.owner),
        Cell(each.transport or "-"),
        Cell(bytes_text(each.bytes) if is_known else "-", "rcg-number"),
        Cell(f"{sign} {each.state}", f"rcg-strong rcg-short {colour}"),
        Cell(time_text(each.age_s * 1e9) if is_known else "-", "rcg-number"),
        Cell(count_text(each.pulls) if is_known else "-", "rcg-number"),
        Cell("\n".join(each.waiters)),
    ]


def _owner_row(each: OwnerData) -> list[Cell]:
    if not each.answers:
        return [
            Cell(short_label(each.label), "rcg-strong", each.label),
            Cell("is dead" if each.death else "does not answer", "rcg-bad", each.death),
            *[Cell("-", "rcg-number rcg-dim")] * 4,
        ]
    return [
        Cell(short_label(each.label), "rcg-strong", each.label),
        Cell(count_text(each.objects), "rcg-number"),
        Cell(bytes_text(each.bytes), "rcg-number"),
        Cell(count_text(each.freed), "rcg-number"),
        Cell(count_text(each.unkept), "rcg-number"),
        Cell(f"{each.pid}", "rcg-number rcg-dim"),
    ]
