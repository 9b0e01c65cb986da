# SPDX-License-Identifier: Apache-2.0
"""The communicator groups of a process: opened by the loop, aborted by another thread, closed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rcg.channels.base import TransferFailed
from rcg.comm import Membership
from rcg.errors import CommError, GroupAborted
from rcg.ir.channels import Group
from rcg.runtime.actor import steps
from rcg.runtime.actor.groups import GroupStart, OpenGroups
from rcg.testing import LocalCommunicator, LocalStore
from tests.harness.board import until
from tests.harness.driven import Driven, run_once

Drive = Callable[..., Driven]

torch = pytest.importorskip("torch")

GUARD_S = 20
THREADS = ThreadPoolExecutor(8)
LABELS = ("a0 (Left)", "a1 (Right)")


class Opener:
    """Opens local communicators for fewer devices than their class serves; remembers them."""

    devices = frozenset({"cpu"})
    is_queued = False

    def __init__(self) -> None:
        self.opened: list[Any] = []

    def open(self, membership: Membership) -> Any:
        self.opened.append(LocalCommunicator.open(membership))
        return self.opened[-1]


def groups_of(process: str, opener: Any, stores: dict[str, LocalStore]) -> OpenGroups:
    starts = [
        GroupStart(Group(name, "local", ("a0", "a1")), LABELS, opener) for name in ("g0", "g1")
    ]
    return OpenGroups(process, starts, stores.__getitem__)


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    future = THREADS.submit(call)
    return lambda: future.result(GUARD_S)


class KeptOpen(LocalStore):
    """A store that one rank may close while the other still uses it."""

    def close(self) -> None:
        pass


def both(opener: Any) -> list[OpenGroups]:
    stores = {name: KeptOpen() for name in ("g0", "g1")}
    return [groups_of(process, opener, stores) for process in ("a0", "a1")]


def test_all_groups_are_opened_in_order_and_closed() -> None:
    opener = Opener()
    groups = both(opener)
    for wait in [in_thread(lambda each=each: each.open(GUARD_S)) for each in groups]:
        wait()
    assert [groups[0].communicator(name).rank for name in ("g0", "g1")] == [0, 0]
    assert groups[1].communicator("g1").group == "g1"
    assert groups[0].members("g0") == ("a0", "a1")
    assert groups[0].labels("g0") == LABELS
    assert groups[0].devices("g0") == {"cpu"} < groups[0].communicator("g0").devices
    for each in groups:
        each.close()
    for communicator in opener.opened:
        with pytest.raises(GroupAborted):
            communicator.barrier()


def test_an_abort_ends_what_is_pending_and_what_comes_later() -> None:
    groups = both(Opener())
    for wait in [in_thread(lambda each=each: each.open(GUARD_S)) for each in groups]:
        wait()
    pending = in_thread(lambda: groups[0].communicator("g1").recv([torch.empty(1)], 1))
    groups[0].abort("a process of the graph is gone")
    with pytest.raises(GroupAborted, match="a process of the graph is gone"):
        pending()
    with pytest.raises(GroupAborted):
        groups[0].communicator("g0").barrier()


def test_an_abort_while_it_waits_for_the_others_ends_the_building() -> None:
    stores = {name: LocalStore() for name in ("g0", "g1")}
    groups = groups_of("a0", Opener(), stores)
    pending = in_thread(lambda: groups.open(None))
    until(lambda: groups._store is not None)
    groups.abort("the graph has ended")
    with pytest.raises(GroupAborted):
        pending()
    assert not groups._open


def test_an_abort_before_is_not_forgotten() -> None:
    groups = groups_of("a0", Opener(), {name: LocalStore() for name in ("g0", "g1")})
    groups.abort("the graph has ended")
    with pytest.raises(GroupAborted, match="the graph has ended"):
        groups.open(None)


@pytest.mark.parametrize("event", ["on_broken", "on_stop", "on_owner_gone"])
def test_a_loop_aborts_its_groups_when_the_graph_ends_or_breaks(driven: Drive, event: str) -> None:
    loop = driven().loop(SimpleNamespace(make=lambda x: x))
    reasons: list[str] = []
    loop._groups = SimpleNamespace(abort=reasons.append)
    getattr(loop, event)()
    assert len(reasons) == 1


@pytest.mark.parametrize("end", ["read", "write"])
def test_a_failed_transfer_ends_the_loop_and_is_no_failure_of_a_value(
    driven: Drive, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    graph = driven()

    def failing(spec: Any, op: int, endpoint: Any) -> Any:
        def fail(*_: Any) -> Any:
            raise TransferFailed(CommError("the cable is cut"))

        return SimpleNamespace(seq=1, read=fail, write=fail)

    name = "open_reader" if end == "read" else "open_writer"
    monkeypatch.setattr(steps, name, failing)
    loop = graph.loop(SimpleNamespace(make=lambda x: x))
    graph.engine.execute(1)
    with pytest.raises(TransferFailed, match="the cable is cut"):
        run_once(loop)


def test_an_error_of_a_communicator_waits_for_the_cause(driven: Drive) -> None:
    graph = driven()
    loop = graph.loop(SimpleNamespace(make=lambda x: x))
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(loop._is_end(TransferFailed(CommError("peer closed"))))
    )
    thread.start()
    graph.node.end_broken("a0")
    thread.join(GUARD_S)
    assert found == [True]


def recorded(loop: Any, **flags: bool) -> list[str]:
    """What a loop does with its groups and sends to the driver, in order."""
    done: list[str] = []

    def noting(*names: str) -> Any:
        calls = {name: lambda *_, name=name: done.append(name) for name in names}
        return SimpleNamespace(**calls, **flags)

    loop._groups = noting("open", "abort", "close")
    loop._control = noting("report_prepared", "done", "finish")
    return done


def test_a_loop_that_has_ended_waits_for_the_others_before_it_closes_its_groups(
    driven: Drive,
) -> None:
    """What it has sent, and they have not received yet, may be lost otherwise."""
    graph = driven()
    loop = graph.loop(SimpleNamespace(make=lambda x: x))
    done = recorded(loop, are_open=True)
    graph.node.end_closed()
    loop.run()
    assert done == ["open", "report_prepared", "done", "close", "finish"]


def test_a_loop_that_fails_waits_for_nobody(driven: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(
        "rcg.runtime.actor.loop._log.exception",
        lambda *_: logged.append(traceback.format_exc()),
        raising=False,
    )
    graph = driven()
    loop = graph.loop(SimpleNamespace(make=lambda x: x))
    done = recorded(loop, are_open=True)

    def fail() -> None:
        raise LookupError("a defect")

    loop._steps = [fail]
    loop.run()
    assert done == ["open", "report_prepared", "finish", "close", "finish"]
    assert "a defect" in logged[0]
