# SPDX-License-Identifier: Apache-2.0
"""Pulling tensors from the processes that hold them.

There is one connection to each of these. It is answered in the order of the questions, of which
some may be ahead, and what comes through a group comes in that order, too.
"""

from __future__ import annotations

import copy
import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from rcg.error_text import describe_error, shielded, without_frames
from rcg.errors import ActorDiedError, CommError, Transfer
from rcg.log import Log
from rcg.rdt import gpu_memory
from rcg.rdt.answers import (
    Arriving,
    Refused,
    answer_to,
    not_arrived,
    receive_after,
    registered_in,
    try_to_read,
)
from rcg.rdt.connection import JOIN_TIMEOUT_S, Connection, batches
from rcg.rdt.envelope import Envelope, Holder, Parts, Registered, Whole
from rcg.rdt.groups import MemberGroups
from rcg.rdt.lent import open_block
from rcg.rdt.nixl_agent import why_not_auto
from rcg.rdt.places import Spans, places_of
from rcg.rdt.runs import fill, places_for
from rcg.rdt.transports import AUTO, NIXL, OBJECT_STORE, SHM, TCP, Transport
from rcg.threads import run_together
from rcg.wire.messages import (
    READ_BY_KERNEL,
    READ_BY_MAPPING,
    READ_BY_NIXL,
    READ_ON_GPU,
    ObjectsHere,
    TensorsAt,
    TensorsComing,
    TensorsFollow,
    TensorsHere,
    TensorsOnGpu,
    TensorsRegistered,
)
from rcg.wire.payloads import open_payloads
from rcg.wire.sockets import Received

_log = Log()

_AHEAD: Final = 16  # questions, while the first is answered
# What is read takes a second question. On a busy machine that was slower than a memfd with 400 KB
# (1.2 and 0.8 ms), faster with 4 MB (3.6 and 6.5 ms), and ten times as fast with 100 MB.
_READ_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 24 << 10  # for which memory is taken before they are there


class Got(NamedTuple):
    """A value that this process got, or did not get; see ``rcg.trace.model.TensorTransfer``."""

    object: str
    source: str
    transport: str
    bytes: int
    start_ns: int
    waited_ns: int
    end_ns: int
    error: str


class Wanted(NamedTuple):
    """An object that this process wants.

    Attributes:
        envelope: The object.
        transport: How it comes.
        group: Through which group it comes; "" for none.
        into: Where its tensors go: tensors of uint8 [n]; None for fresh memory.
    """

    envelope: Envelope
    transport: Transport
    group: str = ""
    into: Sequence[Any] | None = None


class NixlReader(Protocol):
    """Reads memory of other processes: ``rcg.rdt.nixl.Nixl``, which stands above."""

    def read(
        self,
        holder: Holder,
        registered: Sequence[Registered],
        targets: Sequence[Any],
        spans: Spans,
        times: list[int],
    ) -> None:
        """Read memory of another process."""


class Connections:
    """The connections of this process to those that hold tensors. Any thread.

    Args:
        key: The id of the store of this process.
        groups: The groups that it is a member of.
        got: Takes what was got: a ``Got`` for each value.
        timeout_s: How long connecting may take.
        look: As in ``rcg.rdt.reach.reach``.
        took: Called with the bytes of a value that was got.

    Attributes:
        nixl: How memory of other nodes is read by NIXL; None if it is not.
    """

    def __init__(
        self,
        key: str,
        groups: MemberGroups,
        got: deque[Got],
        timeout_s: float = JOIN_TIMEOUT_S,
        look: Callable[[Holder], str] | None = None,
        took: Callable[[int], object] = bool,
    ) -> None:
        self.nixl: NixlReader | None = None
        self._took = took
        self._how = timeout_s, look
        self._key = key
        self._groups = groups
        self.got: Final = got
        self._open: dict[tuple[str, str], Connection] = {}
        self._lock = threading.Lock()

    def to(self, holder: Holder, within_s: float | None = None) -> Connection:
        """Return the connection to a process; raises as ``Connection`` does.

        Args:
            holder: The process.
            within_s: How long connecting may take, if that is less than usual.
        """
        found = self._open.get((holder.address, holder.key))
        if found is not None:
            return found
        usual_s, look = self._how
        timeout_s = usual_s if within_s is None else min(usual_s, within_s)
        made = Connection(holder, self._key, timeout_s, look)
        with self._lock:
            found = self._open.setdefault((holder.address, holder.key), made)
        if found is not made:
            made.close()
        return found

    def has(self, holder: Holder) -> bool:
        """Whether there is a connection to a process."""
        return (holder.address, holder.key) in self._open

    def drop(self, connection: Connection) -> None:
        """Close a connection that is of no use any more, and the pairs that belong to it."""
        with self._lock:
            holder = connection.holder
            if self._open.get((holder.address, holder.key)) is connection:
                del self._open[holder.address, holder.key]
        connection.close()
        self._groups.end_pairs(connection, f"the connection to {holder.label} has ended")

    def check_lives(self, holder: Holder) -> None:
        """Raise as ``Connection`` does if a process cannot be reached."""
        Connection(holder, self._key, *self._how).close()

    def check_objects(self, envelopes: Sequence[Envelope]) -> None:
        """Check that objects of one process lay there until now, when they have been read.

        Raises:
            ActorDiedError: The process is gone.
            Transfer: One did not.
        """
        while True:
            connection = self.to(envelopes[0].holder)
            with connection.lock:
                if not connection.has_ended:
                    try:
                        for some in batches([each.key for each in envelopes]):
                            number = connection.ask_to_check(some)
                            with connection.next() as received:
                                answer_to(received, number, connection.holder)
                    except Refused as error:
                        raise error.for_users() from None
                    except BaseException:  # also Ctrl-C: the answer will come all the same
                        self.drop(connection)
                        raise
                    return
            self.drop(connection)  # an actor that runs again is reached by another one

    def take_ended(self) -> set[str]:
        """Drop the connections to processes that are gone; returns their addresses."""
        with self._lock:
            ended = [each for each in self._open.values() if each.has_ended]
        for connection in ended:
            self.drop(connection)
        return {each.holder.address for each in ended}

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            found = list(self._open.values())
            self._open.clear()
        for connection in found:
            connection.close()

    def pull(self, wanted: Sequence[Wanted]) -> list[Sequence[Any] | Exception]:
        """Return the tensors of objects, of uint8 [n], in memory of this process.

        Those of one process are asked for together, and several processes at the same time.

        Returns:
            For each object its tensors, or the error: ``ActorDiedError``, ``Transfer``.
        """
        if len(wanted) == 1:  # by far the most frequent
            return self._fetch(wanted)
        envelopes = [each.envelope for each in wanted]
        return at_each_holder(envelopes, lambda some: self._fetch([wanted[at] for at in some]))

    def _fetch(self, wanted: Sequence[Wanted]) -> list[Sequence[Any] | Exception]:
        """Pull objects that one process holds."""
        found: list[Sequence[Any] | Exception] = []
        while len(found) < len(wanted):
            rest = wanted[len(found) :]
            try:
                connection = self.to(rest[0].envelope.holder)
            except Exception as error:  # noqa: BLE001 - the result of each object
                self._lose_member(rest, error)
                return [*found, *for_each(error, len(rest))]
            if connection.is_remote and any(each.transport.name == SHM for each in rest):
                others = iter(self._fetch([each for each in rest if each.transport.name != SHM]))
                return found + [
                    _too_far(each.envelope.holder) if each.transport.name == SHM else next(others)
                    for each in rest
                ]
            with connection.lock:
                if not connection.has_ended:
                    self._fetch_by(connection, rest, found)
                    continue
            self.drop(connection)  # an actor that runs again is reached by another one
        return [each.for_users() if type(each) is Refused else each for each in found]

    def _fetch_by(
        self,
        connection: Connection,
        wanted: Sequence[Wanted],
        found: list[Sequence[Any] | Exception],
    ) -> None:
        """Pull objects by one connection, as long as it is of use: at least one."""
        numbers: deque[int] = deque()
        asked, is_reading = 0, False
        for at, each in enumerate(wanted):
            times = [time.monotonic_ns()]
            way = each.transport.name if each.group else TCP if connection.is_remote else SHM
            problem = ""
            try:
                while asked < len(wanted) and asked < at + _AHEAD:
                    question = wanted[asked]
                    reads = self._reads(connection, question)
                    if asked > at and (reads or is_reading):
                        break  # what is read takes two questions, with no other between them
                    key, group = question.envelope.key, question.group
                    numbers.append(connection.ask_for(key, group, reads=reads))
                    asked += 1
                    is_reading = bool(reads)
                payloads, way = self._take(connection, each, numbers.popleft(), times, way)
                found.append(payloads)
            except Exception as error:  # noqa: BLE001 - the result of the object
                problem = str(error)
                found.append(without_frames(error))  # or it would hold this very list
                self._lose_member([each], error)
                if type(error) is not Refused:
                    self.drop(connection)  # what comes on it now is not known
                    return
            except BaseException:  # Ctrl-C, and the answer will come all the same
                problem = "interrupted"
                self.drop(connection)
                raise
            finally:
                self.note(each.envelope, way, times, problem)

    def by_nixl(self, connection: Connection) -> str:
        """Return how memory of another node is read; "" if it cannot be."""
        can = connection.is_remote and NIXL not in connection.failed and self.nixl is not None
        return READ_BY_NIXL if can and not why_not_auto() else ""

    def _reads(self, connection: Connection, wanted: Wanted) -> str:
        """Return how an object is read where it lies; "" if it cannot be, or is not worth it."""
        contents, devices = wanted.envelope.contents, set(wanted.envelope.contents.devices)
        is_worth_it = (
            not wanted.group
            and isinstance(contents, Whole | Parts)  # not objects of a user's transport
            and sum(contents.sizes) >= _READ_BYTES
        )
        if not is_worth_it:
            return ""
        is_open = wanted.transport.name in (AUTO, OBJECT_STORE)
        if connection.is_remote:
            return self.by_nixl(connection) if is_open and len(devices) == 1 else ""
        if devices == {"cpu"}:
            if not connection.may_read:
                return ""
            maps = wanted.into is None and READ_BY_MAPPING not in connection.failed
            return READ_BY_MAPPING if maps else READ_BY_KERNEL
        gpus = gpu_memory.shared[0]
        can = is_open and devices == {gpus.device} and gpu_memory.TRANSPORT not in connection.failed
        gpu = gpus.gpu() if can else ""
        return READ_ON_GPU + gpu if gpu else ""

    def note(self, envelope: Envelope, transport: str, times: Sequence[int], problem: str) -> None:
        """Note what was got, for profiles.

        Args:
            envelope: The value.
            transport: How its tensors came.
            times: When it was waited for, and when it began to come, if it did.
            problem: Why it did not come, or "".
        """
        start_ns, end_ns = times[0], time.monotonic_ns()
        self._took(sum(envelope.contents.sizes))
        self.got.append(
            Got(
                *(envelope.key, envelope.holder.label, transport, sum(envelope.contents.sizes)),
                *(start_ns, (times[1] if len(times) > 1 else end_ns) - start_ns, end_ns, problem),
            )
        )

    def _lose_member(self, wanted: Sequence[Wanted], error: Exception) -> None:
        """Note if the process that holds objects is in their groups no more."""
        holder, why = wanted[0].envelope.holder, ""
        if isinstance(error, ActorDiedError):
            why = f"{holder.label} has ended"
        elif type(error) is Refused and error.is_system_error:
            why = str(error)
        for group in {each.group for each in wanted if each.group} if why else ():
            self._groups.lose(group, holder.key, why)

    def _take(
        self, connection: Connection, wanted: Wanted, number: int, times: list[int], way: str
    ) -> tuple[Sequence[Any], str]:
        """Return the tensors of the object that was asked for first, and how they came.

        Args:
            connection: To the process that holds them.
            wanted: The object.
            number: Of the question.
            times: Gets the time at which it begins to come.
            way: How it comes if it does not come by NIXL.

        Raises:
            Refused: They cannot be sent; others may be.
            ActorDiedError, Transfer: The connection is of no use any more.
        """
        envelope, into = wanted.envelope, wanted.into
        holder, sizes = envelope.holder, envelope.contents.sizes
        # A small tensor comes in the message; its room is made while the other process answers.
        is_small = type(envelope.contents) is Whole and sizes[0] <= _SMALL_BYTES
        room = Arriving(sizes) if is_small else None
        with connection.next() as received:
            times.append(time.monotonic_ns())
            match answer_to(received, number, holder):
                case TensorsHere():
                    payloads = (room or Arriving(sizes)).take(received)
                    return payloads if into is None else fill(into, payloads), way
                case ObjectsHere():
                    return list(open_payloads(received)[0].decode()), way
                case TensorsRegistered() as coming:
                    registered, places = registered_in(coming, received)
                case TensorsOnGpu() as coming:
                    on_gpu = bytes(open_payloads(received)[0].decode())
                case TensorsAt() as coming:
                    mapped = _open_mapped(coming, received, sizes)
                case TensorsComing() | TensorsFollow() as coming:
                    pass
                case _:
                    raise Transfer(f"{holder.label} gave an answer that was not expected")
        if isinstance(coming, TensorsRegistered | TensorsOnGpu):
            device = envelope.contents.devices[0]
            payloads = [part for _, parts in places_for(sizes, device, into) for part in parts]
            if isinstance(coming, TensorsOnGpu):
                way_here = gpu_memory.TRANSPORT
                read: Callable[[], None] = partial(gpu_memory.shared[0].read, on_gpu, payloads)
            else:
                spans = Spans(places, places_of(payloads))
                way_here = NIXL
                read = partial(self.read_by_nixl, holder, registered, payloads, spans)
            if try_to_read(connection, number, way_here, read):
                return payloads if into is None else fill(into, payloads), way_here
            number = connection.ask_for(envelope.key, "")
            return self._take(connection, wanted, number, times, way)
        if isinstance(coming, TensorsAt):
            if not isinstance(mapped, Exception):
                return _read(connection, coming, wanted, mapped), way
            try_to_read(connection, number, READ_BY_MAPPING, partial(_raise, mapped))
            number = connection.ask_for(envelope.key, "", reads=READ_BY_KERNEL)
            return self._take(connection, wanted, number, times, way)
        if isinstance(coming, TensorsFollow):
            payloads = receive_after(connection, sizes, into)
        else:
            payloads = self._receive_through_group(connection, wanted, number)
        with connection.next() as received:  # says that they lay there until all was sent
            answer_to(received, number, holder)
        return payloads, way

    def read_by_nixl(
        self, holder: Holder, registered: Registered, targets: Sequence[Any], spans: Spans
    ) -> None:
        """Read what lies at another node; raises as ``NixlReader.read``."""
        if self.nixl is not None:
            self.nixl.read(holder, [registered], targets, spans, [])

    def _receive_through_group(
        self, connection: Connection, wanted: Wanted, number: int
    ) -> Sequence[Any]:
        holder, contents = wanted.envelope.holder, wanted.envelope.contents
        try:
            pair = self._groups.pair_for(
                *(wanted.group, holder, holder.key, connection, number),
                is_holder=False,
                is_across_nodes=connection.is_remote,
            )
            return pair.recv(contents.sizes, contents.devices[0], wanted.into)
        except (CommError, TimeoutError, RuntimeError) as error:
            why = describe_error(error)
            theirs = connection.last_word(number)
            if theirs:
                why += f". That process says: {theirs}"
            raise Transfer(
                f"tensors of {holder.label} did not arrive: {why}. Get them again"
            ) from error


def _too_far(holder: Holder) -> Exception:
    return Transfer(
        f"{holder.label}, which holds the tensors, is on another node, where there is no shared "
        f'memory for tensor_transport="{SHM}": take "{AUTO}"'
    )


def _open_mapped(
    found: TensorsAt, received: Received, sizes: Sequence[int]
) -> list[Any] | Exception:
    """Return the tensors that lie in frozen blocks, None for others; or why they cannot be had."""
    try:
        if received.is_short:
            raise OSError(errno.EMFILE, "there is no descriptor left")
        fds = received.fds
        return [
            None if not block else open_block(fds[block - 1], start, size)
            for block, start, size in zip(found.blocks, found.addresses, sizes, strict=True)
        ]
    except (OSError, ValueError, IndexError, RuntimeError) as error:
        return without_frames(error)


def _raise(error: Exception) -> None:
    raise error


def _read(
    connection: Connection, found: TensorsAt, wanted: Wanted, payloads: list[Any]
) -> Sequence[Any]:
    """Read tensors where they lie; ``payloads`` has those that were mapped, and None for others."""
    holder, sizes, into = wanted.envelope.holder, wanted.envelope.contents.sizes, wanted.into
    problem: Exception | None = None
    rest = [at for at, each in enumerate(payloads) if each is None]
    try:
        own = into if into is None else [into[at] for at in rest]
        parts = places_for([sizes[at] for at in rest], "cpu", own)
        for at, part in zip(rest, [each for _, some in parts for each in some], strict=True):
            payloads[at] = part
        there = np.array([(found.addresses[at], sizes[at], 0) for at in rest], np.int64)
        here = places_of([payloads[at] for at in rest])
        connection.read(Spans(there.reshape(-1, 3), here))
    except (OSError, RuntimeError, ValueError) as error:  # the second of torch: no memory
        problem = without_frames(error)
    connection.end_reading(found.number)
    with connection.next() as received:
        answer_to(received, found.number, holder)
    if problem is not None:
        raise not_arrived(sizes, problem)
    return payloads if into is None else fill(into, payloads)


def at_each_holder(
    envelopes: Sequence[Envelope], fetch: Callable[[list[int]], Sequence[Any]]
) -> list[Any]:
    """Return what is fetched for each envelope, or its error; from all holders at the same time.

    Args:
        envelopes: The envelopes.
        fetch: Returns this for the envelopes at some places, which have one holder.
    """
    by_holder: dict[tuple[str, str], list[int]] = {}
    for at, envelope in enumerate(envelopes):
        by_holder.setdefault((envelope.holder.address, envelope.holder.key), []).append(at)
    found: dict[int, Any] = {}

    def take(some: list[int]) -> None:
        try:
            fetched = fetch(some)
        except Exception as error:  # noqa: BLE001 - the result of each object
            fetched = for_each(error, len(some))
        found.update(zip(some, fetched, strict=True))

    run_together([partial(take, some) for some in by_holder.values()], "rcg-pull")
    return [
        found[at] if at in found else Transfer("the thread that pulled it has failed")
        for at in range(len(envelopes))
    ]


def for_each(error: Exception, count: int) -> list[Exception]:
    """Return an error for each of several results: who raises one changes it.

    The first is the error itself. The others are copies, or ``Transfer`` with the text of an error
    that cannot be copied.

    Args:
        error: The error of all of them.
        count: How many results there are.
    """
    without_frames(error)
    return [error if not number else _copy(error) for number in range(count)]


def _copy(error: Exception) -> Exception:
    found: Exception | None = shielded(copy.copy, error, otherwise=None)
    if found is None or type(found) is not type(error) or found is error:
        found = Transfer(describe_error(error))
    found.__cause__ = error.__cause__
    return found
