# SPDX-License-Identifier: Apache-2.0
"""Sums of the transfers of tensors by reference: who got how much from whom, in what time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rcg.text import bytes_text, plural, short_label, table, time_text
from rcg.trace.model import TensorTransfer


@dataclass(frozen=True, slots=True)
class ReferenceSums:
    """The transfers from one process to another over one transport.

    Attributes:
        source: The process that held the tensors.
        target: The process that got them.
        transport: How they travelled.
        transfers: How many values there were.
        bytes: The bytes of their tensors.
        waited_ns: How long the target waited before the first byte came.
        moved_ns: How long they moved.
        failed: How many did not arrive.
    """

    source: str
    target: str
    transport: str
    transfers: int
    bytes: int
    waited_ns: int
    moved_ns: int
    failed: int


def reference_sums(transfers: Iterable[TensorTransfer]) -> list[ReferenceSums]:
    """Return the sums, those that took longest first."""
    groups: dict[tuple[str, str, str], list[TensorTransfer]] = {}
    for each in transfers:
        groups.setdefault((each.source, each.target, each.transport), []).append(each)
    found = [
        ReferenceSums(
            *key,
            len(group),
            sum(each.bytes for each in group),
            sum(each.waited_ns for each in group),
            sum(each.moved_ns for each in group),
            sum(bool(each.error) for each in group),
        )
        for key, group in groups.items()
    ]
    return sorted(found, key=lambda each: -(each.waited_ns + each.moved_ns))


def reference_lines(transfers: Iterable[TensorTransfer]) -> list[str]:
    """Return the sums as lines of text; none without transfers."""
    sums = reference_sums(transfers)
    if not sums:
        return []
    count, size = sum(each.transfers for each in sums), sum(each.bytes for each in sums)
    rows = [
        (
            short_label(each.source),
            short_label(each.target),
            each.transport,
            str(each.transfers),
            bytes_text(each.bytes),
            time_text(each.waited_ns),
            time_text(each.moved_ns),
            str(each.failed) if each.failed else "",
        )
        for each in sums
    ]
    head = ("from", "to", "transport", "values", "size", "waited", "moved", "failed")
    return [
        f"Tensors by reference: {plural(count, 'transfer')} of {bytes_text(size)}",
        *table(head, rows),
    ]
