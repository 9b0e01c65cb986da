# SPDX-License-Identifier: Apache-2.0
"""The hello world, `python -m rcg.demo`: one DAG, run by Ray Core and compiled by rcg.

Starts a local Ray, checks what it prints, times both ways side by side, and cleans up. Everything
it does is what a user would write; where a line is not obvious, a comment says what it does.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import rcg as ray
from rcg.dag import InputNode, MultiOutputNode
from rcg.text import time_text

__rcg_user__ = True  # see rcg.frames

CALLS = 300
WARM_UP = 30


class Greeter:
    """Adds its own name to what passes by."""

    def __init__(self, name: str) -> None:
        self._name = name

    def greet(self, text: str) -> str:
        """Returns the text with a greeting."""
        return f"{text} {self._name}"


def main() -> None:
    """Runs the demonstration.

    Raises:
        RuntimeError: A result is not what it has to be.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    print("Starting a local Ray ...")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        show()
    finally:
        ray.shutdown()


def show() -> None:
    """Binds two DAGs over three actors, runs them both ways, and prints results and timings."""
    greeter = ray.remote(Greeter)
    names = ("Ada", "Grace", "Barbara")
    actors = [greeter.remote(name) for name in names]

    # A chain: what one actor returns is the input of the next.
    with InputNode() as inp:
        chain = inp
        for actor in actors:
            chain = actor.greet.bind(chain)

    # The same input to all of them at once.
    with InputNode() as inp:
        fan = MultiOutputNode([actor.greet.bind(inp) for actor in actors])

    # Not compiled, a DAG runs as ordinary Ray tasks.
    check("Ray Core, chain", ray.get(chain.execute("hello")), "hello Ada Grace Barbara")
    check("Ray Core, fan", ray.get(fan.execute("hello")), [f"hello {name}" for name in names])

    # Compiled, the actors wait for their input in loops of their own. Both graphs use the same
    # actors at the same time.
    with chain.experimental_compile() as fast_chain, fan.experimental_compile() as fast_fan:
        print(f"compiled: {fast_chain}")
        check("rcg, chain", ray.get(fast_chain.execute("hello")), "hello Ada Grace Barbara")
        check("rcg, fan", ray.get(fast_fan.execute("hello")), [f"hello {name}" for name in names])
        refs = [fast_chain.execute(f"hello {i},") for i in range(4)]
        check("rcg, pipelined", ray.get(refs), [f"hello {i}, Ada Grace Barbara" for i in range(4)])

        print(f"\n{'median of ' + str(CALLS) + ' calls':<24}{'Ray Core':>12}{'rcg':>12}")
        compare("chain of 3", chain, fast_chain)
        compare("scatter-gather to 3", fan, fast_fan)

    # The graphs are gone, the actors are what they were.
    check("\nafter teardown", ray.get(actors[0].greet.remote("goodbye")), "goodbye Ada")


def check(what: str, found: Any, expected: Any) -> None:
    """Prints a result.

    Raises:
        RuntimeError: It is not the expected one.
    """
    print(f"{what}: {found}")
    if found != expected:
        raise RuntimeError(f"{what.strip()}: expected {expected!r}, found {found!r}")


def compare(what: str, dag: Any, compiled: Any) -> None:
    """Prints how long one execution takes both ways."""
    core_ns = median_ns(lambda: ray.get(dag.execute("hello")))
    rcg_ns = median_ns(lambda: ray.get(compiled.execute("hello")))
    times = f"{time_text(core_ns):>12}{time_text(rcg_ns):>12}"
    print(f"{what:<24}{times}   {core_ns / rcg_ns:.0f} times faster")


def median_ns(call: Callable[[], object]) -> float:
    """Returns the median time of a call in nanoseconds."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
