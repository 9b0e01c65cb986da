# SPDX-License-Identifier: Apache-2.0
"""Stores of groups: the one over the control endpoint and the one in memory, in one suite."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rcg.comm import Store
from rcg.comm.local_store import LocalStore
from rcg.errors import CommError, GroupAborted
from rcg.runtime.control.stores import MAX_VALUE_BYTES, ControlStore
from rcg.wire import messages, sockets
from tests.harness.crews import ThreadMember, is_asleep
from tests.harness.peers import (
    GUARD_S,
    challenge_of,
    ctrl_c_anywhere,
    descriptors,
    enter,
    is_over,
    mutants,
    proven,
    until,
)
from tests.harness.served import Served, as_json, together
from tests.harness.tcp import LOCAL


@pytest.fixture(params=["control", "tcp", "local"])
def stores(request: pytest.FixtureRequest, served: Served) -> Iterator[Callable[[], Store]]:
    """Makes the stores of the ranks of one group; with ``tcp``, all but one on other nodes."""
    shared = LocalStore()
    made: list[Store] = []

    def make() -> Store:
        if request.param == "local":
            made.append(shared)
        elif request.param == "tcp" and made:
            made.append(store_of(served, address=str(served.control.listen_tcp(LOCAL))))
        else:
            made.append(store_of(served))
        return made[-1]

    yield make
    for store in made:
        store.close()


def store_of(served: Served, group: str = "g", address: str = "") -> ControlStore:
    control = served.control
    return ControlStore(address or control.address, control.service_id, control.secret, group)


def waiting(call: Callable[[], Any]) -> Any:
    """Begin a call that waits; returns its future."""
    member = ThreadMember()
    future = member.submit(lambda _: call())
    member.wait_until_pending(future)
    assert not future.done()
    return future


@pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256)), b"x" * MAX_VALUE_BYTES])
def test_all_ranks_see_a_value(stores, value):
    first, second = stores(), stores()
    first.set("key", value)
    first.set("other", b"2")
    assert second.get(["other", "key"]) == [b"2", value]
    assert first.get(["key"], 0.1) == [value]
    assert second.has(["key", "other"]) and second.has([]) and not second.has(["key", "none"])


def test_a_wait_ends_with_the_last_of_its_values(stores):
    first, second = stores(), stores()
    found = waiting(lambda: second.get(["a", "b"]))
    first.set("b", b"2")
    first.set("a", b"1")
    assert found.result(GUARD_S) == [b"1", b"2"]


def test_a_wait_has_a_time_limit_and_the_store_can_be_used_afterwards(stores):
    first, second = stores(), stores()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            second.get(["key"], 0.05)
        with pytest.raises(TimeoutError):
            second.get(["key"], 0)
    first.set("key", b"late")
    assert second.get(["key"], GUARD_S) == [b"late"]
    assert second.add("count", 1) == 1


def test_threads_of_a_rank_share_a_store_while_one_waits(stores):
    first, second = stores(), stores()
    found = [waiting(lambda key=key: second.get([f"{key}"])) for key in range(3)]
    assert second.add("count", 5) == 5
    assert not second.has(["0"])
    second.set("2", b"c")
    assert found[2].result(GUARD_S) == [b"c"]
    first.set("0", b"a")
    assert found[0].result(GUARD_S) == [b"a"]
    assert second.has(["0", "2"]) and not found[1].done()
    first.set("1", b"b")
    assert found[1].result(GUARD_S) == [b"b"]


def test_counters_count_the_additions_of_all_ranks(stores):
    ranks = [stores() for _ in range(3)]
    totals: list[int] = []

    def count(store: Store) -> None:
        totals.extend(store.add("count", 2) for _ in range(50))

    together(*[lambda store=store: count(store) for store in ranks])
    assert sorted(totals) == list(range(2, 302, 2))
    assert ranks[0].add("count", -301) == -1
    assert ranks[0].get(["count"]) == [b"-1"]


def test_close_ends_every_wait_and_refuses_every_use(stores):
    store = stores()
    found = [waiting(lambda: store.get(["never"])) for _ in range(2)]
    store.close()
    store.close()
    for future in found:
        assert isinstance(future.exception(GUARD_S), GroupAborted)
    for use in (
        lambda: store.set("a", b""),
        lambda: store.get(["a"]),
        lambda: store.get(["a"], 0),
        lambda: store.has(["a"]),
        lambda: store.add("a", 1),
    ):
        with pytest.raises(GroupAborted):
            use()


# --- over the control endpoint


def test_groups_have_keys_of_their_own(served):
    first, second = store_of(served, "first"), store_of(served, "second")
    first.set("key", b"1")
    assert not second.has(["key"])
    assert second.add("count", 1) == first.add("count", 1) == 1
    # The name of a group may be that of a member.
    member = served.client("a0")
    third = store_of(served, "a0")
    third.close()
    third.close()
    fourth = store_of(served, "a0")
    assert fourth.add("x", 1) == 1
    assert not served.gone
    member.finish()
    member.close()
    for store in (first, second, fourth):
        store.close()


def test_a_value_that_is_too_large_is_refused(served):
    store = store_of(served)
    with pytest.raises(ValueError, match="at most"):
        store.set("key", bytes(MAX_VALUE_BYTES + 1))
    store.set("key", b"")
    assert store.has(["key"])
    store.close()


@pytest.mark.parametrize("how", ["stop", "close", "a member fails", "a member leaves"])
def test_the_end_of_the_graph_ends_every_store(served, how):
    members = [served.client(name) for name in ("a0", "a1")]
    before = descriptors()
    store, other = store_of(served), store_of(served, "other")
    found = [waiting(lambda each=each: each.get(["never"])) for each in (store, store, other)]
    match how:
        case "stop":
            served.control.stop()
        case "close":
            served.control.close()
        case "a member fails":
            members[0].finish("for the test")
        case "a member leaves":
            members[0].close()
    for future in found:
        error = future.exception(GUARD_S)
        assert isinstance(error, GroupAborted) and error.group in ("g", "other")
    with pytest.raises(GroupAborted):
        store.set("key", b"")
    with pytest.raises(CommError) as late:
        store_of(served, "late")
    assert isinstance(late.value, GroupAborted) or how == "close"  # then nobody listens there
    for each in (store, other):
        each.close()
    until(lambda: descriptors() <= before)
    for member in members:
        member.close()


def test_a_rank_that_is_lost_leaves_the_others(served):
    lost, kept = store_of(served), store_of(served)
    lost_wait = waiting(lambda: lost.get(["key"]))
    kept_wait = waiting(lambda: kept.get(["key"]))
    before = descriptors()
    lost.close()
    assert isinstance(lost_wait.exception(GUARD_S), GroupAborted)
    until(lambda: descriptors() < before)
    another = store_of(served)
    another.set("key", b"v")
    assert kept_wait.result(GUARD_S) == [b"v"]
    kept.close()
    another.close()


def test_a_rank_that_does_not_read_its_answers_is_cut_off_and_delays_nobody(served):
    store = store_of(served)
    store.set("key", b"x" * MAX_VALUE_BYTES)
    with served.stranger() as silent:
        opening = messages.UseStore(graph=served.graph_id, secret=served.control.secret, group="g")
        enter(silent, opening)
        with contextlib.suppress(ConnectionError):
            for number in range(1_000_000):
                sockets.send(silent, messages.GetValue(number=number, key="key"))
            raise AssertionError("it is not cut off")
        assert is_over(silent)
    assert store.get(["key"]) == [b"x" * MAX_VALUE_BYTES]
    store.close()


@pytest.mark.parametrize("reads", [True, False], ids=["it reads", "another thread reads"])
def test_ctrl_c_in_a_store_leaves_no_thread_waiting_and_no_descriptor(served, reads):
    """The threads of a rank share the connection: one reads for all."""
    other = ThreadMember()

    def opened() -> tuple[ControlStore, Any]:
        store = store_of(served)
        future = None if reads else other.submit(lambda _: store.get(["never"]))
        if future is not None:
            other.wait_until_pending(future)
        return store, future

    before = descriptors()
    used = [opened()]
    for _ in ctrl_c_anywhere(lambda: used[0][0].add("count", 1), ControlStore.__module__):
        store, future = used.pop()
        if future is None:
            future = other.submit(lambda _, store=store: store.get(["never"]))
        store.close()
        assert isinstance(future.exception(GUARD_S), GroupAborted)
        del store, future
        until(lambda: descriptors() <= before)
        used.append(opened())
    used[0][0].close()


OPENED = [messages.SetValue, messages.GetValue, messages.HasValues, messages.AddValue]


@pytest.mark.parametrize("kind", [messages.UseStore, *OPENED], ids=lambda kind: kind.__name__)
def test_wrong_messages_end_their_own_connection_and_harm_no_store(served, kind, dice):
    store = store_of(served)
    store.set("key", b"v")
    before = descriptors()
    opening = messages.UseStore(graph=served.graph_id, secret=served.control.secret, group="g")
    good = opening
    if kind is not messages.UseStore:
        fields: dict[str, Any] = {"number": 1, "key": "key", "amount": 1, "value": "", "keys": ()}
        hints = kind.__dataclass_fields__
        good = kind(**{name: fields[name] for name in hints})
    for data in mutants(as_json(good), dice, 60):
        with served.stranger() as stranger:
            if kind is messages.UseStore:
                data = proven(challenge_of(stranger), opening, data.removesuffix(b"\0"))
            else:
                enter(stranger, opening)
            with contextlib.suppress(OSError):
                stranger.send(data)
                stranger.shutdown(socket.SHUT_WR)
            assert is_over(stranger)
    until(lambda: descriptors() <= before)
    assert store.has(["key"])
    store.close()


def test_a_store_needs_the_secret_and_a_live_driver(served):
    control = served.control
    with pytest.raises(GroupAborted):
        ControlStore(control.address, control.service_id, "wrong", "g")
    with pytest.raises(GroupAborted):
        ControlStore(control.address, "another graph", control.secret, "g")
    with pytest.raises(CommError, match="cannot be reached"):
        ControlStore(f"\0rcg-{os.getpid()}-nobody", "id", control.secret, "g")


def test_the_thread_of_the_endpoint_never_waits(served):
    stores = [store_of(served) for _ in range(5)]
    found = [waiting(lambda store=store: store.get(["never"])) for store in stores]
    thread = served.control._endpoint._thread
    until(lambda: is_asleep(os.getpid(), thread.native_id or 0))
    member = served.client("a0")
    member.finish()
    member.close()
    until(lambda: "a0" in served.control.lives.over)
    for store in stores:
        store.close()
    for future in found:
        assert isinstance(future.exception(GUARD_S), GroupAborted)
