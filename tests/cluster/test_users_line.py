# SPDX-License-Identifier: Apache-2.0
"""An error about a user's mistake ends at the user's line: no frame of rcg's is below it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rcg
from rcg import weights
from rcg.collective import allreduce
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelClosed
from rcg.experimental.collective import create_collective_group
from rcg.frames import is_ours
from tests.harness.board import until

pytestmark = pytest.mark.usefixtures("ray_session")


@rcg.remote(num_cpus=0)
class Stage:
    def work(self, x):
        return x


class Users:
    """What a program has at hand: an actor, a node, a graph and what belongs to it."""

    def __init__(self) -> None:
        self.actor = Stage.remote()
        with InputNode() as self.input:
            self.node = self.actor.work.bind(self.input)
        self.graph = rcg.compile(self.node)
        self.done = rcg.compile(self.node)
        self.done.teardown()
        self.ref = self.graph.execute(1)
        self.values = rcg.put(1)

    def close(self) -> None:
        self.graph.teardown()
        rcg.kill(self.actor)


MISTAKES: dict[str, Callable[[Users], object]] = {
    # a graph
    "execute: too many": lambda user: user.graph.execute(1, 2),
    "execute: none": lambda user: user.graph.execute(),
    "execute: cannot be sent": lambda user: user.graph.execute(lambda: iter(()).gi_frame, 2),
    "execute: torn down": lambda user: user.done.execute(1),
    "execute_async: too many": lambda user: asyncio.run(user.graph.execute_async(1, 2)),
    "execute_async: torn down": lambda user: asyncio.run(user.done.execute_async(1)),
    "map: no inputs": lambda user: user.graph.map(),
    "map: not iterable": lambda user: user.graph.map(1),
    "map: in_flight": lambda user: user.graph.map([1], in_flight=0),
    "map: torn down": lambda user: list(user.done.map([1])),
    "empty: torn down": lambda user: user.done.empty(1),
    "check_health": lambda user: user.done.check_health(),
    "report: timeout": lambda user: user.graph.report(timeout="soon"),
    "report: keyword": lambda user: user.graph.report(patience=1),
    "profile: max_events": lambda user: user.graph.profile(max_events=0),
    "profile: torn down": lambda user: user.done.profile().start(),
    "visualize: format": lambda user: user.graph.visualize(format="no such format"),
    "visualize: layout": lambda user: user.graph.visualize(layout="no such layout"),
    "teardown: timeout": lambda user: user.graph.teardown(timeout="soon"),
    # references
    "ref.get: timeout": lambda user: user.ref.get(timeout="soon"),
    "get: timeout": lambda user: rcg.get(user.ref, timeout="soon"),
    "get: option": lambda user: rcg.get(user.ref, option=1),
    "get: a list with others": lambda user: rcg.get([user.ref, 1]),
    "put: a reference": lambda user: rcg.put(user.ref),
    "put: transport": lambda user: rcg.put(1, _tensor_transport="no such transport"),
    "wait: one": lambda user: rcg.wait(user.ref),
    "wait: twice": lambda user: rcg.wait([user.ref, user.ref]),
    "cancel": lambda user: rcg.cancel(user.ref),
    # DAGs
    "bind: arguments": lambda user: user.actor.work.bind(user.input, 1),
    "bind: method": lambda user: user.actor.wrok.bind(user.input),
    "outputs": lambda user: MultiOutputNode([]),
    "transport": lambda user: user.node.with_tensor_transport("no such transport"),
    "compile: no node": lambda user: rcg.compile(1),
    "compile: option": lambda user: rcg.compile(user.node, option=1),
    "compile: value": lambda user: rcg.compile(user.node, overlap="yes"),
    "node.compile: option": lambda user: user.node.compile(option=1),
    "node.experimental_compile": lambda user: user.node.experimental_compile(overlap="yes"),
    "plan: no node": lambda user: rcg.plan(1),
    "collective: no nodes": lambda user: allreduce.bind([]),
    "group: no actors": lambda user: create_collective_group([], "gloo"),
    # arrays, transports and weights
    "register_tensor_transport": lambda user: rcg.register_tensor_transport(1, [], object),
    "publish: name": lambda user: weights.publish("", {}),
    "publish: model": lambda user: weights.publish("policy", 1),
    "subscribe: name": lambda user: weights.subscribe("", {}),
    "subscribe: model": lambda user: weights.subscribe("policy", 1),
    "weights.plan": lambda user: weights.plan("nobody publishes this"),
}


@pytest.fixture(scope="module")
def user(ray_session: None) -> Iterator[Users]:
    made = Users()
    yield made
    made.close()


def frames_of_ours(error: BaseException) -> list[str]:
    trace, found = error.__traceback__, []
    while trace is not None:
        if is_ours(trace.tb_frame):
            found.append(f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}")
        trace = trace.tb_next
    return found


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_at_the_users_line(user: Users, mistake: str) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        MISTAKES[mistake](user)
    assert frames_of_ours(raised.value) == [], raised.value


def test_so_does_what_a_handle_raises(user: Users) -> None:
    """A handle is for other processes; an actor has one."""

    @rcg.remote(num_cpus=0)
    class Other:
        def mistakes(self, graphs: list[Any]) -> list[tuple[str, list[str]]]:
            (graph,) = graphs
            found = []
            for attempt in (
                lambda: graph.execute(1, 2),
                lambda: graph.map(),
                lambda: asyncio.run(graph.execute_async(1, 2)),
                lambda: graph.report(1),
                lambda: graph.execute(1).get(timeout="soon"),
            ):
                try:
                    attempt()
                except Exception as error:  # noqa: BLE001
                    found.append((str(error), frames_of_ours(error)))
            return found

    other = Other.remote()
    found = rcg.get(other.mistakes.remote([user.graph]))
    assert [frames for _, frames in found] == [[]] * 5, found
    rcg.kill(other)


def test_so_does_the_death_of_an_actor(ray_session: None) -> None:
    actor = Stage.remote()
    with InputNode() as inp:
        dag = actor.work.bind(inp)
    with rcg.compile(dag) as graph:
        rcg.kill(actor)
        until(graph.has_ended)
        for use in (
            lambda: graph.execute(1),
            lambda: next(graph.map([1])),
            lambda: graph.empty(1),
            graph.check_health,
            lambda: rcg.compile(dag),
        ):
            with pytest.raises(ActorDiedError, match=r"a0 \(Stage\)") as raised:
                use()
            assert frames_of_ours(raised.value) == []
    with pytest.raises(ChannelClosed) as closed:
        graph.execute(1)
    assert frames_of_ours(closed.value) == []
