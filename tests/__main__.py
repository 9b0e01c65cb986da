# SPDX-License-Identifier: Apache-2.0
"""The two circles of the tests: ``make test`` runs the core, ``make test-all`` everything.

The core is what has to hold for anybody to go on. It leaves out the tests that are marked ``full``
and what only the parts name. A part takes at most a quarter of an hour on two cores::

    python -m tests                    the core
    python -m tests --all              the core and all parts
    python -m tests --part 2/4         one part
    python -m tests --part vllm        the part that CI leaves out
    python -m tests --ci 20            what CI runs, in 20 minutes: the core, random cases, what
                                       reaches the changes of the last commits, and others
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from tests.power import choice, reaches
from tests.power.reaches import NBVAL

_COUNT: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


@dataclass(frozen=True)
class Stage:
    """One run of tests.

    Attributes:
        title: What the summary calls it.
        arguments: Pytest's, by words.
        marks: The expression of ``-m``.
        workers: How many processes share the files.
        module: What is run with the arguments.
    """

    title: str
    arguments: str
    marks: str = "not gpu"
    workers: int = 2
    module: str = "pytest"

    def command(self) -> list[str]:
        """Return the command line."""
        spread = ["-n", str(self.workers), "--dist", "loadfile"] if self.workers > 1 else []
        command = [sys.executable, "-m", self.module, "-q", "-m", self.marks, *spread]
        return [*command, *self.arguments.split()]


@dataclass
class Outcome:
    """The result of a stage.

    Attributes:
        stage: The stage.
        status: The exit status of its process; 0 if every test passed.
        duration_s: How long it took.
        counts: The numbers of pytest's last line, by its words.
    """

    stage: Stage
    status: int
    duration_s: float
    counts: Counter[str] = field(default_factory=Counter)


def of_cluster(names: str) -> str:
    """Return the files of the cluster tests with these names."""
    return " ".join(f"tests/cluster/test_{name}.py" for name in names.split())


CORE: Final = "not full and not gpu"
REST: Final = "full and not gpu"
QUICK: Final = "--hypothesis-profile=quick"  # fewer random examples
PURE: Final = "tests/unit tests/conformance rcg benchmarks tests/process"
DEATHS: Final = of_cluster("fault_matrix fault_matrix_tensors deaths rendezvous_ends")
# The files of the other part: a new file is in one of them without a change here.
ELSE: Final = " ".join(f"--ignore={path}" for path in DEATHS.split())
# Tests of one node also run on two.
ON_TWO_NODES: Final = of_cluster(
    "deaths execute fault_matrix nodes_tensors handles profile failures asyncio collectives "
    "random_dags failed_inputs hostile_errors memory_limits loans seeing parts interrupts soak"
)
MORE_ON_TWO_NODES: Final = of_cluster(
    "fault_matrix_tensors rendezvous_ends random_tensors reentrance many_graphs tensors "
    "streams values_through_actors processes magics memory_admission authoring "
    "collectives_authored actors refs coroutines visitors programs seeds descriptors overlap "
    "communicators pinned collective_calls interpret rdt rdt_transports rdt_users weights nixl"
)

STAGES: Final[tuple[Stage | tuple[Stage, ...], ...]] = (
    Stage("unit, conformance, process", f"{QUICK} {PURE}", CORE),
    Stage("cluster", f"{QUICK} tests/cluster tests/packaging", CORE),
    # One process each, side by side.
    (
        Stage("two nodes", f"--nodes 2 {of_cluster('nodes_tensors fault_matrix')}", CORE, 1),
        Stage("quickstart notebook", f"{NBVAL} notebooks/quickstart.ipynb", workers=1),
    ),
)
PARTS: Final = (
    (
        Stage("unit, conformance, process, whole", PURE),
        Stage("deaths", DEATHS, REST),
        Stage("random graphs", of_cluster("random_tensors"), CORE),
        Stage("three nodes, packages", "tests/nodes tests/packaging", REST),
    ),
    (
        Stage("cluster, the rest", f"{ELSE} tests/cluster", REST),
        Stage("browser", "tests/browser", workers=1),
    ),
    (
        Stage("two nodes, whole", f"--nodes 2 {ON_TWO_NODES}"),
        Stage("network namespaces", "tests/netns", workers=1, module="tests.netns"),
    ),
    (
        Stage("more on two nodes", f"--nodes 2 {MORE_ON_TWO_NODES}"),
        Stage("notebooks", f"{NBVAL} notebooks"),
    ),
)
# CI gives random cases so long, in two processes side by side; they draw until it is over.
RANDOM_MINUTES: Final = 3
RANDOM: Final[tuple[Stage, ...]] = tuple(
    Stage(f"random cases, {name}", f"{QUICK} --random-minutes {RANDOM_MINUTES} {files}",
          "random and not gpu", workers=1)
    for name, files in (
        ("one process", "tests/unit tests/process tests/conformance"),
        ("actors", of_cluster("random_dags random_tensors rdt_random weights")),
    )
)  # fmt: skip
# State machines over real processes, each with a Ray of its own.
MODELS: Final = Stage("models", f"--model-minutes 2 {of_cluster('rdt_model weights_model')}")
# How CI runs the other units of `tests.power.choice`.
WAYS: Final = {
    "full": Stage("left out by the core", QUICK, REST),
    "two nodes": Stage("two nodes", f"{QUICK} --nodes 2"),
    "nodes": Stage("three nodes", "", workers=1),
    "netns": Stage("network namespaces", "", workers=1, module="tests.netns"),
    "browser": Stage("browser", "", workers=1),
    "notebooks": Stage("notebooks", NBVAL),
}
# What a stage takes before its first test: a Ray session for each worker, a JupyterLab.
START_S: Final = 25.0
LONGEST_STAGE_S: Final = 180.0
# The tests with vLLM are a part that has no turn in CI: they first install 3.7 GB.
VLLM: Final = (Stage("vLLM", "tests/vllm", workers=1, module="tests.vllm"),)


def run_all(stages: Iterable[Stage | tuple[Stage, ...]], seed: int) -> list[Outcome]:
    """Run stages one after the other, those of a tuple side by side."""
    outcomes = []
    for each in stages:
        beside = each if isinstance(each, tuple) else (each,)
        with ThreadPoolExecutor(len(beside)) as threads:
            outcomes += threads.map(lambda stage: run(stage, seed), beside)
    return outcomes


def run(stage: Stage, seed: int) -> Outcome:
    """Run a stage and show what it prints."""
    print(f"\n=== {stage.title}", flush=True)
    began = time.monotonic()
    command = [*stage.command(), f"--hypothesis-seed={seed}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line if _COUNT.search(line) and " in " in line else last
    counts = Counter({word: int(number) for number, word in _COUNT.findall(last)})
    return Outcome(stage, process.wait(), time.monotonic() - began, counts)


def summarize(outcomes: Sequence[Outcome]) -> str:
    """Return the table of what was run."""
    words = ("passed", "failed", "error", "errors", "skipped")
    rows = [
        (each.stage.title, ", ".join(f"{each.counts[w]:,} {w}" for w in words if each.counts[w])
         or f"exit status {each.status}", f"{each.duration_s / 60:.1f} min")
        for each in outcomes
    ]  # fmt: skip
    wide, middle = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"{a:{wide}}  {b:{middle}}  {c:>9}" for a, b, c in rows)


def part_of(text: str) -> tuple[Stage, ...]:
    """Return the part that `2/4`, or `vllm`, names."""
    if text == "vllm":
        return VLLM
    number, _, count = text.partition("/")
    if count != str(len(PARTS)) or not number.isdecimal() or not 1 <= int(number) <= len(PARTS):
        raise argparse.ArgumentTypeError(
            f"a part is 1/{len(PARTS)} to {len(PARTS)}/{len(PARTS)}, or vllm"
        )
    return PARTS[int(number) - 1]


def run_changed_and_others(seed: int, deadline_s: float) -> list[Outcome]:
    """Run what reaches the changes of the last commits, then others, until the deadline.

    Stages are short and end before the deadline, as far as the durations in the map are right.
    """
    known = reaches.load()
    left = choice.units(known, f"{ON_TWO_NODES} {MORE_ON_TWO_NODES}".split())
    first = choice.priorities(known, choice.changed())
    chance = random.Random(seed)
    left.sort(key=lambda unit: (-first.get(unit.test, 0.0), chance.random()))
    outcomes = []
    while left:
        way = left[0].way
        stage = WAYS[way]
        room_s = deadline_s - time.monotonic() - START_S
        chosen: list[choice.Unit] = []
        for unit in [each for each in left if each.way == way]:
            durations = [each.duration_s for each in (*chosen, unit)]
            takes_s = max([sum(durations) / stage.workers, *durations])
            if takes_s <= (min(room_s, LONGEST_STAGE_S) if chosen else room_s):
                chosen.append(unit)
                left.remove(unit)
        if chosen:
            arguments = " ".join([stage.arguments, *(unit.test for unit in chosen)])
            outcomes.append(run(replace(stage, arguments=arguments), seed))
        else:  # too long for what is left, as are the others of this way
            left = [unit for unit in left if unit.way != way]
    return outcomes


def run_ci(seed: int, deadline_s: float) -> list[Outcome]:
    """Run what CI runs."""
    outcomes = run_all([*STAGES, RANDOM, MODELS], seed)
    return outcomes + run_changed_and_others(seed, deadline_s)


def main() -> int:
    """Run what the command line says; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__.split("\n")[0])
    parser.add_argument("--all", action="store_true", help="the core and all parts")
    parser.add_argument("--ci", type=float, metavar="MINUTES", help="what CI runs, in so long")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(10**9),
        help="of random cases; a new one without it",
    )
    parser.add_argument("--part", type=part_of, help=f"one of 1/{len(PARTS)} ... of the rest")
    chosen = parser.parse_args()
    print(f"random cases: --seed {chosen.seed}", flush=True)
    stages: tuple[Stage | tuple[Stage, ...], ...] = STAGES
    if chosen.ci is not None:
        outcomes = run_ci(chosen.seed, time.monotonic() + 60 * chosen.ci)
    else:
        if chosen.part is not None:
            stages = chosen.part
        elif chosen.all:
            stages = (*STAGES, *sum(PARTS, ()), *VLLM)
        outcomes = run_all(stages, chosen.seed)
    print("\n" + summarize(outcomes))
    if chosen.part is None and not chosen.all and chosen.ci is None:
        print(
            "left out: tests marked `full`, other files on two nodes, three nodes, the browser, "
            f"other notebooks, network namespaces, vLLM: make test-all, or PART=1/{len(PARTS)}"
        )
    return int(any(each.status for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
