# SPDX-License-Identifier: Apache-2.0
"""Reaching the process that holds tensors: on its node at a local address, from others over TCP.

A process listens for other nodes from the moment when one of them first asks for it: most never
leave their node. It is asked by a task on its node, which reaches it as every process there does
and needs the same secret. So it may be busy, and it need not be an actor. The port that it then
listens at is asked for once, and again when nothing answers there: an actor that runs again has
another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rcg import cluster
from rcg.error_text import describe_error
from rcg.errors import ActorDiedError, PlacementError, RcgError
from rcg.options import Deadline
from rcg.rdt.envelope import Holder
from rcg.runtime.control.joining import Joined, check_user, join
from rcg.wire.messages import ListenForNodes, ListensForNodes, Opening

PLACE_TIMEOUT_S: Final = 30.0
"""How long a node may take to start the task that asks where a process listens."""

_SOON_S: Final = 0.2  # for the keeper, which has other processes to look after
_FIRST_PAUSE_S: Final = 0.2  # until it asks again for a process that was nowhere
_LAST_PAUSE_S: Final = 10.0
_END_TIMEOUT_S: Final = 5.0  # for the task that looks whether a process has ended
_IN_TASK_S: Final = 10.0  # for the process to answer the task, which is on its node


@dataclass(slots=True)
class _Search:
    """What the keeper knows of a process that it has not found yet.

    Attributes:
        tasks: Those that look for it.
        pause_s: How long to wait before the next ones.
        next_s: When these may start.
    """

    tasks: list[Any] = field(default_factory=list)
    pause_s: float = _FIRST_PAUSE_S
    next_s: float = 0.0


# By the ids of stores: where processes of other nodes listen, and what the keeper looks for.
_places: Final[dict[str, str]] = {}
_searches: Final[dict[str, _Search]] = {}


def reach(
    holder: Holder, opening: Opening, timeout_s: float, look: Callable[[Holder], str] | None = None
) -> Joined:
    """Connect to a process that holds tensors.

    Args:
        holder: The process.
        opening: The first message.
        timeout_s: For the connection.
        look: Returns where a process of another node listens, if that is not known yet; by default
            ``place_of``.

    Raises:
        ActorDiedError: The process, or its node, has ended.
        PlacementError: It cannot listen for other nodes.
        TimeoutError: There was no answer in time.
        OSError, ValueError: As ``rcg.runtime.control.joining.join``.
    """
    if not is_elsewhere(holder):
        try:
            return join(holder.address, opening, timeout_s, check_user)
        except (ConnectionRefusedError, ConnectionAbortedError, ProcessLookupError):
            # That the kernel refused a connection is no cause that helps a user.
            if holder.node or not (cluster.is_connected() and cluster.has_other_nodes()):
                raise ended_error(holder) from None
    known = _places.get(holder.key)
    if known is not None:
        try:
            return join(known, opening, timeout_s, check_user)
        except (ConnectionError, PermissionError):
            _forget(holder)  # it has ended, and may run again elsewhere
    place = (look or place_of)(holder)
    try:
        return join(place, opening, timeout_s, check_user)
    except (ConnectionError, PermissionError):
        _forget(holder)
        raise


def is_elsewhere(holder: Holder) -> bool:
    """Whether a process is known to be on another node than this one."""
    return bool(holder.node) and cluster.is_connected() and holder.node != cluster.node_id()


def place_of(holder: Holder, timeout_s: float = PLACE_TIMEOUT_S) -> str:
    """Return the address of TCP at which a process of another node listens.

    Raises:
        ActorDiedError: The process, or its node, has ended.
        PlacementError: It cannot listen for other nodes.
        TimeoutError: There was no answer in time.
    """
    return _places.get(holder.key) or _first_place(holder, _look_for(holder), Deadline(timeout_s))


def place_soon_of(holder: Holder) -> str:
    """As ``place_of``, for the keeper: waits for a moment only, and does not ask all the time.

    It may ask for an actor that is being created, or for one that is dead, as long as somebody has
    a reference to what that made.
    """
    found = _places.get(holder.key)
    if found is not None:
        return found
    search = _searches.setdefault(holder.key, _Search())
    now = time.monotonic()
    if not search.tasks:
        if now < search.next_s:
            raise TimeoutError(f"{holder.label} was not there, and is not asked for now")
        search.tasks = _look_for(holder)
        search.next_s = now + search.pause_s
        search.pause_s = min(2 * search.pause_s, _LAST_PAUSE_S)
    try:
        place = _first_place(holder, search.tasks, Deadline(_SOON_S))
    except TimeoutError:
        raise  # they go on
    except BaseException:
        search.tasks = []
        raise
    del _searches[holder.key]
    return place


def _look_for(holder: Holder) -> list[Any]:
    """Start tasks that ask where a process listens: on its node, or on all if that is unknown."""
    nodes = [holder.node] if holder.node else cluster.other_nodes()
    return [cluster.run_on_node(each, _ask_to_listen, tuple(holder)) for each in nodes]


def _first_place(holder: Holder, tasks: list[Any], deadline: Deadline) -> str:
    """Return what the first of several tasks has found; raises as ``place_of``."""
    left, place, trouble = tasks, "", ""
    while left and not place and not trouble:
        ready, left = cluster.wait(left, timeout_s=deadline.remaining_s())
        if not ready:
            raise TimeoutError(f"{holder.label}, on another node, was not reached in time")
        place, trouble = _answer_of(ready[0])
    if trouble:
        raise PlacementError(f"{holder.label} cannot be reached from other nodes: {trouble}")
    if not place:
        raise ended_error(holder)
    _places[holder.key] = place
    return place


def _answer_of(task: Any) -> tuple[str, str]:
    """Return where a process listens, and why it does not; both "" if it is not on that node."""
    try:
        place, trouble = cluster.get(task)
    except Exception as error:  # noqa: BLE001 - said to users
        return "", "" if cluster.is_node_gone(error) else describe_error(error)
    return place, trouble


def lives(holder: Holder) -> bool | None:
    """Return whether a process of another node lives; None if its node does not say so in time."""
    _forget(holder)
    try:
        place_of(holder, _END_TIMEOUT_S)
    except ActorDiedError:
        return False
    except Exception:  # noqa: BLE001 - Ray may be going down
        return None
    return True


def ended_error(holder: Holder) -> ActorDiedError:
    """Return the error for a process that has ended."""
    return ActorDiedError(
        f"{holder.label}, which held the tensors, has ended, and they with it. Make them again"
    )


def _forget(holder: Holder) -> None:
    _places.pop(holder.key, None)


def _ask_to_listen(fields: tuple[str, ...]) -> tuple[str, str]:
    """Ask a process of this node to listen for others: in a task.

    Returns:
        Where it listens, and why it does not; both "" if it is not here.
    """
    holder = Holder(*fields)
    question = ListenForNodes(graph=holder.key, secret=holder.secret, host=cluster.node_ip())
    try:
        joined = join(holder.address, question, _IN_TASK_S, check_user)
    except (ConnectionRefusedError, ConnectionAbortedError, ProcessLookupError):
        return "", ""
    except (OSError, ValueError, RcgError) as error:
        return "", describe_error(error)
    message = joined.message
    joined.close()
    if not isinstance(message, ListensForNodes):
        return "", "what answers there is no such process"
    return message.address, message.trouble
