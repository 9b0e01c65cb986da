# SPDX-License-Identifier: Apache-2.0
"""The two circles of the tests: ``make test`` runs the core, ``make test-all`` everything.

The core is what has to hold for anybody to go on. It leaves out the tests that are marked ``full``
and what only the parts name. A part takes at most a quarter of an hour on two cores::

    python -m tests                    the core
    python -m tests --all              the core and all parts
    python -m tests --part 2/4         one part
    python -m tests --part vllm        the part that CI leaves out
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

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
NBVAL: Final = (
    "--nbval --nbval-sanitize-with=notebooks/sanitize.cfg --nbval-current-env "
    "--nbval-cell-timeout=120"
)
DEATHS: Final = of_cluster("fault_matrix fault_matrix_tensors deaths rendezvous_ends")
# The files of the other part: a new file is in one of them without a change here.
ELSE: Final = " ".join(f"--ignore={path}" for path in DEATHS.split())
# Tests of one node also run on two.
ON_TWO_NODES: Final = of_cluster(
    "deaths execute fault_matrix nodes_tensors handles profile failures asyncio collectives "
    "random_dags failed_inputs hostile_errors memory_limits loans seeing parts interrupts soak"
)
MORE_ON_TWO_NODES: Final = of_cluster(
    "fault_matrix_tensors rendezvous_ends random_tensors reentrance many_graphs tensors users "
    "streams values_through_actors users_tensors processes magics memory_admission authoring "
    "collectives_authored actors refs coroutines visitors programs seeds descriptors overlap "
    "communicators pinned collective_calls interpret rdt rdt_transports rdt_users weights nixl"
)

STAGES: Final = (
    Stage("unit, conformance, process", f"{QUICK} {PURE}", CORE),
    Stage("cluster", f"{QUICK} tests/cluster tests/packaging", CORE),
    Stage("two nodes", f"--nodes 2 {of_cluster('nodes_tensors fault_matrix execute')}", CORE),
    Stage("quickstart notebook", f"{NBVAL} notebooks/quickstart.ipynb", workers=1),
)
PARTS: Final = (
    (
        Stage("unit, conformance, process, whole", PURE),
        Stage("deaths", DEATHS, REST),
        Stage("random graphs", of_cluster("random_dags random_tensors"), CORE),
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
# The tests with vLLM are a part that has no turn in CI: they first install 3.7 GB.
VLLM: Final = (Stage("vLLM", "tests/vllm", workers=1, module="tests.vllm"),)


def run(stage: Stage) -> Outcome:
    """Run a stage and show what it prints."""
    print(f"\n=== {stage.title}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(stage.command(), stdout=subprocess.PIPE, text=True)
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


def main() -> int:
    """Run what the command line says; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__.split("\n")[0])
    parser.add_argument("--all", action="store_true", help="the core and all parts")
    parser.add_argument("--part", type=part_of, help=f"one of 1/{len(PARTS)} ... of the rest")
    chosen = parser.parse_args()
    if chosen.part is not None:
        stages: tuple[Stage, ...] = chosen.part
    else:
        stages = STAGES + ((*sum(PARTS, ()), *VLLM) if chosen.all else ())
    outcomes = [run(stage) for stage in stages]
    print("\n" + summarize(outcomes))
    if chosen.part is None and not chosen.all:
        print(
            "left out: tests marked `full`, other files on two nodes, three nodes, the browser, "
            f"other notebooks, network namespaces, vLLM: make test-all, or PART=1/{len(PARTS)}"
        )
    return int(any(each.status for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
