# SPDX-License-Identifier: Apache-2.0
"""The owner of a graph, as handles see it: the connection to the process that compiled it.

Each outcome has its own error: the graph was torn down, the process is gone, it does not answer, it
is on another node.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from rcg import cluster
from rcg.descriptors import out_of_descriptors
from rcg.errors import ChannelBroken, ChannelClosed, ChannelTimeout, PlacementError, RcgError
from rcg.ir.signature import ExecutionSignature
from rcg.runtime.control.joining import Joined, join
from rcg.serialization import KIND_BYTES
from rcg.wire.addresses import is_tcp
from rcg.wire.messages import AskReport, Opening, Reported
from rcg.wire.payloads import open_payloads

JOIN_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class HandleFacts:
    """The facts that a handle has about its graph.

    Attributes:
        address: Where its owner is reached.
        tcp: Where it is reached from other nodes, as text; "" if it is not.
    """

    graph_id: str
    address: str
    secret: str
    owner_pid: int
    node: str | None
    signature: ExecutionSignature
    buffers: tuple[str, ...]  # their channels
    outputs: tuple[int, ...]  # numbers of buffers
    is_multi: bool
    get_timeout_s: float | None
    submit_timeout_s: float | None
    tcp: str = ""


def join_owner(
    facts: HandleFacts, kind: type[Opening], timeout_s: float, *, descriptors: int = 0
) -> Joined:
    """Connect to the owner and return its answer to a first message of this kind.

    Raises:
        ChannelClosed: The graph was torn down.
        ChannelBroken: The owner is gone.
        ChannelTimeout: It does not answer.
        PlacementError: It is on another node.
        OutOfDescriptors: There is none left, in this process or in the owner.
    """

    def check(pid: int, uid: int) -> None:
        # Once the owner is gone, its address is free, or a child of it still has the socket.
        if uid != os.getuid() or (pid > 0 and not _is_alive(pid)):
            raise owner_gone(facts)

    opening = kind(graph=facts.graph_id, secret=facts.secret)
    here = cluster.node_id() if cluster.is_connected() else None
    is_elsewhere = facts.node is not None and here is not None and facts.node != here
    address = facts.tcp if is_elsewhere and facts.tcp else facts.address
    if is_tcp(address):
        return _join_elsewhere(facts, address, opening, timeout_s)
    try:
        joined = join(address, opening, timeout_s, check, descriptors=descriptors)
    except ConnectionRefusedError:
        if is_elsewhere:
            raise PlacementError(
                f"this handle works on the node of the process that compiled the graph, "
                f"{facts.node}, and this is node {here}",
                location=here,
            ) from None
        raise (torn_down if _is_alive(facts.owner_pid) else owner_gone)(facts) from None
    except ProcessLookupError:
        raise owner_gone(facts) from None
    except PermissionError as error:  # another process listens there now
        raise owner_gone(facts, f"cannot be reached: {error.strerror}") from None
    except ConnectionAbortedError:
        raise (torn_down if _is_alive(facts.owner_pid) else owner_gone)(facts) from None
    except TimeoutError:
        raise no_answer(facts, "it may be suspended", timeout_s) from None
    except (OSError, ValueError) as error:
        if isinstance(error, RcgError):
            raise
        raise no_answer(facts, str(error), timeout_s) from error
    return joined


def _join_elsewhere(facts: HandleFacts, address: str, opening: Opening, timeout_s: float) -> Joined:
    """Connect to an owner on another node; raises as ``join_owner``."""
    try:
        return join(address, opening, timeout_s, lambda *_: None)
    except ConnectionAbortedError:
        raise torn_down(facts) from None
    except TimeoutError as error:
        raise no_answer(facts, str(error), timeout_s) from error
    except (OSError, ValueError) as error:
        if isinstance(error, RcgError):
            raise
        raise owner_gone(facts, f"cannot be reached: {error}") from error


def ask_report(facts: HandleFacts, timeout_s: float = JOIN_TIMEOUT_S) -> str:
    """Return the owner's report of a graph.

    Raises:
        ChannelClosed: The graph was torn down.
        ChannelBroken: The owner is gone.
        ChannelTimeout: It does not answer.
        OutOfDescriptors: There is none left, in this process or in the owner.
    """
    joined = join_owner(facts, AskReport, timeout_s, descriptors=1)
    try:
        if not isinstance(joined.message, Reported):
            raise ValueError("its answer is not a report")
        (payload,) = open_payloads(joined.answer)
        if payload.encoded[0] != KIND_BYTES:
            raise ValueError("a report is text")
        return str(payload.decode(), "utf-8", "replace")
    except (OSError, ValueError) as error:
        exhausted = out_of_descriptors(error, "to receive a report")
        raise exhausted or no_answer(facts, str(error), timeout_s) from error
    finally:
        joined.close()


def no_answer(facts: HandleFacts, why: str, timeout_s: float) -> ChannelTimeout:
    """Return the error for an owner that does not answer."""
    return ChannelTimeout(
        f"process {facts.owner_pid}, which compiled the graph, does not answer: {why}",
        timeout_s=timeout_s,
    )


def not_understood(facts: HandleFacts) -> ChannelBroken:
    """Return the error for an owner whose answer was not expected."""
    return ChannelBroken(
        f"process {facts.owner_pid}, which compiled the graph, sent an answer that this rcg "
        "does not understand: use the same version of rcg in all processes",
        peer=str(facts.owner_pid),
    )


def owner_gone(facts: HandleFacts, how: str = "is gone") -> ChannelBroken:
    """Return the error for an owner that has ended, or cannot be reached."""
    return ChannelBroken(
        f"the process {facts.owner_pid}, which compiled the graph, {how}. Its actors are usable: "
        "compile a new graph in another process.",
        peer=str(facts.owner_pid),
    )


def torn_down(facts: HandleFacts) -> ChannelClosed:
    """Return the error for a graph that its owner tore down."""
    return ChannelClosed(
        "Channel closed. The compiled graph was torn down by its owner (process "
        f"{facts.owner_pid})."
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
