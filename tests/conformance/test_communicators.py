# SPDX-License-Identifier: Apache-2.0
"""One suite for every communicator: Gloo among processes, the fakes and an adapter among threads.

``fake`` moves tensors of another device than the CPU (``tests.harness.fake_device``); ``nccl`` and
``cuda_ipc`` are rcg's with fakes of the libraries that they call, on that device.

``tests.harness.crews`` makes the ranks, ``tests.harness.communicators`` holds what they do.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.circles import core_has, core_where

pytest.importorskip("torch")

import torch

from rcg.comm import Communicator
from rcg.comm.gloo import GlooCommunicator
from rcg.comm.local_store import LocalStore
from rcg.comm.rays import RaysCommunicator
from rcg.errors import CommError, GroupAborted
from rcg.testing import LocalCommunicator, OrderedLocalCommunicator
from tests.harness import communicators as does
from tests.harness.communicators import Place
from tests.harness.crews import ProcessMember, ThreadMember
from tests.harness.peers import GUARD_S, until
from tests.harness.served import Served

Member = ProcessMember | ThreadMember
NAMES = itertools.count()


@dataclass(frozen=True)
class Kind:
    """An implementation: its name in ``OPENERS``, and where its ranks are."""

    name: str
    cls: type[Communicator]
    has_processes: bool = False

    def __str__(self) -> str:
        return self.name


GLOO = Kind("gloo", GlooCommunicator, has_processes=True)
KINDS = [
    GLOO,
    Kind("local", LocalCommunicator),
    Kind("ordered", OrderedLocalCommunicator),
    Kind("rays", RaysCommunicator),
]
if "fake" in does.OPENERS:
    KINDS += [
        Kind("fake", does.FakeCommunicator, has_processes=True),
        Kind("nccl", does.NcclOnFake, has_processes=True),
        Kind("cuda_ipc", does.IpcOnFake, has_processes=True),
    ]
# Kinds over a fake library are slow: it moves all bytes over Gloo, beside what they do themselves.
ON_FAKES = ("nccl", "cuda_ipc")
# In the core these show that an abort ends every operation.
ENDING = ("gloo", "nccl")
KINDS_AND_SIZES = [
    (kind, size) for kind in KINDS for size in (1, 2, 3, 5) if size < 5 or kind.name not in ON_FAKES
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def is_usual(kind_and_size: tuple[Kind, int]) -> bool:
    """Return whether the core has a kind with this size.

    ``fake`` stands for those that move tensors of another device, of which the core has the others.
    """
    kind, size = kind_and_size
    return kind.name != "fake" and size == (2 if kind.name in ON_FAKES else 3)


def ends_in_core(op_and_kind: tuple[str, Kind]) -> bool:
    """Return whether the core aborts this operation of this kind: each of one kind, in turn."""
    op, kind = op_and_kind
    return kind.name == ENDING[list(does.BLOCKING).index(op) % len(ENDING)]


class Group:
    """A group over some members of a crew."""

    def __init__(self, kind: Kind, place: Place, members: Sequence[Member], name: str) -> None:
        self.kind, self.place, self.members, self.name = kind, place, members, name

    def begin(self, rank: int, timeout_s: float | None = GUARD_S, size: int = 0) -> Future[Any]:
        """Have one rank begin to open its end."""
        size = size or len(self.members)
        return self.members[rank].submit(
            does.open_group, self.kind.name, self.place, self.name, rank, size, timeout_s
        )

    def open(self, timeout_s: float | None = GUARD_S) -> Group:
        finish([self.begin(rank, timeout_s) for rank in range(len(self.members))])
        return self

    def submit(self, function: Callable[..., Any], *args: Any) -> list[Future[Any]]:
        return [member.submit(function, self.name, *args) for member in self.members]

    def all_do(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return finish(self.submit(function, *args))

    def destroy(self) -> None:
        self.all_do(does.destroy)


def finish(futures: Sequence[Future[Any]]) -> list[Any]:
    """Wait for all, or for the first that fails."""
    wait(futures, 2 * GUARD_S, FIRST_EXCEPTION)  # some are a thousand operations of five processes
    for future in futures:
        if future.done():
            future.result()
    return [future.result(0) for future in futures]


class Crew:
    """Makes groups over members, which are used again by the tests of a module."""

    def __init__(self, pool: list[ProcessMember], served: Served) -> None:
        self._pool = pool
        self._served = served

    def members(self, kind: Kind, count: int) -> list[Member]:
        if not kind.has_processes:
            return [ThreadMember() for _ in range(count)]
        self._pool[:] = [member for member in self._pool if member.is_alive]
        while len(self._pool) < count:
            self._pool.append(ProcessMember())
        return list(self._pool[:count])

    def group(self, kind: Kind, members: Sequence[Member]) -> Group:
        """Return a group that is not open yet."""
        place = Place(LocalStore())
        if kind.has_processes:
            control = self._served.control
            place = Place(None, control.address, control.service_id, control.secret)
        return Group(kind, place, members, f"g{next(NAMES)}")


@pytest.fixture(scope="module")
def pool() -> Iterator[list[ProcessMember]]:
    made: list[ProcessMember] = []
    yield made
    for member in made:
        member.close()


@pytest.fixture
def crew(pool: list[ProcessMember]) -> Iterator[Crew]:
    served = Served()
    yield Crew(pool, served)
    served.close()


# --- values


@pytest.mark.parametrize(("kind", "size"), core_where(is_usual, KINDS_AND_SIZES), ids=str)
@pytest.mark.parametrize(
    "program",
    [does.check_reductions, does.check_averages, does.check_moves, does.check_messages],
    ids=lambda program: program.__name__,
)
def test_every_operation_gives_what_plain_torch_does(crew, kind, size, program):
    group = crew.group(kind, crew.members(kind, size)).open()
    group.all_do(program)
    group.destroy()


@every_kind
def test_max_and_min_keep_a_nan_and_order_signed_zeros_whatever_the_order_of_ranks(crew, kind):
    for size in (2, 3):
        group = crew.group(kind, crew.members(kind, size)).open()
        group.all_do(does.check_order_of_floats)
        group.destroy()


@every_kind
def test_messages_are_matched_by_tag_or_else_by_order(crew, kind):
    group = crew.group(kind, crew.members(kind, 2)).open()
    first, second = group.members
    sent = []
    for tag in (1, 2):
        sent.append(first.submit(does.send_number, group.name, 1, tag, 100 + tag))
        first.wait_until_pending(sent[-1])
    found = [second.call(does.recv_number, group.name, 0, tag) for tag in (2, 1)]
    assert found == ([102, 101] if kind.cls.is_tagged else [101, 102])
    finish(sent)
    group.destroy()


@pytest.mark.parametrize("kind", [each for each in KINDS if each.name != "rays"], ids=str)
def test_what_it_says_of_every_dtype_is_true(crew, kind):
    group = crew.group(kind, crew.members(kind, 2)).open()
    names = sorted(
        name
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype) and str(value) == f"torch.{name}"
        # No tensor of these can be made from bytes.
        if not name.startswith(("q", "bits1x8", "bits2x4", "bits4x2"))
    )
    assert len(names) > 20
    for name in names:
        group.all_do(does.check_every_dtype, name)
    group.destroy()


@every_kind
def test_wrong_arguments_are_refused_and_harm_nothing(crew, kind):
    group = crew.group(kind, crew.members(kind, 2)).open()
    group.all_do(does.check_wrong_arguments)
    group.all_do(does.check_order)
    group.destroy()


# --- abort


@pytest.mark.parametrize(
    ("op", "kind"),
    core_where(ends_in_core, [(op, kind) for op in does.BLOCKING for kind in KINDS]),
    ids=str,
)
def test_abort_ends_a_pending_operation_and_refuses_later_ones(crew, kind, op):
    members = crew.members(kind, 3)
    group = crew.group(kind, members).open()
    pending = [member.submit(does.blocked, group.name, op) for member in members[:2]]
    for member, future in zip(members, pending, strict=False):
        member.wait_until_pending(future)
    assert not any(future.done() for future in pending)
    # One after the other: the abort of a rank may end the operation of another before its own does.
    finish([members[0].submit(does.abort, group.name, "for the test")])
    assert isinstance(pending[0].exception(GUARD_S), GroupAborted)
    finish([member.submit(does.abort, group.name, "for the test") for member in members[1:]])
    for future in pending:
        assert isinstance(future.exception(GUARD_S), CommError)
    for member in members:
        found = member.call(does.refusals, group.name)
        assert found == [("GroupAborted", "for the test")] * len(does.BLOCKING)
    again = crew.group(kind, members).open()
    again.all_do(does.check_order)
    again.destroy()
    group.destroy()


@every_kind
def test_abort_and_destroy_do_without_threads_that_cannot_start(crew, kind):
    members = crew.members(kind, 2)
    group = crew.group(kind, members).open()
    group.all_do(does.check_order)
    pending = members[0].submit(does.blocked, group.name, "recv")
    members[0].wait_until_pending(pending)
    members[0].call(does.abort_without_threads, group.name, "for the test")
    assert isinstance(pending.exception(GUARD_S), GroupAborted)
    members[1].call(does.abort_without_threads, group.name, "for the test")
    group.destroy()
    group = crew.group(kind, members).open()
    group.all_do(does.check_order)
    group.destroy()


@every_kind
def test_what_the_abort_of_another_rank_ends_is_no_abort_here(crew, kind):
    members = crew.members(kind, 2)
    group = crew.group(kind, members).open()
    pending = members[0].submit(does.blocked, group.name, "recv")
    members[0].wait_until_pending(pending)
    members[1].call(does.abort, group.name, "for the test")
    error = pending.exception(GUARD_S)
    assert type(error) is CommError and (error.group, error.rank) in ((group.name, 0), ("rays", 0))
    assert "GLHF" not in str(error) and ".cc" not in str(error)
    assert {name for name, _ in members[0].call(does.refusals, group.name)} == {"CommError"}
    members[0].call(does.abort, group.name, "here, too")
    assert set(members[0].call(does.refusals, group.name)) == {("GroupAborted", "here, too")}
    group.destroy()


@every_kind
def test_a_destroyed_group_refuses_operations(crew, kind):
    members = crew.members(kind, 2)
    group = crew.group(kind, members).open()
    group.all_do(does.destroy_and_keep)
    for found in group.all_do(does.refusals):
        assert {name for name, _ in found} == {"GroupAborted"}
    group.destroy()


@every_kind
def test_abort_of_one_group_leaves_another_of_the_same_members(crew, kind):
    members = crew.members(kind, 2)
    groups = [crew.group(kind, members) for _ in range(2)]
    # Both at the same time.
    finish([group.begin(rank) for rank in range(2) for group in groups])
    groups[0].all_do(does.abort, "for the test")
    groups[1].all_do(does.check_order)
    for group in groups:
        group.destroy()


# --- opening


@every_kind
def test_a_rank_that_never_comes_is_a_timeout_that_names_it_and_the_group(crew, kind):
    members = crew.members(kind, 2)
    group = crew.group(kind, members)
    before = members[0].call(does.counts)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=rf"group {group.name}: member2 did not come"):
            finish([group.begin(rank, 0.5, size=3) for rank in range(2)])
    if kind.has_processes:
        flat_again(members[0], before)


@every_kind
def test_closing_the_store_ends_an_open_that_waits(crew, kind):
    members = crew.members(kind, 2)
    group = crew.group(kind, members)
    opening = group.begin(0, None)
    members[0].wait_until_pending(opening)
    assert not opening.done()
    members[0].call(does.close_store, group.name)
    with pytest.raises(GroupAborted):
        finish([opening])


@pytest.mark.parametrize("how", ["stop", "close"])
def test_the_end_of_the_graph_ends_an_open_that_waits(crew, how):
    members = crew.members(GLOO, 2)
    group = crew.group(GLOO, members)
    opening = group.begin(0, None)
    members[0].wait_until_pending(opening)
    assert not opening.done()
    getattr(crew._served.control, how)()
    with pytest.raises(GroupAborted):
        finish([opening])


# --- what is left over


def flat_again(member: Member, before: tuple[int, int]) -> None:
    """Wait until a member has as many descriptors and threads as before."""
    until(lambda: member.call(does.counts)[0] <= before[0])
    until(lambda: member.call(does.counts)[1] <= before[1])


@pytest.mark.parametrize("kind", core_has(GLOO, KINDS), ids=str)
def test_many_groups_leave_nothing(crew, kind):
    members = crew.members(kind, 2)
    for member in members:
        member.call(does.warm)
    group = crew.group(kind, members).open()
    group.destroy()
    before = [member.call(does.counts) for member in members]
    for _ in range(20):  # one that leaves something leaves it every time
        group = crew.group(kind, members).open()
        group.all_do(does.check_order)
        group.destroy()
    for member, counts in zip(members, before, strict=True):
        flat_again(member, counts)


# --- among processes


@pytest.mark.parametrize("op", core_has("allreduce", does.BLOCKING))
def test_survivors_of_a_killed_rank_end_are_usable_and_keep_other_groups(crew, op):
    members = crew.members(GLOO, 3)
    other = crew.group(GLOO, members[:2]).open()
    group = crew.group(GLOO, members).open()
    pending = [member.submit(does.blocked, group.name, op) for member in members[:2]]
    for member, future in zip(members, pending, strict=False):
        member.wait_until_pending(future)
    members[2].kill()
    finish([member.submit(does.abort, group.name, "it died") for member in members[:2]])
    for future in pending:
        assert isinstance(future.exception(GUARD_S), CommError)
    for member in members[:2]:
        assert set(member.call(does.refusals, group.name)) == {("GroupAborted", "it died")}
    other.all_do(does.check_moves)
    members = crew.members(GLOO, 3)
    again = crew.group(GLOO, members).open()
    again.all_do(does.check_order)
    for each in (other, again):
        each.destroy()
    finish([member.submit(does.destroy, group.name) for member in members[:2]])


@pytest.mark.parametrize(
    "how", core_has(signal.SIGKILL, [signal.SIGKILL, signal.SIGSTOP]), ids=["killed", "stopped"]
)
@pytest.mark.parametrize(
    "op",
    core_where(
        ("edge from 2", "allreduce").__contains__,
        [
            *("edge from 2", "edge to 2", "small ones from 2"),
            *("allreduce", "broadcast", "broadcast in pieces"),
        ],
    ),
)
def test_a_message_that_stays_half_done_holds_nobody(crew, op, how):
    """When a connection closes, Gloo does not end the wait for the rest of a message."""
    members = crew.members(GLOO, 3)
    other = crew.group(GLOO, members[:2]).open()
    group = crew.group(GLOO, members).open()
    hit = members[0].submit(does.signal_part_way, group.name, members[2].pid, how)
    pending = [member.submit(does.long_operation, group.name, op) for member in members]
    finish([hit])
    if how == signal.SIGKILL:
        # The lost connection alone ends it, before this rank has heard of the death.
        assert type(pending[0].exception(GUARD_S)) is CommError
    finish([member.submit(does.abort, group.name, "it is gone") for member in members[:2]])
    for future in pending[:2]:
        assert isinstance(future.exception(GUARD_S), CommError | None)
    other.all_do(does.check_moves)
    other.destroy()
    if how == signal.SIGSTOP:
        os.kill(members[2].pid, signal.SIGCONT)
        finish([members[2].submit(does.abort, group.name, "now here, too")])
        assert isinstance(pending[2].exception(GUARD_S), CommError | None)
    finish([member.submit(does.destroy, group.name) for member in members if member.is_alive])
    again = crew.group(GLOO, crew.members(GLOO, 3)).open()
    again.all_do(does.check_order)
    again.destroy()


@pytest.mark.parametrize("op", core_has("allreduce", ["edge to 1", "allreduce", "broadcast"]))
def test_an_abort_lets_a_message_finish_that_is_under_way(crew, op):
    """If all processes are alive, no thread and no descriptor is left."""
    members = crew.members(GLOO, 3)
    for member in members:
        member.call(does.warm)
    crew.group(GLOO, members).open().destroy()
    before = [member.call(does.counts) for member in members]
    group = crew.group(GLOO, members).open()
    part_way = members[1].submit(does.signal_part_way, group.name, members[1].pid, 0)
    pending = group.submit(does.long_operation, op)
    finish([part_way])
    finish([member.submit(does.abort, group.name, "for the test") for member in members])
    for future in pending:
        assert isinstance(future.exception(GUARD_S), CommError | None)
    group.destroy()
    for member, counts in zip(members, before, strict=True):
        flat_again(member, counts)


def test_a_death_cuts_off_no_message_between_those_who_live(crew):
    """When a waiting rank dies, a message to another rank keeps its memory until it has arrived."""
    members = crew.members(GLOO, 3)
    for member in members:
        member.call(does.warm)
    crew.group(GLOO, members).open().destroy()
    receiver, victim, sender = members
    before = receiver.call(does.counts), sender.call(does.counts)
    group = crew.group(GLOO, members).open()
    hit = receiver.submit(does.signal_part_way, group.name, victim.pid, signal.SIGKILL)
    received, sent = (
        each.submit(does.long_operation, group.name, "broadcast") for each in (receiver, sender)
    )
    finish([hit, received])
    assert type(sent.exception(GUARD_S)) is CommError
    finish([member.submit(does.destroy, group.name) for member in (receiver, sender)])
    flat_again(receiver, before[0])
    flat_again(sender, before[1])


def test_large_broadcasts_are_passed_on_whole_also_by_a_rank_without_memory(crew):
    group = crew.group(GLOO, crew.members(GLOO, 6)).open()
    group.all_do(does.check_large_broadcasts)
    group.destroy()


def test_connections_of_others_are_neither_found_nor_shut_down(crew):
    """Also if the same processes make them while a group is built."""
    members = crew.members(GLOO, 2)
    port = members[0].call(does.start_neighbours, None)
    members[1].call(does.start_neighbours, port)
    for _ in range(10):
        group = crew.group(GLOO, members).open()
        group.all_do(does.abort, "for the test")
        group.destroy()
    assert [member.call(does.broken_neighbours) for member in members] == [0, 0]
    finish([member.submit(does.close_neighbours) for member in members])


def test_abort_spares_what_got_the_number_of_a_socket_that_gloo_has_closed(crew):
    members = crew.members(GLOO, 2)
    group = crew.group(GLOO, members).open()
    pending = members[0].submit(does.blocked, group.name, "recv")
    members[1].kill()
    assert isinstance(pending.exception(GUARD_S), CommError)
    members[0].call(does.takes_the_numbers)
    members[0].call(does.abort, group.name, "it died")
    assert members[0].call(does.cut_pairs) == 0
    members[0].call(does.destroy, group.name)


@pytest.mark.full
def test_an_operation_may_take_longer_than_the_group_to_be_built(crew):
    """Gloo's time limit is short while the group is built; afterwards there is none."""
    members = crew.members(GLOO, 2)
    group = crew.group(GLOO, members).open()
    for op in does.BLOCKING:
        pending = members[0].submit(does.blocked, group.name, op)
        threading.Event().wait(2 if op == "recv" else 0.5)
        assert not pending.done()
        members[1].call(does.answered, group.name, op)
        finish([pending])
    group.destroy()


def test_the_default_group_of_the_user_is_untouched(crew):
    members = crew.members(GLOO, 2)
    for is_there in (False, True):
        for member in members if is_there else ():
            member.call(does.make_default_group)
        group = crew.group(GLOO, members).open()
        group.all_do(does.check_order)
        group.all_do(does.abort, "for the test")
        group.destroy()
        finish([member.submit(does.check_default_group, is_there) for member in members])
