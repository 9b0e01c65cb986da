# SPDX-License-Identifier: Apache-2.0
"""Order statistics of samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all samples do not exceed.

    This is the nearest-rank definition: the result is one of the samples.

    Args:
        ordered: The samples, ascending, at least one.
        share: Between 0 and 1.

    Raises:
        ValueError: There is no sample, or `share` is outside [0, 1].

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5), percentile([1.0, 2.0, 3.0, 4.0], 0.99)
    (2.0, 4.0)
    """
    if not ordered:
        raise ValueError("a percentile needs at least one sample")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share must be between 0 and 1, found {share}")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(ordered: Sequence[float]) -> float:
    """Return the middle sample of an ascending sequence, or the mean of the two middle ones.

    Raises:
        ValueError: There is no sample.
    """
    if not ordered:
        raise ValueError("a median needs at least one sample")
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True)
class SampleSummary:
    """The samples of one contestant on one row, in the unit of the row."""

    samples: int
    p10: float
    median: float
    p99: float

    @classmethod
    def of(cls, samples: Iterable[float]) -> SampleSummary:
        """Return the summary of samples in any order.

        Raises:
            ValueError: There is no sample.
        """
        ordered = sorted(samples)
        return cls(
            samples=len(ordered),
            p10=percentile(ordered, 0.10),
            median=median(ordered),
            p99=percentile(ordered, 0.99),
        )

    def scaled(self, factor: float) -> SampleSummary:
        """Return the same summary in another unit."""
        return SampleSummary(
            self.samples, self.p10 * factor, self.median * factor, self.p99 * factor
        )
