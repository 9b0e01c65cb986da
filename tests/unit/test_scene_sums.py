# SPDX-License-Identifier: Apache-2.0
"""Sums in the place of bars: what they keep of them, and what they leave out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rcg.trace.measured import Measured
from rcg.views.scene import SUM, Scene
from rcg.views.scenes.sums import packed_within, with_sums
from rcg.views.scenes.timeline import timeline_scene
from tests.unit.packed import unpack
from tests.unit.scenes_by_hand import spans
from tests.unit.test_scenes import check_scene
from tests.unit.views_traces import pipeline, simulated


@pytest.fixture(scope="module")
def whole() -> Scene:
    trace = simulated(pipeline(4), 600, jitter=0.3, spans=True)
    return timeline_scene(Measured.of(trace, trace.graphs[0]))


def totals(scene: Scene) -> tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]]]:
    """The nanoseconds and the number of the bars of each row, op, name and kind."""
    bars = scene.bars if len(scene.bars.count) else scene.bars.take(slice(None)).counted()
    took: Counter[tuple[int, ...]] = Counter()
    count: Counter[tuple[int, ...]] = Counter()
    names = ("row", "op", "name", "kind", "total", "count")
    for *key, total, number in zip(*(getattr(bars, x).tolist() for x in names), strict=True):
        took[tuple(key)] += total
        count[tuple(key)] += number
    return took, count


def test_sums_account_for_all_time_and_all_bars(whole: Scene) -> None:
    scene = with_sums(whole, 800)
    sums = scene.sums
    assert sums is not None
    assert totals(scene) == totals(whole)
    check_scene(scene)  # neither do sums overlap
    bars = scene.bars
    is_sum = bars.execution == SUM
    assert 700 <= (~is_sum).sum() <= 900
    assert len(bars) < len(whole.bars) * 0.8
    assert sums.bars + (~is_sum).sum() == len(whole.bars)
    # Each sum is in one bin, and its longest bar is a real one.
    assert (bars.start[is_sum] // sums.bin * sums.bin + sums.bin >= bars.end[is_sum]).all()
    assert set(bars.longest[is_sum]) <= set(whole.bars.duration)
    assert set(bars.shortest[is_sum]) <= set(whole.bars.duration)


def test_few_bars_are_not_summed() -> None:
    assert with_sums(spans(), 100).sums is None


@pytest.mark.parametrize("most", [12_000, 20_000, 10**6])
def test_what_is_packed_is_within_its_bytes(whole: Scene, most: int) -> None:
    packed = packed_within(whole, most)
    assert packed is not None and len(packed) <= most
    head, columns = unpack(packed)
    assert (head["sums"] is None) == (most == 10**6) == (len(columns["count"]) == 0)
    if most < 10**6:
        assert len(packed) > most * 0.7
        assert (np.array([each < 0 for each in columns["execution"]])).any()
