# SPDX-License-Identifier: Apache-2.0
"""One round of a soak: graphs over a pool of actors, callers, and perhaps a death.

Everything that is decided is drawn from the seed and the round's number, so a round can be run
again by itself; what threads and processes do between each other cannot.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

import rcg
from rcg.errors import ActorDiedError, CapacityExceededError
from tests.soak.callers import (
    AsyncCaller,
    Held,
    OrdinaryCaller,
    Scene,
    SoakFailure,
    SyncCaller,
)
from tests.soak.performer import Performer
from tests.soak.recipe import draw_recipe

__all__ = ["GUARD_S", "Pool", "Round", "Task", "watch"]

# Nothing has moved for so long: that is a hang.
GUARD_S = 180
MB = 1 << 20


class Pool:
    """The actors, and their processes. A dead one is replaced by another.

    If the cluster has several nodes, which must be those of ``cluster_of``, the actors are dealt
    out to them.
    """

    def __init__(self, size: int) -> None:
        self.nodes = sum(node["Alive"] for node in ray.nodes())
        self.actors = [self._make(index) for index in range(size)]
        self.pids: list[int] = rcg.get([actor.pid.remote() for actor in self.actors])

    def _make(self, index: int) -> Any:
        # One of them is threaded.
        options: dict[str, Any] = {"max_concurrency": 4 if index == 1 else 1}
        if self.nodes > 1:
            options["resources"] = {f"node{self.node_of(index)}": 0.001}
        return Performer.options(**options).remote()

    def node_of(self, index: int) -> int:
        """Return the node of an actor; 0 is the driver's."""
        return index % self.nodes

    def key(self, index: int) -> str:
        """Return the id of an actor in Ray."""
        return rcg.unwrap(self.actors[index])._actor_id.hex()

    def replace(self, index: int) -> None:
        self.actors[index] = self._make(index)
        self.pids[index] = rcg.get(self.actors[index].pid.remote())

    def kill(self, index: int, how: str) -> None:
        """Kill one and return at once."""
        if how == "signal":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[index], signal.SIGKILL)
        else:
            rcg.kill(self.actors[index])


class Task:
    """Something that runs on a thread, whose error is raised where it is waited for."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._call = call
        self.thread = threading.Thread(target=self._run, name=f"soak-{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.error = error
        finally:
            del self._call


def watch(
    what: str,
    tasks: Sequence[Task],
    progress: Callable[[], int] = int,
    report: Callable[[], str] = str,
    cancel: Callable[[], object] = bool,
) -> None:
    """Wait for tasks; raise the first error, or the stacks of all threads if nothing moves.

    Args:
        what: Names it in the error.
        tasks: What to wait for.
        progress: A number that changes while something moves.
        report: What else to say about a hang.
        cancel: Called once when one has failed; the others are waited for nevertheless.
    """
    seen, since, has_failed = progress(), time.monotonic(), False
    while alive := [task for task in tasks if task.thread.is_alive()]:
        alive[0].thread.join(0.5)
        if not has_failed and any(task.error for task in tasks):
            has_failed = True
            cancel()
        if (now := progress()) != seen or len(alive) > sum(t.thread.is_alive() for t in tasks):
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > GUARD_S:
            stuck = ", ".join(task.name for task in alive)
            errors = [repr(task.error) for task in tasks if task.error]
            raise SoakFailure(
                f"{what} hangs: {stuck}; failed before: {errors}\n{report()}\n{_all_stacks()}"
            )
    for task in tasks:
        if task.error is not None:
            raise task.error


def _all_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"--- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


@dataclass
class _Blow:
    """How and when an actor dies in a round.

    Attributes:
        how: signal, ray, or exit (in a method).
        when: compile, running, idle or teardown.
        victim: Index of the actor.
        after: For "running": after so many submissions.
    """

    how: str
    when: str
    victim: int
    after: int


class Round:
    """One round, drawn and then run.

    Args:
        seed: Of the soak.
        number: Of the round.
        pool: The actors.
        held: Where results are kept over rounds.
        executions: About how many to submit.
    """

    def __init__(
        self,
        seed: int,
        number: int,
        pool: Pool,
        held: Held,
        executions: int,
        *,
        is_tight: bool = False,
    ) -> None:
        self._name = f"{seed}/{number}"
        self._pool, self._held = pool, held
        self._rng = rng = random.Random(self._name)
        self.accounts: Counter[str] = Counter()
        self._submissions = 0
        self._lock = threading.Lock()
        self._is_cancelled = threading.Event()
        self._moments = {when: threading.Event() for when in ("compile", "idle", "teardown")}
        self._moments["running"] = threading.Event()

        self._count = rng.randint(executions // 2, 3 * executions // 2)
        self._largest = rng.choice([100, 10_000, 10_000, 200_000, 4 * MB])
        self._tensors = rng.random() < 0.15
        self._is_tight = rng.random() < 0.25 or is_tight
        if self._is_tight:
            self._largest = min(self._largest, MB // 2)
        everybody = range(len(pool.actors))
        recipes = [
            draw_recipe(rng, rng.sample(everybody, rng.randint(1, len(everybody))))
            for _ in range(rng.choice([1, 1, 2, 3]))
        ]
        self._blow: _Blow | None = None
        self._teardown_after: int | None = None
        fate = rng.random()
        if fate < 0.5:
            victim = rng.choice(sorted(recipes[0].actors))
            when = rng.choices(["compile", "running", "idle", "teardown"], [1, 7, 1, 1])[0]
            how = rng.choice(["signal", "ray", "exit"] if when == "running" else ["signal", "ray"])
            self._blow = _Blow(how, when, victim, rng.randint(1, max(1, self._count * 2 // 3)))
            if how == "exit":
                recipes[0] = recipes[0].with_exit(victim, self._blow.after, self._name)
                recipes = recipes[:1]  # so that its count is that of the submissions
        elif fate < 0.6:
            self._teardown_after = rng.randint(1, max(1, self._count // 2))
        self._scenes = [
            Scene(i, recipe, is_tight=self._is_tight) for i, recipe in enumerate(recipes)
        ]
        self._options = [self._draw_options(len(recipes)) for _ in recipes]
        self._ending = rng.choice(["teardown", "with", "several threads", "collected"])

    def _draw_options(self, graphs: int) -> dict[str, Any]:
        rng = self._rng
        options: dict[str, Any] = {}
        if self._is_tight:
            options["memory_cap_bytes"] = rng.choice([1, 2, 8]) * MB
        if rng.random() < 0.2:
            options["_max_inflight_executions"] = rng.choice([1, 2, 5, 40])
        elif rng.random() < 0.1:
            # A `get` raises at such a limit; these are never reached.
            options["max_buffered_results"] = rng.choice([10_000, 50_000])
        if rng.random() < 0.2:
            options["wait"] = rng.choice(["futex", "yield"])
        if rng.random() < 0.1:
            options["concurrent"] = True
        if rng.random() < 0.1:
            options["record"] = False
        if graphs == 1 and rng.random() < 0.1:
            options["thread"] = "main"
        return options

    def __str__(self) -> str:
        graphs = "; ".join(
            f"{len(scene.recipe.calls)} calls on {sorted(scene.recipe.actors)} {options}"
            for scene, options in zip(self._scenes, self._options, strict=True)
        )
        return (
            f"{self._count} executions up to {self._largest:,} bytes, {self._blow or 'no death'}, "
            f"teardown after {self._teardown_after}, end: {self._ending}, graphs: {graphs}"
        )

    # --- running

    def run(self) -> None:
        """Run it to its end; what it submitted is accounted for in ``accounts``."""
        reaper = self._start_reaper()
        if self._wait("compile", [Task("compile", self._compile)]):
            self._use()
            self._moments["idle"].set()
            if self._blow and self._blow.when == "idle":
                self._wait("the death", [reaper])
            if self._blow and self._blow.when != "teardown":
                self._moments["running"].set()
                self._wait("noticing the death", [Task("go on", self._go_on)])
            self._moments["teardown"].set()
            self._wait("teardown", [Task("teardown", self._end)])
        for moment in self._moments.values():
            moment.set()
        self._wait("the death", [reaper])
        self._repair()

    def _wait(self, what: str, tasks: list[Task]) -> bool:
        """Wait for tasks under guard; False where a death has ended the round instead."""
        try:
            watch(what, tasks, lambda: self._submissions, self._report, self._is_cancelled.set)
        except ActorDiedError:
            if what != "compile" or not self._may_die(0):
                raise
            self.accounts["died at compile"] += 1
            return False
        return True

    def _report(self) -> str:
        reports = [str(scene.graph.report()) for scene in self._scenes if scene.graph is not None]
        return "\n".join([str(self), *reports])

    def _may_die(self, number: int) -> bool:
        return self._scenes[number].may_die

    def _start_reaper(self) -> Task:
        blow = self._blow

        def strike() -> None:
            if blow is None:
                return
            if blow.how != "exit":
                self._moments[blow.when].wait()
                self._expect_death()
                self._pool.kill(blow.victim, blow.how)

        if blow is not None:
            self.accounts["kills"] += 1
            if blow.how == "exit" or blow.when == "compile":
                self._expect_death()
        return Task("reaper", strike)

    def _expect_death(self) -> None:
        assert self._blow is not None
        for scene in self._scenes:
            scene.may_die |= self._blow.victim in scene.recipe.actors

    def _compile(self) -> None:
        self._moments["compile"].set()
        for scene, options in zip(self._scenes, self._options, strict=True):
            root = scene.recipe.bind(self._pool.actors)
            scene.graph = root.experimental_compile(**options)
            self._count_nodes(scene.graph.plan)

    def _count_nodes(self, plan: Any) -> None:
        """Note whether a graph crosses nodes, and whether what dies is the host of another one."""
        if len(plan.nodes) > 1:
            self.accounts["graphs over nodes"] += 1
            keys = {actor.id: actor.key for actor in plan.actors}
            hosts = {keys[node.processes[0]] for node in plan.nodes[1:]}
            if self._blow and self._pool.key(self._blow.victim) in hosts:
                self.accounts["kills of hosts"] += 1

    def _on_submit(self) -> None:
        with self._lock:
            self._submissions += 1
            now = self._submissions
        if self._blow is not None and now == self._blow.after:
            self._moments["running"].set()
        if now == self._teardown_after:
            for scene in self._scenes:
                scene.may_close = True
            for scene in self._scenes:
                scene.graph.teardown()

    def _use(self) -> None:
        """Have callers use the graphs until all is submitted and accounted for."""
        rng = self._rng
        count = rng.choice([1, 1, 2, 3])
        callers: list[Any] = [
            rng.choice([SyncCaller, SyncCaller, AsyncCaller])(
                random.Random(f"{self._name}/{index}"),
                self._scenes,
                self._count // count,
                self._largest,
                self._tensors,
                self._held,
                self._on_submit,
                self._is_cancelled,
            )
            for index in range(count)
        ]
        if all(options.get("thread") != "main" for options in self._options):
            ordinary = OrdinaryCaller(
                random.Random(f"{self._name}/ordinary"),
                list(self._pool.actors),
                rng.choice([0, 5, 50]),
                lambda index: self._blow is not None and self._blow.victim == index,
                self._is_cancelled,
            )
            callers.append(ordinary)
        tasks = [Task(type(caller).__name__, caller.run) for caller in callers]
        self._wait("using the graphs", tasks)
        for caller in callers:
            self.accounts.update(caller.accounts)

    def _go_on(self) -> None:
        """Execute until the death is noticed, on every graph that has it; it must be."""
        rng = self._rng
        for scene in self._scenes:
            assert self._blow is not None
            if self._blow.victim not in scene.recipe.actors:
                continue
            keys = scene.recipe.keys
            args = [rng.randrange(9) for key in keys if not isinstance(key, str)]
            named = {key: rng.randrange(9) for key in keys if isinstance(key, str)}
            while True:
                try:
                    refs = scene.graph.execute(*args, **named)
                except ActorDiedError:
                    break
                except CapacityExceededError:
                    os.sched_yield()
                else:
                    dropped = len(refs) if scene.recipe.is_multi else 1
                    del refs
                    self.accounts.update(executions=1, submitted=dropped, dropped=dropped)
                    self._submissions += 1

    def _end(self) -> None:
        graphs = [scene.graph for scene in self._scenes]
        self._graph_ids = [graph.get_id() for graph in graphs]
        for scene in self._scenes:
            scene.graph = None
        match self._ending:
            case "teardown":
                for graph in graphs:
                    graph.teardown()
            case "with":
                with contextlib.ExitStack() as stack:
                    for graph in graphs:
                        stack.enter_context(graph)
            case "several threads":
                ends = [Task("teardown", graph.teardown) for graph in graphs * 2]
                watch("teardown", ends)
        del graphs
        if self._ending == "collected":
            gc.collect()

    def _repair(self) -> None:
        """Replace the dead, and wait until the others have left the round's graphs."""
        ids = getattr(self, "_graph_ids", [])
        if not ids:  # it died at compile
            ids = [scene.graph.get_id() for scene in self._scenes if scene.graph is not None]
            for scene in self._scenes:
                if scene.graph is not None:
                    scene.graph.teardown()
        dead = None if self._blow is None else self._blow.victim

        def repair() -> None:
            living = [actor for i, actor in enumerate(self._pool.actors) if i != dead]
            hanging = rcg.get([actor.join_threads.remote(ids) for actor in living])
            if any(hanging):
                raise SoakFailure(f"threads of the round's graphs live on: {hanging}")
            if dead is not None:
                self._pool.replace(dead)

        self._wait("cleaning up", [Task("repair", repair)])
        left = [t for t in threading.enumerate() if t.name.endswith(tuple(i[:6] for i in ids))]
        for thread in left:
            thread.join(GUARD_S)
            if thread.is_alive():
                raise SoakFailure(f"{thread.name} lives on in the driver")
