# SPDX-License-Identifier: Apache-2.0
"""vLLM's executors beside rcg's, on engines of two stages: what ``make vllm-compare`` runs.

Each has an engine in a process of its own, and all have the same Ray. A round measures them in
turn, while the processes of the others are stopped. A figure of the table is the median of the
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rcg.table import Table
from tests.vllm.environment import ROOT
from tests.vllm.model import PROMPTS, engine, save

RCG: Final = "rcg"
V1: Final = "Ray V1"
V2: Final = "Ray V2"
EXECUTORS: Final[dict[str, dict[str, str]]] = {
    RCG: {"RCG_VLLM": "1"},
    "mp": {},
    V1: {"VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "0", "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE": "shm"},
    V2: {"VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "1"},
}
"""Their names, and the variables that choose them."""

FIGURES: Final = {
    "median_ms": "step, median (ms)",
    "p99_ms": "step, p99 (ms)",
    "tokens_per_s": "tokens per second",
    "cpu_ms": "CPU per step (ms)",
    "idle_ticks": "idle ticks in 10 s",
}
AIMS: Final = (("median_ms", V1, 0.75), ("p99_ms", V1, 0.3), ("median_ms", V2, 1.0))
"""Which share of another executor's figure rcg's has to be, at most."""

TOKENS: Final = 200
_WARM_TOKENS: Final = 20
_IDLE_S: Final = 10.0
_SAID: Final = "compare: "


def serve(name: str, model: str) -> None:
    """Run an engine: say its processes, then measure it for each line of the input."""
    import ray
    from vllm import SamplingParams

    ray.init(log_to_driver=False, logging_level="error")
    backend = "mp" if name == "mp" else "ray"
    llm = engine(model, pipeline_parallel_size=2, distributed_executor_backend=backend)
    workers = llm.llm_engine.collective_rpc(pid_of)
    chosen = SamplingParams(temperature=0, ignore_eos=True, detokenize=False)

    def steps(tokens: int) -> list[float]:
        """Return how long each step took, in ms."""
        chosen.max_tokens = tokens
        for number, prompt in enumerate(PROMPTS):
            llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, chosen.clone())
        found = []
        before = time.perf_counter()
        while llm.llm_engine.has_unfinished_requests():
            if llm.llm_engine.step():
                now = time.perf_counter()
                found.append((now - before) * 1e3)
                before = now
        return found

    say([os.getpid(), *workers])
    for _ in sys.stdin:
        say(measure(steps, workers))
    llm.llm_engine.engine_core.shutdown()


def measure(steps: Callable[[int], list[float]], workers: list[int]) -> dict[str, Any]:
    """Return the figures of an engine, and what the threads of its workers did while idle."""
    steps(_WARM_TOKENS)
    processes = [os.getpid(), *workers]
    used_s = sum(map(cpu_s, processes))
    began = time.perf_counter()
    times = steps(TOKENS)
    passed_s = time.perf_counter() - began
    used_s = sum(map(cpu_s, processes)) - used_s
    before = {pid: ticks_of(pid) for pid in workers}
    time.sleep(_IDLE_S)
    idle = {
        f"worker {rank}, {thread}": ticks - before[pid].get(thread, 0)
        for rank, pid in enumerate(workers)
        for thread, ticks in ticks_of(pid).items()
    }
    return {
        "median_ms": statistics.median(times),
        "p99_ms": statistics.quantiles(times, n=100)[98],
        "tokens_per_s": TOKENS * len(PROMPTS) / passed_s,
        "cpu_ms": used_s * 1e3 / len(times),
        "idle_ticks": sum(idle.values()),
        "threads": {name: ticks for name, ticks in idle.items() if ticks},
    }


def say(what: Any) -> None:
    """Send a line to the process that compares."""
    print(f"{_SAID}{json.dumps(what)}", flush=True)


def pid_of(worker: Any) -> int:
    """Return the process of a worker; called there."""
    return os.getpid()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, in seconds."""
    return sum(ticks_of(pid).values()) / os.sysconf("SC_CLK_TCK")


def ticks_of(pid: int) -> dict[str, int]:
    """Return the clock ticks of each thread of a process, by its number and name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            head, _, tail = (task / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        fields = tail.split()
        found[f"{head.partition('(')[2]} {task.name}"] = int(fields[11]) + int(fields[12])
    return found


class Engine:
    """An engine in a process of its own; its processes are stopped while others are measured."""

    def __init__(self, name: str, model: str, environ: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.vllm.compare", "--serve", name, model]
        self._process = subprocess.Popen(
            command,
            env={**environ, **EXECUTORS[name]},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pids: list[int] = self._hear()
        self.send(signal.SIGSTOP)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        for pid in self._pids:
            os.kill(pid, number)

    def measure(self) -> dict[str, Any]:
        """Return its figures."""
        self.send(signal.SIGCONT)
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        found: dict[str, Any] = self._hear()
        self.send(signal.SIGSTOP)
        return found

    def end(self) -> None:
        """End it."""
        self.send(signal.SIGCONT)
        self._process.communicate()

    def _hear(self) -> Any:
        """Return what it says next: libraries print lines of their own."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_SAID):
                return json.loads(line.removeprefix(_SAID))
        raise SystemExit(f"an engine has ended: {self._process.wait()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare them, and print the table; the exit status is 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--executors", nargs="+", default=list(EXECUTORS), choices=EXECUTORS)
    parser.add_argument("--json", type=Path, help="write all figures")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.serve:
        serve(*asked.serve)
        return 0
    import ray

    ray.init(num_cpus=8, num_gpus=8, include_dashboard=False, log_to_driver=False)
    environ = {
        **os.environ,
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
        "VLLM_HOST_IP": ray.util.get_node_ip_address(),
    }
    engines: dict[str, Engine] = {}
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = save(Path(folder))
        try:
            for name in asked.executors:
                engines[name] = Engine(name, model, environ)
            for number in range(asked.rounds):
                rounds.append({})
                for name, each in engines.items():
                    load = os.getloadavg()[0]
                    found = rounds[-1][name] = {"load": load, **each.measure()}
                    said = ", ".join(f"{text} {found[key]:.3g}" for key, text in FIGURES.items())
                    print(f"round {number + 1}, {name}: {said}; load {load:.1f}", flush=True)
        finally:
            for each in engines.values():
                each.end()
    if asked.json is not None:
        asked.json.write_text(json.dumps(rounds, indent=1))
    medians = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in FIGURES}
        for name in engines
    }
    rows = [(name, *(f"{found[key]:.3g}" for key in FIGURES)) for name, found in medians.items()]
    print(Table(("executor", *FIGURES.values()), rows, "n" + "f" * len(FIGURES)).text())
    missed = misses(medians) if set(engines) == set(EXECUTORS) else []
    print("\n".join(missed))
    return 1 if missed else 0


def misses(found: dict[str, dict[str, float]]) -> list[str]:
    """Return a line for each aim that is missed."""
    ours = found[RCG]
    lines = [
        f"{FIGURES[key]}: {ours[key] / found[other][key]:.2f} of {other}'s, more than {share}"
        for key, other, share in AIMS
        if ours[key] > share * found[other][key]
    ]
    if ours["cpu_ms"] > min(each["cpu_ms"] for each in found.values()):
        lines.append(f"{FIGURES['cpu_ms']}: not the lowest")
    if ours["idle_ticks"] > found[V2]["idle_ticks"]:
        lines.append(f"{FIGURES['idle_ticks']}: more than those of {V2}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
