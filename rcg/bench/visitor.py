# SPDX-License-Identifier: Apache-2.0
"""A driver in a separate process, for a graph of the version of rcg that it imports.

A ``Visitor`` runs it as a script, with the folder of a version of rcg first in PYTHONPATH. It uses
only public names of that version. Everything else comes from the folder of this file, so that both
versions are measured by the same code.

Requests are pickles on stdin. Each is answered by a pickle on stdout, ``("ok", result)`` or
``("error", reason)``::

    start address                  -> {files of the rcg here and in the actors}, pids of the actors
    open task, payload             -> the value of one execution
    turn calls, time_ns, warm_up   -> the samples in nanoseconds, as bytes of an array of int64
    close                          -> None
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pickle
import sys
from array import array
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

__rcg_user__ = True  # see rcg.frames

ACTORS = 4


def load(name: str) -> ModuleType:
    """Return a module from the folder of this file, independent of the imported rcg."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


def whereabouts(_: object) -> tuple[str, int]:
    """Return the file of this process's rcg, and the process id."""
    import rcg  # the one that this process finds

    return str(rcg.__file__), os.getpid()


class Driver:
    """Handles requests. It has one graph at a time."""

    def __init__(self) -> None:
        self._measure, self._graphs = load("measure"), load("graphs")
        self._loop = asyncio.new_event_loop()
        self._actors: list[Any] = []
        self._graph: Any = None
        self._turn: Any = None

    def start(self, address: str) -> tuple[set[str], list[int]]:
        """Join the cluster and start the actors."""
        import ray

        import rcg

        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="error",
            runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
        )
        ray.cloudpickle.register_pickle_by_value(self._graphs)  # the actors cannot import it
        kind = type("Worker", (self._graphs.Worker,), {"whereabouts": whereabouts})
        worker = rcg.remote(kind).options(num_cpus=0, max_restarts=0)
        self._actors = [worker.remote() for _ in range(ACTORS)]
        found = rcg.get([actor.whereabouts.remote() for actor in self._actors])
        return {str(rcg.__file__), *(file for file, _ in found)}, [pid for _, pid in found]

    def open(self, task: dict[str, Any], payload: tuple[object, ...]) -> Any:
        """Compile a row's graph and run it once."""
        import rcg
        import rcg.dag

        methods = [
            getattr(actor, method)
            for actor, method in zip(self._actors, task["methods"], strict=False)
        ]
        nodes = rcg.dag.InputNode, rcg.dag.MultiOutputNode
        dag = self._graphs.build(task["shape"], methods, len(payload), *nodes, task["transport"])
        graph = self._graph = rcg.compile(dag)
        if task["lends"]:
            payload = self._graphs.lent(graph, payload)
        execute, execute_async, get = graph.execute, graph.execute_async, rcg.get

        async def call_async() -> Any:
            return await (await execute_async(*payload))

        if task["is_async"]:
            self._turn = self._measure.async_turn(call_async, self._loop)
            return self._loop.run_until_complete(call_async())
        if task["in_flight"] > 1:
            self._turn = self._measure.pipelined_turn(
                lambda: execute(*payload), get, task["in_flight"]
            )
        else:
            self._turn = self._measure.call_turn(lambda: get(execute(*payload)))
        return get(execute(*payload))

    def turn(self, calls: int, time_ns: int, warm_up: int) -> bytes:
        """Take one turn."""
        with self._measure.without_collector():
            samples: array[int] = self._turn(self._measure.Pace(calls, time_ns, warm_up))
        return samples.tobytes()

    def close(self) -> None:
        """Tear the graph down. The actors stay."""
        graph, self._graph, self._turn = self._graph, None, None
        if graph is not None:
            graph.teardown()


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until stdin ends."""
    driver = Driver()
    while True:
        try:
            name, *arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = "ok", getattr(driver, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - the bench reports any error
            answer = "error", f"{type(error).__name__}: {error}".splitlines()[0]
        pickle.dump(answer, answers, 5)
        answers.flush()


if __name__ == "__main__":
    mine = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output goes to stderr
    serve(sys.stdin.buffer, mine)
