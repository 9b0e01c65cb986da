# SPDX-License-Identifier: Apache-2.0
"""The steps of collectives: all ranks enter, or none does.

::

    look at this rank's tensors, make room for the result, copy them there if that is where they
    are combined and something else may still see them
    tell the others: dtypes and shapes, or a failure    ──rings──>
    hear the others
    a failure anywhere, or shapes that differ: the result is that failure, the same at all ranks
    otherwise: the collective                           ──communicator──>

A rank that has heard all others knows that all of them are at this op. So the communicator is
entered only when every rank enters it, and nobody waits inside it for one that is elsewhere.
Whatever fails at one rank after that breaks the graph, because the others may wait for that rank.
So all that can fail comes before: the checks, the result's memory, and what the communicator needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from rcg.channels import open_reader, open_writer
from rcg.channels.base import NoMemory, Writer
from rcg.channels.tensor import failed_transfer
from rcg.errors import TensorMismatch, TransportError
from rcg.ir.channels import ChannelSpec
from rcg.ir.ops import Collective
from rcg.runtime.actor import failpoints
from rcg.runtime.actor.exchanges import EXCHANGES, NoResult, Rank, status_of
from rcg.runtime.actor.ownership import may_overwrite
from rcg.runtime.failure import Origin, capture, capture_own, smaller_failures
from rcg.runtime.node.node import Node
from rcg.serialization import Failure

__rcg_plumbing__ = True  # see rcg.frames


class _Running(Protocol):
    """The loop, as far as a collective needs it; see ``steps.Running``."""

    execution: int
    origin: Origin


def collective_step(
    index: int,
    op: Collective,
    slots: list[Any],
    loop: _Running,
    node: Node,
    channels: Mapping[str, ChannelSpec],
    last_used: Collection[int] = (),
) -> Callable[[], None]:
    """Return the step of the collective at ``index`` of the program that ``loop`` runs.

    ``last_used`` has the slots whose last use this is (``Program.last_used``).
    """
    rank = Rank(op, node)
    exchange = EXCHANGES[op.word]
    tells = [open_writer(channels[each], index, node) for each in op.tells]
    hears = [open_reader(channels[each], index, node) for each in op.hears]
    sources, outs, member = op.slots, op.outs, node.member
    candidates = [(each, each in last_used and sources.count(each) == 1) for each in sources]
    is_announced = failpoints.on_failpoint is not None

    def failure_of(error: BaseException) -> Failure:
        if isinstance(error, TransportError):
            return capture_own(error)
        return capture(error, loop.origin, f"({rank.name})", loop.execution)

    def prepare() -> tuple[bytes | Failure, list[Any], Any]:
        """Return this rank's status, its tensors, and the room for the result."""
        for source in sources:
            if type(slots[source]) is Failure:
                return slots[source], [], None
        try:
            ours = [can_be and may_overwrite(slots, source) for source, can_be in candidates]
            tensors = [rank.checked(slots[source]) for source in sources]
            status = rank.status_bytes(tensors)
            room = exchange.room(rank, tensors, ours)
        except BaseException as error:  # noqa: BLE001 - a user's tensor runs any code; no memory
            return failure_of(error), [], None
        return status, tensors, room

    def step() -> None:
        member.mark(index, loop.execution)
        status, tensors, room = prepare()
        for writer in tells:
            _write_status(writer, status)
        if is_announced:
            failpoints.reach(failpoints.Failpoint("status", node.process, loop.execution, op))
        heard = [reader.read() for reader in hears]
        heard.insert(rank.rank, status)
        result, statuses = next((each for each in heard if type(each) is Failure), None), []
        if result is None:
            statuses = [status_of(each) for each in heard]
            try:
                exchange.compare(rank, statuses)
            except TensorMismatch as error:
                result = failure_of(error)
        if result is None:
            try:
                member.transferring()
                values = exchange.run(rank, tensors, room, statuses)
            except NoResult as missed:
                result = failure_of(missed.cause)
            except Exception as error:  # the others may wait for this rank now
                raise failed_transfer(error) from error
        if result is not None:
            values = [result] * len(outs)
        for out, value in zip(outs, values, strict=True):
            slots[out] = value
        member.transferred(0 if result else exchange.bytes_moved(rank, statuses), False)

    return step


def _write_status(writer: Writer, status: bytes | Failure) -> None:
    try:
        writer.write(status)
    except NoMemory:
        if type(status) is not Failure:
            raise
        for shorter in smaller_failures(status):
            with contextlib.suppress(NoMemory):
                writer.write(shorter)
                return
        raise
