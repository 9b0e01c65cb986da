# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m rcg.bench`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import rcg.bench
from rcg.bench import runner
from rcg.bench.rows import select
from rcg.bench.table import render
from rcg.progress import progress


def main(
    arguments: Sequence[str] | None = None,
    experiments: Sequence[runner.Experiment] = (),
    program: str = "rcg.bench",
) -> int:
    """Run the command; return its exit status: 0, or 2 for a wrong command line.

    Args:
        arguments: The arguments after the program's name; those of this process if None.
        experiments: What it measures beside the rows.
        program: The name of the program, as `python -m` takes it.
    """
    parser = _parser(program)
    asked = parser.parse_args(arguments)
    titles = runner.titles(asked.nodes, experiments)
    if asked.list:
        for name, title in titles.items():
            print(f"{name:<16}{title}")
        return 0
    if asked.rounds < 1:
        parser.error("--rounds must be at least 1")
    try:
        rows = select([p for p in asked.rows.split(",") if p], tuple(titles))
    except ValueError as error:
        elsewhere = "; experiments, as overlap, are in rcg's repository: python -m benchmarks"
        parser.error(f"{error}{'' if experiments else elsewhere}")
    if asked.json is not None and not asked.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {asked.json.absolute().parent}")
    if asked.beside is not None and not (asked.beside / "rcg" / "__init__.py").is_file():
        parser.error(f"--beside: there is no package rcg in {asked.beside}")
    if asked.beside is not None and asked.nodes > 1:
        parser.error("--beside: two versions are compared on one node only")

    # Ray reads these when its processes start.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    settings = runner.Settings(
        rows=rows,
        rounds=asked.rounds,
        seed=asked.seed,
        beside=asked.beside,
        nodes=asked.nodes,
        experiments=tuple(experiments),
    )
    report = runner.run(settings, progress(runner.count_steps(settings)))
    print(render(report), end="")
    if asked.json is not None:
        report.save(asked.json)
    return 0


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=rcg.bench.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows",
        default="",
        metavar="NAMES",
        help="the rows, as names or patterns separated by commas: echo,numpy-*; default: all",
    )
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the report to this file"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=runner.DEFAULT_ROUNDS,
        metavar="N",
        help=f"turns of each contestant per row; default: {runner.DEFAULT_ROUNDS}",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="the seed of payloads and orders; default: 0",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        choices=(1, 2),
        help="with 2, the rows of graphs over two Ray nodes on this machine; default: 1",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="FOLDER",
        help="a checkout of another version of rcg, with its native core built in place: run the "
        "rows with that version as well, and again with this one, each in a separate process",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
