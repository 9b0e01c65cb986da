# SPDX-License-Identifier: Apache-2.0
"""The pure parts of the bench and of the experiments: turns, targets, JSON, table, command line."""

from __future__ import annotations

import asyncio
import json
import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import lifetime, scale
from benchmarks.__main__ import main as with_experiments
from benchmarks.parallel import PARALLELS
from benchmarks.transfers import TRANSFERS, recorded
from benchmarks.unequal import regret
from rcg.bench import _limits, record, rows, runner
from rcg.bench.__main__ import main
from rcg.bench.contestants import ON_TWO_NODES, WithActors
from rcg.bench.measure import Pace, async_turn, batch_turn, call_turn, pipelined_turn, take_rounds
from rcg.bench.record import (
    BESIDE,
    BY_HAND,
    HERE,
    LIMIT,
    RAW_GLOO,
    RAY_CALL,
    RAY_GRAPH,
    RCG,
    RCG_FUTEX,
    BenchReport,
    Figure,
    Header,
    RowResult,
    SampleSummary,
    percentile,
)
from rcg.bench.rows import ACROSS, ROWS, Row, Target
from rcg.bench.runner import Experiment, Settings, run
from rcg.bench.table import render
from rcg.ir.plan import Plan
from rcg.progress import progress
from rcg.trace.model import GraphTrace
from tests.unit import traces

TIMES = st.lists(st.integers(0, 10**9), min_size=1)


class Clock:
    """A clock that each call under test moves by the next duration in its list."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def call_taking(self, *durations: int) -> Callable[[], None]:
        remaining: Iterator[int] = iter(durations)

        def call() -> None:
            self.now += next(remaining)

        return call


def summary(median: float, p99: float = 0.0) -> SampleSummary:
    return SampleSummary(samples=10, p10=median / 2, median=median, p99=p99 or median * 3)


def header() -> Header:
    return Header("0.1.0", "2.60.0", "3.11.7", "a machine", cores=2, seed=7, started="a day")


def echo_result(**medians: float) -> RowResult:
    names = {"rcg": RCG, "futex": RCG_FUTEX, "call": RAY_CALL, "graph": RAY_GRAPH, "limit": LIMIT}
    return RowResult(
        name="echo",
        title="echo, 1 actor",
        target=Target(auto=0.15, futex=0.35, p99=0.5),
        summaries={names[key]: summary(value) for key, value in medians.items()},
    )


# --- statistics ---------------------------------------------------------------------------------


@given(TIMES)
def test_a_percentile_is_the_smallest_sample_that_covers_the_share(times: list[int]) -> None:
    ordered = sorted(times)
    for share in (0.0, 0.1, 0.5, 0.99, 1.0):
        found = percentile(ordered, share)
        assert found in times
        assert sum(t <= found for t in times) >= share * len(times)
        below = [t for t in times if t < found]
        assert not below or len(below) < share * len(times)


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    assert SampleSummary.of([100, 2, 4, 1]).median == 3
    assert SampleSummary.of([1000, 3000, 2000]).scaled(1e-3) == SampleSummary(3, 1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: percentile([], 0.5), "at least one sample"),
        (lambda: SampleSummary.of([]), "at least one sample"),
        (lambda: percentile([1.0], 99), "between 0 and 1"),
        (lambda: Pace(calls=0, time_ns=1, warm_up=0), "at least one call"),
    ],
)
def test_what_cannot_be_measured_is_an_error(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


# --- turns and rounds ---------------------------------------------------------------------------


def test_a_turn_ends_when_its_time_is_over_but_keeps_the_call_under_way() -> None:
    clock = Clock()
    turn = call_turn(clock.call_taking(*[40] * 9), clock)
    assert list(turn(Pace(calls=9, time_ns=100, warm_up=0))) == [40, 40, 40]


def test_an_async_turn_samples_like_any_other() -> None:
    clock = Clock()
    step = clock.call_taking(100, 7, 8)

    async def call() -> None:
        step()

    loop = asyncio.new_event_loop()
    try:
        turn = async_turn(call, loop, clock)
        assert list(turn(Pace(calls=2, time_ns=10**6, warm_up=1))) == [7, 8]
    finally:
        loop.close()


def test_a_pipelined_turn_keeps_its_window_full_and_fetches_in_order() -> None:
    clock = Clock()
    submitted: list[int] = []
    fetched: list[int] = []
    widest = 0

    def submit() -> int:
        submitted.append(len(submitted))
        return submitted[-1]

    def fetch(item: int) -> None:
        nonlocal widest
        widest = max(widest, len(submitted) - len(fetched))
        fetched.append(item)
        clock.now += 5

    turn = pipelined_turn(submit, fetch, 4, clock)
    samples = turn(Pace(calls=10, time_ns=10**6, warm_up=1))
    assert list(samples) == [5, 5, 5]  # per item, over 4 items each
    assert widest == 4
    assert fetched == submitted  # nothing is left under way


def test_a_batch_is_submitted_before_it_is_fetched_and_is_one_sample() -> None:
    clock = Clock()
    done: list[str] = []

    def submit() -> int:
        done.append("submit")
        return len(done)

    def fetch(_: int) -> None:
        done.append("fetch")
        clock.now += 5

    turn = batch_turn(submit, fetch, 3, clock)
    assert list(turn(Pace(calls=1, time_ns=0, warm_up=2))) == [5]
    assert done == [*["submit"] * 2, *["fetch"] * 2, *["submit"] * 3, *["fetch"] * 3]


@pytest.mark.full
def test_every_contestant_gets_a_turn_in_every_round_and_the_seed_gives_the_order() -> None:
    def orders(seed: int) -> list[str]:
        seen: list[str] = []

        def turn(name: str, _: Pace) -> array[int]:
            seen.append(name)
            return array("q", [len(seen)])

        turns = {name: partial(turn, name) for name in "abc"}
        samples = take_rounds(turns, Pace(1, 1, 0), 20, random.Random(seed))
        assert {name: len(found) for name, found in samples.items()} == dict.fromkeys("abc", 20)
        return seen

    first = orders(1)
    assert first == orders(1)
    assert first != orders(2)
    assert all(sorted(first[i : i + 3]) == ["a", "b", "c"] for i in range(0, 60, 3))
    assert len({tuple(first[i : i + 3]) for i in range(0, 60, 3)}) > 1


def test_the_collector_is_off_in_a_turn_and_on_again_after_it() -> None:
    import gc

    seen = []

    def turn(_: Pace) -> array[int]:
        seen.append(gc.isenabled())
        return array("q", [1])

    take_rounds({"a": turn}, Pace(1, 1, 0), 1, random.Random(0))
    assert seen == [False]
    assert gc.isenabled()


# --- rows ---------------------------------------------------------------------------------------


def test_what_is_measured_has_names_of_its_own() -> None:
    names = [each.name for each in (*ROWS, *TRANSFERS, *PARALLELS)]
    assert len(set(names)) == len(names)
    assert len({row.name for row in ACROSS}) == len(ACROSS)


@pytest.mark.parametrize("row", ACROSS, ids=lambda row: row.name)
def test_a_row_across_nodes_is_run_where_it_says(row: Row) -> None:
    class Seated(WithActors):
        def start_actors(self) -> None:
            names = [f"{seat}.{number}" for number, seat in enumerate(self._seats)]
            self.actors = [SimpleNamespace(echo=name) for name in names]

    methods = Seated(None, ON_TWO_NODES).methods(row)
    assert [int(each.partition(".")[0]) for each in methods] == list(row.nodes)
    assert len(set(methods)) == row.actors
    assert 1 in row.nodes, "the driver is on node 0"


def test_only_the_last_actor_of_a_row_may_call_another_method() -> None:
    by_name = {row.name: row for row in ROWS}
    assert by_name["chain-4"].methods == ("echo",) * 4
    assert by_name["tensor-shm-1mb"].methods == ("tensor", "size")
    assert by_name["numpy-10mb-new"].methods == ("fresh",)


# --- transfers, from traces made by hand ----------------------------------------------------------

EDGE = traces.PIPELINE.replace("channel c0", "group g0 gloo a0 a1\nchannel c0").replace(
    "channel c1 a0 -> a1 ring", "channel c1 a0 -> a1 tensor @g0"
)


def trace_of(text: str, *lanes: list[tuple[int, int, int, int]]) -> GraphTrace:
    """A trace of a driver and actors with (op, execution, start, end) of each actor's events."""
    Plan.from_text(text).check()
    rows = {f"a{i}": [traces.event(*each) for each in lane] for i, lane in enumerate(lanes)}
    return traces.graph_trace(rows, plan=text)


def test_an_edge_lasts_from_the_start_of_its_write_to_the_end_of_its_read() -> None:
    # The reader waits from 40 on. Of execution 2 the trace has one end only.
    trace = trace_of(
        EDGE,
        [(0, 0, 90, 95), (1, 0, 95, 100), (3, 0, 100, 170), (3, 1, 300, 350), (3, 2, 500, 580)],
        [(0, 1, 230, 390), (0, 0, 40, 180), (1, 0, 180, 200)],
    )
    edge = next(each for each in TRANSFERS if each.name == "gloo-edge-1kb")
    assert recorded(edge, trace) == [80, 90]


def test_a_collective_lasts_from_its_last_rank_that_begins_to_its_last_rank_that_ends() -> None:
    trace = trace_of(
        traces.ALLREDUCE,
        [(1, 0, 0, 100), (2, 0, 100, 300), (2, 1, 400, 510)],
        [(2, 0, 150, 290), (2, 1, 390, 520), (2, 2, 700, 800)],
    )
    allreduce = next(each for each in TRANSFERS if each.name == "allreduce-2")
    assert recorded(allreduce, trace) == [150, 120]


# --- models on two actors ------------------------------------------------------------------------


def test_a_division_is_judged_by_its_real_time_and_not_by_the_predicted_one() -> None:
    predicted = {"1+2": 5.0, "2+1": 4.0}
    assert regret(predicted, {"1+2": 30.0, "2+1": 20.0}) == 1.0
    assert regret(predicted, {"1+2": 20.0, "2+1": 30.0}) == 1.5


def test_payloads_follow_from_the_seed() -> None:
    make = rows.array_of(8000)
    first, again, other = (make(random.Random(seed))[0] for seed in (1, 1, 2))
    assert isinstance(first, np.ndarray)
    assert first.nbytes == 8000
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert rows.eight_arguments(random.Random(3)) == rows.eight_arguments(random.Random(3))


def test_rows_are_selected_in_the_order_of_the_table() -> None:
    names = [row.name for row in ROWS]
    assert rows.select(["scatter-*", "echo"], names) == ("echo", "scatter-2", "scatter-4")
    assert rows.select([], names) == tuple(names)


# --- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "target", "expected"),
    [
        ({HERE: 10.6, BESIDE: 10.0}, Target(auto=0.15), ["here to beside: 1.06 > 1.05"]),
        ({RCG: 120.0, RAW_GLOO: 100.0}, Target(raw=1.15), ["to raw Gloo: 1.2 > 1.15"]),
        (
            {RCG: 60.0, LIMIT: 20.0},
            Target(limit=2.5, us=50),
            ["microseconds: 60 > 50", "to the limit: 3 > 2.5"],
        ),
        ({RCG: 120.0, BY_HAND: 100.0}, Target(hand=1.05), ["to a loop by hand: 1.2 > 1.05"]),
    ],
)
def test_each_target_names_what_rcg_is_compared_with(
    times: dict[str, float], target: Target, expected: list[str]
) -> None:
    summaries = {name: summary(time) for name, time in times.items()}
    row = RowResult("echo", "echo", target, summaries)
    assert [str(verdict) for verdict in row.verdicts] == expected
    shown = render(BenchReport(replace(header(), nodes=2), (row,), ()))
    assert "2 Ray nodes" in shown
    assert all(name in shown for name in times)
    assert all(f"MISSED {each}" in shown for each in expected)


def test_a_target_is_met_when_it_is_reached_exactly() -> None:
    figure = Figure("idle", "wake-ups", "1/s", {"driver": 1.0, "actors": 2.0}, most=2.0)
    assert [v.is_met for v in figure.verdicts] == [True]


def test_a_figure_is_judged_by_the_worst_of_what_it_binds() -> None:
    values = {"recording": 40.0, "call and recording": 90.0}
    free = Figure("recorder", "recorder", "ns", values, most=50.0)
    bound = Figure("recorder", "recorder", "ns", values, most=50.0, bound=("recording",))
    assert [v.found for v in free.verdicts] == [90.0]
    assert [v.is_met for v in bound.verdicts] == [True]


def whole_report() -> BenchReport:
    missing = RowResult(
        "tensors", "two tensors", Target(auto=0.5), {RCG: summary(9.0)}, {RAY_GRAPH: "needs torch"}
    )
    return BenchReport(
        header(),
        (echo_result(rcg=1.9, futex=9.0, call=600.0, graph=25.0, limit=5.2), missing),
        (
            Figure("compile", "compile", "ms", {RCG: 12.5, RAY_GRAPH: 80.0}),
            Figure("idle", "wake-ups", "1/s", {"driver": 3.0}, most=2.0),
        ),
    )


@given(
    medians=st.dictionaries(
        st.sampled_from(record.CONTESTANTS), st.floats(0, 1e9, allow_nan=False), min_size=1
    ),
    targets=st.tuples(*[st.none() | st.floats(0, 1)] * 3),
    absent=st.dictionaries(st.sampled_from(record.CONTESTANTS), st.text()),
)
def test_any_report_survives_json_and_can_be_shown(
    medians: dict[str, float],
    targets: tuple[float | None, float | None, float | None],
    absent: dict[str, str],
) -> None:
    row = RowResult(
        "r", "a row", Target(*targets), {n: summary(m) for n, m in medians.items()}, absent
    )
    report = BenchReport(header(), (row,), whole_report().figures)
    assert BenchReport.from_json(report.to_json()) == report
    assert render(report).endswith("\n")


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 99}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no report of schema"):
        BenchReport.from_json(text)


# --- table --------------------------------------------------------------------------------------


def test_the_table_shows_who_took_how_long_and_what_falls_short() -> None:
    text = render(whole_report())
    lines = text.splitlines()
    [rcg_line] = [line for line in lines if line.startswith("  rcg ") and "0.076" in line]
    assert rcg_line.split()[1:3] == ["0.950", "1.90"]
    assert "ok median: 0.076 <= 0.15" in rcg_line
    assert "MISSED futex median: 0.36 > 0.35" in text
    assert "needs torch" in text
    assert "compile" in text
    assert "rcg 12.5, Ray graph 80.0 ms" in text
    assert "2 of 4 targets met." in text
    assert "  missed: echo, 1 actor, futex median: 0.36 > 0.35" in lines
    assert "  missed: wake-ups: 3 > 2" in lines


def test_a_report_of_nothing_says_so() -> None:
    assert "This run has no targets to check" in render(BenchReport(header(), (), ()))


# --- the kernel's books -------------------------------------------------------------------------


def test_ticks_are_read_behind_the_programs_name() -> None:
    fields = " ".join(str(n) for n in range(3, 53))
    assert lifetime.parse_ticks(f"1 (ray::Echo (x) y) {fields}") == 14 + 15


def test_wakeups_are_read_by_name() -> None:
    status = "Name:\tx\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t4\n"
    assert lifetime.parse_wakeups(status) == 17
    with pytest.raises(ValueError, match="voluntary_ctxt_switches"):
        lifetime.parse_wakeups("Name:\tx\n")


# --- the limits ---------------------------------------------------------------------------------


def test_memcpy_copies_what_fits() -> None:
    target = bytearray(5)
    assert _limits.memcpy(target, b"abc") == 3
    assert target == b"abc\0\0"
    assert _limits.memcpy(target, b"0123456789") == 5
    assert target == b"01234"


# --- the command line


def test_the_rows_are_listed_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    for run_it, last in ((main, ROWS[-1].name), (with_experiments, "planning")):
        assert run_it(["--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert all(line.startswith(row.name) for line, row in zip(lines, ROWS, strict=False))
        assert lines[-1].startswith(last)
    assert main(["--list", "--nodes", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ACROSS)


def test_an_experiment_that_is_pure_is_measured_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "running_ray", None)
    monkeypatch.setattr(scale, "PLANNED_NODES", (100,))
    saved = tmp_path / "report.json"
    assert with_experiments(["--rows", "planning", "--rounds", "1", "--json", str(saved)]) == 0
    report = json.loads(saved.read_text())
    assert [figure["name"] for figure in report["figures"]] == ["planning"] and not report["rows"]


def test_what_lacks_a_module_is_left_out_and_results_are_parted_by_their_kind() -> None:
    figure = Figure("one", "one", "us", {"rcg": 1.0})
    experiments = (
        Experiment("lacks", "lacks", lambda _: 1 // 0, needs=("no_such_module",), is_on_ray=False),
        Experiment("one", "one", lambda _: (figure, echo_result()), is_on_ray=False),
    )
    settings = Settings(("lacks", "one"), experiments=experiments)
    report = run(settings, progress(runner.count_steps(settings)))
    assert report.figures == (figure,) and report.rows == (echo_result(),)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--rows", "ecoh"), "no row is called 'ecoh'; there are: echo, "),
        (("--rows", "overlap"), "are in rcg's repository: python -m benchmarks"),
        (("--json", "nowhere/report.json"), "there is no folder"),
        (("--nodes", "2", "--rows", "tensors"), "no row is called 'tensors'; there are: echo, "),
        (("--nodes", "2", "--beside", "."), "two versions are compared on one node only"),
        (("--beside", "nowhere"), "there is no package rcg in nowhere"),
    ],
)
def test_rows_and_files_that_cannot_be_are_refused(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
