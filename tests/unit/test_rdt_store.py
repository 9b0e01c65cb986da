# SPDX-License-Identifier: Apache-2.0
"""The store of a process: what it keeps, for which processes, and when it frees that."""

from __future__ import annotations

import socket
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rcg import cluster
from rcg.errors import ActorDiedError, Transfer
from rcg.rdt import process
from rcg.rdt import store as stores
from rcg.rdt.envelope import Holder, Parts
from rcg.rdt.groups import MemberGroups
from rcg.rdt.keeper import Keeper
from rcg.rdt.places import places_of
from rcg.rdt.pull import Connections
from rcg.rdt.service import Service
from rcg.rdt.store import Entry, Store, memory_of
from rcg.serialization.payloads import Skeleton, Table
from rcg.wire import sockets
from rcg.wire.messages import READ_BY_KERNEL, KeepTensors, PullTensors, TensorsGone
from tests.harness.peers import GUARD_S, ctrl_c_anywhere, descriptors, until

torch = pytest.importorskip("torch")


def entry(key: str, tensor: Any = None) -> Entry:
    payload = torch.zeros(8, dtype=torch.uint8) if tensor is None else tensor.view(torch.uint8)
    table = Table((0,), (payload.numel(),), ("cpu",))
    contents = Parts(Skeleton(b"", []), table, [])
    return Entry(key, tensor, contents, [payload], "gloo", "The value of make")


@pytest.fixture
def store() -> Store:
    return Store("tensors-1")


def test_ctrl_c_while_the_keeper_is_started_leaves_one_thread(store: Store) -> None:
    keeper = Keeper(store, store.key, Connections(store.key, MemberGroups("", print), deque()))
    before = len(keepers())
    for _ in ctrl_c_anywhere(keeper.look, "rcg.rdt.keeper.Keeper.look"):
        pass
    until(lambda: len(keepers()) == before + 1)


class StoppedHolder:
    """A process that does not read its messages at first; it also sends the news."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def to(self, holder: Holder) -> StoppedHolder:
        return self

    def has(self, holder: Holder) -> bool:
        return True

    def take_ended(self) -> set[str]:
        return set()

    def keep(self, keys: Sequence[str]) -> None:
        self._note("keep", keys)

    def free(self, keys: Sequence[str]) -> None:
        self._note("free", keys)

    def _note(self, word: str, keys: Sequence[str]) -> None:
        call = f"{word} {' '.join(keys)}"
        self.calls.append(call)
        if self.calls.count(call) == 1:
            raise BlockingIOError


def keeping(store: Store, holder: StoppedHolder) -> Keeper:
    """A keeper that looks after one reference, to x of that holder."""
    keeper = Keeper(store, store.key, holder)
    ref = SimpleNamespace(binary=lambda: b"ref")
    keeper.keep(ref, "x", Holder("address", "tensors-2", "", "A", "", ""))
    return keeper


def test_a_holder_that_does_not_read_is_sent_its_news_again(store: Store, monkeypatch) -> None:
    ray = SimpleNamespace(
        session=lambda: "first",
        ready_of=lambda refs: [each for each in refs if holder.calls.count("keep x") == 2],
        which_exist=lambda ids: [False] * len(ids),
    )
    monkeypatch.setattr("rcg.rdt.keeper.cluster", ray)
    holder = StoppedHolder()
    keeper = keeping(store, holder)
    until(lambda: holder.calls.count("free x") == 2)
    assert not keeper.entries()
    assert sorted(holder.calls) == ["free x", "free x", "keep x", "keep x"]


class Gone(StoppedHolder):
    """A process that is gone; whoever gets its error keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def keep(self, keys: Sequence[str]) -> None:
        try:
            raise ActorDiedError("it has ended")
        except ActorDiedError as error:
            self.errors.append(error)
            raise


def test_an_error_of_a_holder_keeps_no_reference_of_rays(store: Store, monkeypatch) -> None:
    class Ref:
        def binary(self) -> bytes:
            return b"ref"

    ray = SimpleNamespace(
        session=lambda: "first", ready_of=list, which_exist=lambda ids: [True] * len(ids)
    )
    monkeypatch.setattr("rcg.rdt.keeper.cluster", ray)
    holder = Gone()
    keeper = Keeper(store, store.key, holder)
    ref = Ref()
    seen = weakref.ref(ref)
    keeper.keep(ref, "x", Holder("address", "tensors-2", "", "A", "", ""))
    del ref
    until(lambda: holder.errors and seen() is None)


@pytest.mark.parametrize("leaves", [False, True], ids=["it has ended", "it is being left"])
def test_a_session_that_ends_is_asked_nothing_and_its_references_are_forgotten(
    store: Store, monkeypatch: Any, leaves: bool
) -> None:
    sessions, asked = ["first"], []  # by which keepers: those of other tests go on

    def ready_of(refs: list[Any]) -> list[Any]:
        asked.append(threading.current_thread())
        return refs

    ray = SimpleNamespace(
        session=lambda: sessions[0],
        is_connected=lambda: bool(sessions[0]),
        ready_of=ready_of,
        which_exist=lambda ids: [True] * len(ids),
    )
    monkeypatch.setattr("rcg.rdt.keeper.cluster", ray)
    holder = StoppedHolder()
    keeper = keeping(store, holder)
    until(lambda: "keep x" in holder.calls)
    assert len(keeper.entries()) == 1 and "free x" not in holder.calls
    if leaves:
        keeper.stop()  # and what goes meanwhile has it look
    else:
        sessions[0] = ""
    asked.clear()
    keeper.look()
    until(lambda: "free x" in holder.calls and not keeper.entries())
    assert keeper._threads[0] not in asked
    sessions[0] = "second"
    keeper.keep(SimpleNamespace(binary=lambda: b"y"), "y", Holder("", "b", "", "B", "", ""))
    until(lambda: keeper._threads[0] in asked)


def serving(store: Store) -> tuple[threading.Thread, socket.socket]:
    """The thread that answers a process, and the socket of that process."""
    service = Service(store, MemberGroups("tensors-1", cast("Any", None)), deque(), "", "\0none")
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=service._serve, args=(here, "tensors-2"), daemon=True)
    thread.start()
    return thread, there


@pytest.mark.parametrize("end", ["it leaves", "a wrong message", "an error", "a reset"])
def test_what_a_process_keeps_outlives_all_but_the_process(
    store: Store, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("nobody thought of that")

    thread, there = serving(store)
    store.add(entry("a"))
    sockets.send(there, KeepTensors(keys=("a",)))
    until(lambda: "a" in store._kept_by)
    if end == "a wrong message":
        there.send(b"{}")
    elif end == "an error":
        monkeypatch.setattr(store, "keep", broken)
        sockets.send(there, KeepTensors(keys=("b",)))
    if end != "a reset":
        assert there.recv(1 << 16)
    if end in ("a reset", "it leaves"):  # what was not read resets it
        there.close()
    thread.join(GUARD_S)
    assert not thread.is_alive() and not store._kept_by
    assert bool(store.entries()) == (end != "it leaves")
    there.close()


def test_a_tensor_that_is_freed_while_it_is_looked_at_is_refused_by_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def freeing(payloads: Sequence[Any]) -> Any:
        tensor.untyped_storage().resize_(0)
        return places_of(payloads)

    monkeypatch.setattr("rcg.rdt.service.places_of", freeing)
    tensor = torch.zeros(8)
    store.add(entry("a", tensor))
    _, there = serving(store)
    assert there.recv(1 << 16)
    for number in (1, 2):  # the connection goes on
        pull = PullTensors(number=number, key="a", group="", reads=READ_BY_KERNEL)
        sockets.send(there, pull)
        with sockets.receive(there) as received:
            assert isinstance(received.message, TensorsGone)
            assert "The value of make: value has lost its memory" in received.message.text
    there.close()


def test_ctrl_c_in_the_first_use_of_tensors_leaves_no_service_that_nobody_has(monkeypatch) -> None:
    monkeypatch.setattr(cluster, "node_id", lambda: "node")
    monkeypatch.setattr(process, "_here", [])
    before = descriptors()
    names = "rcg.rdt.process", "rcg.rdt.service.Service", "rcg.runtime.control.endpoint.serve"
    for _ in ctrl_c_anywhere(process.here, *names):
        for found in process._here:
            found.service.close()
        process._here.clear()
        until(lambda: descriptors() <= before)


def keepers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "rcg-keeper"]


def test_what_a_process_kept_goes_with_it(store: Store) -> None:
    one, other = object(), object()
    store.keep(["a", "late"], one)
    store.keep(["b"], other)
    for key in ("a", "b", "late"):
        store.add(entry(key))
    store.keeper_ended(one, "process 7")
    assert [each.key for each in store.entries()] == ["b"]
    store.free(["b", "unknown"])
    facts = store.facts()
    assert (facts.held, facts.held_bytes, facts.freed, facts.unkept) == (0, 0, 3, 0)
    assert store.why_gone("late").endswith("freed when process 7, which had asked for it, ended")
    assert store.why_gone("b").endswith("was freed, or the actor that made it has restarted")


def test_an_envelope_names_the_node_of_the_present_session(monkeypatch) -> None:
    ray = SimpleNamespace(is_connected=lambda: True, node_id=lambda: "second")
    monkeypatch.setattr(process, "cluster", ray)
    driver = Holder("address", "tensors-1", "", "process 7", "", "first")
    ours: Any = SimpleNamespace(holder=driver)
    assert process.Here.holder_now(ours) == driver._replace(node="second")
    ours.holder = driver._replace(actor="a")  # an actor has one session
    assert process.Here.holder_now(ours) is ours.holder


def test_what_an_unreachable_process_kept_waits_for_it(store: Store, monkeypatch) -> None:
    cut, again = object(), object()
    store.keep(["a", "b", "late"], cut)
    for key in ("a", "b"):
        store.add(entry(key))
    made_s = time.monotonic()
    monkeypatch.setattr("rcg.rdt.store.time", SimpleNamespace(monotonic=lambda: now_s))
    now_s = made_s + 100
    store.keeper_cut(cut)
    now_s = made_s + 200
    store.free_unkept()
    assert [each.key for each in store.entries()] == ["a", "b"]
    store.keep(["a"], again)
    now_s = made_s + 300
    store.free_unkept()
    assert [each.key for each in store.entries()] == ["a"]


def test_a_call_that_is_tried_again_replaces_its_value(store: Store) -> None:
    store.keep(["a"], self := object())
    store.add(entry("a"))
    second = entry("a")
    store.add(second)
    assert store.entries() == [second]
    store.keeper_ended(self, "process 7")
    assert store.find("a") is None


def test_what_nobody_keeps_goes_after_a_while_and_is_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep(["kept"], object())
    for key in ("kept", "lost"):
        store.add(entry(key))
    store.free_unkept()
    assert store.facts().held == 2
    monkeypatch.setattr(stores, "_UNKEPT_S", -1.0)
    store.free_unkept()
    assert [each.key for each in store.entries()] == ["kept"]
    assert store.facts().unkept == 1


def test_waiting_is_for_the_memory_of_a_tensor(store: Store) -> None:
    base = torch.zeros(100)
    store.add(entry("part", base[10:20]))
    store.add(entry("other", torch.zeros(5)))
    where = base.untyped_storage().data_ptr()
    assert [each.key for each in store.wait_freed(where, 0.01, lambda _: None)] == ["part"]
    awaited: list[list[str]] = []

    def free(found: list[Any]) -> None:
        awaited.append([each.key for each in found])
        store.free(["part"])

    assert store.wait_freed(where, 30, free) == []
    assert awaited == [["part"]]


def test_waiting_for_a_freed_tensor_ignores_other_freed_tensors(store: Store) -> None:
    kept, other = torch.zeros(8), torch.zeros(8)
    store.add(entry("a", kept))
    for each in (kept, other):
        each.untyped_storage().resize_(0)
    assert store.wait_freed(memory_of(other), 0, list.clear) == []
    assert [each.key for each in store.wait_freed(memory_of(kept), 0, list.clear)] == ["a"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_storage_that_was_freed_and_taken_again_is_refused(elsewhere: bool) -> None:
    tensor = torch.zeros(1 << 16)
    held = entry("a", tensor)
    held.check()
    tensor.untyped_storage().resize_(0)
    other = torch.ones(1 << 16) if elsewhere else None  # takes the place of what is freed, mostly
    tensor.untyped_storage().resize_(4 << 16)
    with pytest.raises(Transfer, match="The value of make: the storage of a tensor was resized"):
        held.check()
    assert entry("b", tensor).lacks() == ""
    del other


def freed_in_a_compiled_program(tensor: Any) -> None:
    size = tensor.nbytes
    torch.ops.inductor.resize_storage_bytes_(tensor, 0)
    torch.ops.inductor.resize_storage_bytes_(tensor, 2 * size)


@pytest.mark.parametrize(
    "change",
    [freed_in_a_compiled_program, lambda each: each.resize_(1 << 17), torch.Tensor.share_memory_],
)
def test_a_storage_that_is_moved_without_python_is_refused(change: Any) -> None:
    tensor = torch.zeros(1 << 16)
    held = entry("a", tensor)
    change(tensor)
    with pytest.raises(Transfer, match=r"The value of make: the storage .* since, or moved"):
        held.check()


def test_a_tensor_with_other_memory_is_sent_as_it_was() -> None:
    for change in (lambda each: each.set_(torch.ones(8)), set_data):
        tensor = torch.zeros(8)
        held = entry("a", tensor)
        change(tensor)
        held.check()
        assert not held.payloads[0].any()


def set_data(tensor: Any) -> None:
    tensor.data = torch.ones(8)


def test_a_tensor_that_consists_of_others_is_no_obstacle() -> None:
    sparse = entry("a")
    sparse = replace(sparse, payloads=[torch.eye(3).to_sparse()])
    sparse.check()
    assert not sparse.holds(1) and sparse.lacks() == ""


def test_a_transfer_whose_tensor_is_freed_is_ended_with_the_reason(store: Store) -> None:
    tensor, ended = torch.zeros(8), []
    with store.watching(entry("a", tensor).check, ended.append):
        store.look_at_transfers()
        assert ended == []
        tensor.untyped_storage().resize_(0)
        store.look_at_transfers()
    assert len(ended) == 1 and "value has lost its memory" in ended[0]
    store.look_at_transfers()
    assert len(ended) == 1


def test_the_keeper_looks_at_transfers(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr("rcg.rdt.keeper.cluster", SimpleNamespace(session=lambda: ""))
    tensor, ended = torch.zeros(8), []
    held = entry("a", tensor)
    store.add(held)
    with store.watching(held.check, ended.append):
        Keeper(store, store.key, StoppedHolder()).look()
        tensor.untyped_storage().resize_(0)
        until(lambda: ended)
    store.free(["a"])


def test_a_write_to_a_held_tensor_warns_once(store: Store) -> None:
    base = torch.zeros(100)
    store.add(entry("part", base[10:20]))
    store.add(entry("other", torch.zeros(5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.look_for_writes(test_a_write_to_a_held_tensor_warns_once)
    base += 1
    with pytest.warns(UserWarning, match=r"The value of make .* written to by test_a_write") as got:
        store.look_for_writes(test_a_write_to_a_held_tensor_warns_once)
    first_line = test_a_write_to_a_held_tensor_warns_once.__code__.co_firstlineno
    assert (got[0].filename, got[0].lineno) == (__file__, first_line)
    base += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.look_for_writes(test_a_write_to_a_held_tensor_warns_once)


def test_pulling_a_tensor_that_was_written_to_warns(store: Store) -> None:
    tensor = torch.zeros(5)
    store.add(held := entry("t", tensor))
    tensor[0] = 1
    with pytest.warns(UserWarning, match="processes that get it from now on see what was written"):
        store.note_pulled(held)


def test_what_was_freed_before_it_was_made_is_not_kept(store: Store, monkeypatch: Any) -> None:
    store.keep(["a"], object())
    store.free(["a"])
    store.add(entry("a"))
    assert store.entries() == [] and store.facts().freed == 1
    store.add(entry("a"))  # another one
    assert [each.key for each in store.entries()] == ["a"]
    monkeypatch.setattr(stores, "_MOST_FREED_EARLY", 2)
    store.free(["b", "c", "d"])
    store.add(entry("b"))
    store.add(entry("d"))
    assert [each.key for each in store.entries()] == ["a", "b"]
