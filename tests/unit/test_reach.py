# SPDX-License-Identifier: Apache-2.0
"""Finding the process that holds tensors on other nodes: what nodes say, and what is forgotten."""

from __future__ import annotations

import contextlib
import errno
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rcg.errors import ActorDiedError, OutOfThreads, PlacementError
from rcg.rdt import reach
from rcg.rdt.envelope import Holder
from rcg.wire.messages import UseTensors

FAR = Holder("\0far", "tensors-far", "secret", "Actor(far)", "far", "n1")
BY_HANDLE = FAR._replace(node="")
OPENING = UseTensors(graph="tensors-far", secret="secret", key="", pid=1)


class Cluster:
    """Nodes, of which each says where a process listens, that it is not there, or an error."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.name = "first"
        self.asked: list[str] = []

    is_connected = staticmethod(lambda: True)
    node_id = staticmethod(lambda: "n0")
    is_node_gone = staticmethod(lambda error: isinstance(error, LookupError))

    def other_nodes(self) -> list[str]:
        return [*self.answers]

    def session(self) -> str:
        return self.name

    def run_on_node(self, node: str, _: Callable[..., Any], holders: list[Any]) -> str:
        assert holders
        self.asked.append(node)
        return node

    def wait(self, tasks: list[str], *, timeout_s: float | None) -> tuple[list[str], list[str]]:
        ready = [each for each in tasks if self.answers[each] is not None]
        return ready[:1], [each for each in tasks if each not in ready[:1]]

    def get(self, task: str) -> list[Any]:
        answer = self.answers[task]
        if isinstance(answer, LookupError):
            raise answer
        return [answer]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    def use(**answers: Any) -> Cluster:
        made = Cluster(**answers)
        monkeypatch.setattr(reach, "cluster", made)
        for known in (reach._nodes, reach._places, reach._asked):
            known.clear()
        return made

    return use


def joins(monkeypatch: pytest.MonkeyPatch, *results: Any) -> list[str]:
    """Have the next connections end so; returns where they went."""
    went: list[str] = []

    def join(address: str, *_: object) -> Any:
        went.append(address)
        result = results[len(went) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(reach, "join", join)
    return went


def test_the_node_of_an_envelope_is_asked_and_all_others_for_a_handle(ray: Any) -> None:
    nodes = ray(n1="tcp://1", n2="")
    assert reach.place_of(FAR) == "tcp://1"
    assert nodes.asked == ["n1"]
    assert FAR.key in reach._places  # where it is connected to the next time
    nodes = ray(n1="", n2="tcp://2")
    assert reach.place_of(BY_HANDLE) == "tcp://2"
    assert nodes.asked == ["n1", "n2"]
    nodes = ray(n1="", n2="tcp://2")
    with pytest.raises(ActorDiedError, match="has ended"):
        reach.place_of(FAR)  # its tensors were there


def test_an_actor_that_runs_again_on_another_node_is_found_by_its_handle(ray: Any) -> None:
    nodes = ray(n1=LookupError(), n2="tcp://2")
    reach.note_node(FAR)
    assert reach.place_of(BY_HANDLE) == "tcp://2"
    assert nodes.asked == ["n1", "n2"]


@pytest.mark.parametrize("first", [RuntimeError("no environment"), LookupError(), ""])
def test_what_is_wrong_with_one_node_hides_no_other(ray: Any, first: Any) -> None:
    ray(n1=first, n2="tcp://2")
    assert reach.place_of(BY_HANDLE) == "tcp://2"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (TimeoutError("stopped"), TimeoutError),
        (OutOfThreads("none"), OutOfThreads),
        (PlacementError("no port is free"), PlacementError),
        (ValueError("other"), PlacementError),
        (None, TimeoutError),
    ],
)
def test_the_error_of_a_process_that_does_not_listen(ray: Any, answer: Any, kind: Any) -> None:
    ray(n1=answer)
    with pytest.raises(kind):
        reach.place_of(FAR, 0.0)


@pytest.mark.parametrize("kind", [TimeoutError, OutOfThreads])
def test_an_error_keeps_nothing_of_those_who_asked(
    ray: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    nodes = ray(n1="")
    monkeypatch.setattr(nodes, "get", lambda _: [kind("none")])
    kept: list[Any] = []

    def ask() -> None:
        value = Cluster()  # such as a reference of Ray's
        kept.append(weakref.ref(value))
        for place in (reach.place_of, reach.place_soon_of):
            with contextlib.suppress(kind):
                place(FAR)

    gc.disable()
    try:
        ask()
        assert kept[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(errno.ETIMEDOUT, "no answer"),
        OSError(errno.EHOSTUNREACH, "no way"),
        ConnectionRefusedError(),
        ValueError("something else listens there"),
    ],
)
def test_a_place_where_nothing_answers_is_forgotten(ray: Any, monkeypatch: Any, error: Any) -> None:
    ray(n1="tcp://new")
    reach._places[FAR.key] = "tcp://old"
    joined = SimpleNamespace()
    went = joins(monkeypatch, error, joined)
    if isinstance(error, TimeoutError):  # the time is up; the next call looks again
        with pytest.raises(TimeoutError):
            reach.reach(FAR, OPENING, 1.0)
        went = joins(monkeypatch, joined)
    assert reach.reach(FAR, OPENING, 1.0) is joined
    assert went[-1] == "tcp://new"


def test_the_keeper_asks_one_node_and_goes_on_waiting_the_next_time(ray: Any) -> None:
    nodes = ray(n1=None)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            reach.place_soon_of(FAR)
    assert nodes.asked == ["n1"]
    nodes.name = "second"  # whose tasks are others
    with pytest.raises(TimeoutError):
        reach.place_soon_of(FAR)
    assert nodes.asked == ["n1", "n1"]
    nodes.answers["n1"] = "tcp://1"
    assert reach.place_soon_of(FAR) == "tcp://1"
    assert not reach._asked
    with pytest.raises(ActorDiedError):
        reach.place_soon_of(BY_HANDLE._replace(key="other"))
    assert nodes.asked == ["n1", "n1"]


def test_several_are_looked_for_by_one_task_on_each_node(ray: Any) -> None:
    nodes = ray(n1="tcp://1", n2="", n3=RuntimeError("no environment"))
    assert reach.find_all([BY_HANDLE, FAR], 1.0) == [BY_HANDLE]
    assert nodes.asked == ["n1", "n2", "n3"]
