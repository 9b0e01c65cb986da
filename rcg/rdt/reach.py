# SPDX-License-Identifier: Apache-2.0
"""Reaching the process that holds tensors: on its node at a local address, from others over TCP.

A process listens for other nodes from the moment when one of them first asks for it: most never
leave their node. It is asked by a task on its node, which reaches it as every process there does
and needs the same secret. So it may be busy, and it need not be an actor. The port that it then
listens at is asked for once, and again when nothing answers there: an actor that runs again has
another one.

Envelopes name the node. Of an actor of which only a handle is known, Ray has no public way to say
where it runs: then all other nodes are asked, unless an envelope of it has come by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from rcg import cluster
from rcg.error_text import describe_error
from rcg.errors import ActorDiedError, OutOfDescriptors, OutOfThreads, PlacementError
from rcg.options import Deadline
from rcg.rdt.envelope import Holder
from rcg.runtime.control.joining import Joined, check_user, join
from rcg.wire.messages import ListenForNodes, ListensForNodes, Opening

_PLACE_TIMEOUT_S: Final = 30.0  # for a node to start the task that asks where a process listens
_SOON_S: Final = 0.05  # for the keeper, which has other processes to look after
_END_TIMEOUT_S: Final = 5.0  # for the task that looks whether a process has ended
_IN_TASK_S: Final = 10.0  # for the process to answer the task, which is on its node
_MOST: Final = 10_000  # processes of other nodes that are known

# By the ids of stores, the newest: the nodes of processes, where those of other nodes listen, and
# the tasks of the keeper that ask them, each with its session.
_nodes: Final[dict[str, str]] = {}
_places: Final[dict[str, str]] = {}
_asked: Final[dict[str, tuple[str, Any]]] = {}


def reach(
    holder: Holder, opening: Opening, timeout_s: float, look: Callable[[Holder], str] | None = None
) -> Joined:
    """Connect to a process that holds tensors.

    Args:
        holder: The process.
        opening: The first message.
        timeout_s: For the connection, and to find out where a process of another node listens.
        look: Returns where that is, if it is not known yet; by default ``place_of``.

    Raises:
        ActorDiedError: The process, or its node, has ended.
        PlacementError: It cannot listen for other nodes.
        TimeoutError: There was no answer in time.
        OSError, ValueError: As ``rcg.runtime.control.joining.join``.
    """
    deadline = Deadline(timeout_s)
    if not is_elsewhere(holder):
        try:
            return join(holder.address, opening, timeout_s, check_user)
        except (ConnectionRefusedError, ConnectionAbortedError, ProcessLookupError):
            # That the kernel refused a connection is no cause that helps a user.
            if holder.node or not (holder.actor and cluster.is_connected()):
                raise ended_error(holder) from None
    known = _places.get(holder.key)
    if known is not None:
        try:
            return join(known, opening, deadline.remaining_s() or 0.0, check_user)
        except (OSError, ValueError) as error:
            _places.pop(holder.key, None)  # it has ended, and may run again elsewhere
            if isinstance(error, TimeoutError):
                raise
    left_s = deadline.remaining_s() or 0.0
    place = place_of(holder, left_s) if look is None else look(holder)
    if holder.node:
        note_node(holder)
    try:
        return join(place, opening, deadline.remaining_s() or 0.0, check_user)
    except (OSError, ValueError):
        _places.pop(holder.key, None)
        raise


def is_elsewhere(holder: Holder) -> bool:
    """Whether a process is known to be on another node than this one."""
    return bool(holder.node) and cluster.is_connected() and holder.node != cluster.node_id()


def note_node(holder: Holder) -> None:
    """Note the node of a process, for those who have only its handle."""
    _note(_nodes, holder.key, holder.node)


def place_of(holder: Holder, timeout_s: float = _PLACE_TIMEOUT_S) -> str:
    """Return the address of TCP at which a process of another node listens.

    Raises:
        ActorDiedError: The process, or its node, has ended.
        OutOfDescriptors, OutOfThreads: It has none left to listen.
        PlacementError: It cannot listen for other nodes.
        TimeoutError: There was no answer in time.
    """
    deadline = Deadline(timeout_s)
    known = holder.node or _nodes.get(holder.key)
    if known:
        place = _first_place(holder, [_ask(known, [holder])], deadline)
    if not known or (not place and not holder.node):  # or it runs again elsewhere
        others = [each for each in cluster.other_nodes() if each != known]
        place = _first_place(holder, [_ask(each, [holder]) for each in others], deadline)
    if not place:
        raise ended_error(holder)
    return place


def place_if_known_of(holder: Holder, timeout_s: float) -> str:
    """As ``place_of``, but of a process whose node is not known nobody is asked."""
    if not holder.node and holder.key not in _nodes:
        raise ended_error(holder)
    return place_of(holder, timeout_s)


def place_soon_of(holder: Holder) -> str:
    """As ``place_of``, for the keeper: asks one node, and waits for a moment only.

    Of a process whose node is not known it has no news: that has made nothing that came here.
    """
    node = holder.node or _nodes.get(holder.key)
    if not node:
        raise ended_error(holder)
    session = cluster.session()
    asked_in, task = _asked.get(holder.key, ("", None))
    if asked_in != session:
        task = _ask(node, [holder])
        _note(_asked, holder.key, (session, task))
    answers = [_first_answer([task], Deadline(_SOON_S))]
    if answers[0] is not None:
        _asked.pop(holder.key, None)
    place = _place_in(holder, answers)
    if not place:
        raise ended_error(holder)
    return place


def find_all(holders: Sequence[Holder], timeout_s: float) -> list[Holder]:
    """Ask all other nodes for several processes, by one task each.

    Returns:
        Those that were found, and can be reached now.
    """
    unknown = [each for each in holders if each.actor and not each.node]
    if not unknown or not cluster.is_connected():
        return []
    tasks = [_ask(each, unknown) for each in cluster.other_nodes()]
    deadline = Deadline(timeout_s)
    while tasks:
        ready, tasks = cluster.wait(tasks, timeout_s=deadline.remaining_s())
        for answers in map(_answers_of, ready):
            for holder, answer in zip(unknown, answers, strict=False):
                if isinstance(answer, str) and answer:
                    _note(_places, holder.key, answer)
        if not ready:
            break
    return [each for each in unknown if each.key in _places]


def _ask(node: str, holders: Sequence[Holder]) -> Any:
    return cluster.run_on_node(node, _ask_to_listen, [tuple(each) for each in holders])


def _first_place(holder: Holder, tasks: list[Any], deadline: Deadline) -> str:
    """Return where a process listens, as the first of several tasks says; "" if all find nothing.

    Raises:
        TimeoutError, PlacementError, OutOfDescriptors, OutOfThreads: As ``place_of``.
    """
    return _place_in(holder, [_first_answer(tasks, deadline)])


def _first_answer(tasks: list[Any], deadline: Deadline) -> str | Exception | None:
    """Return the first place that a task found, else why none did, or ""; None if it is late."""
    problem: Exception | None = None
    while tasks:
        ready, tasks = cluster.wait(tasks, timeout_s=deadline.remaining_s())
        if not ready:
            return None
        (answer, *_) = _answers_of(ready[0])
        if isinstance(answer, str) and answer:
            return answer
        problem = problem or answer or None
    return problem or ""


def _place_in(holder: Holder, answers: list[str | Exception | None]) -> str:
    """Return the place that is the only answer, which is taken out, or raise the error that it is.

    No name here stands for what is raised: its traceback would hold this frame, and this frame it.
    """
    if isinstance(answers[0], str):
        if answers[0]:
            _note(_places, holder.key, answers[0])
        return answers[0]
    if answers[0] is None:
        raise TimeoutError(f"{holder.label}, on another node, was not reached in time")
    if isinstance(answers[0], TimeoutError | OutOfDescriptors | OutOfThreads):
        raise cast("Exception", answers.pop())
    raise PlacementError(
        f"{holder.label} cannot be reached from other nodes: {describe_error(answers[0])}"
    )


def _answers_of(task: Any) -> Sequence[str | Exception]:
    """Return for each process where it listens, or why it does not; "" for one that is not there.

    If the task failed, there is one answer.
    """
    try:
        found: Sequence[str | Exception] = cluster.get(task)
    except Exception as error:  # noqa: BLE001 - said to users
        return ["" if cluster.is_node_gone(error) else error]
    return found


def lives(holder: Holder) -> bool | None:
    """Return whether a process of another node lives; None if its node does not say so in time."""
    _places.pop(holder.key, None)
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


def _note(known: dict[str, Any], key: str, value: Any) -> None:
    known.pop(key, None)
    known[key] = value
    while len(known) > _MOST:
        known.pop(next(iter(known)), None)


def _ask_to_listen(several: Sequence[tuple[str, ...]]) -> list[str | Exception]:
    """Ask processes of this node to listen for others: in a task.

    Returns:
        For each where it listens, or why it does not; "" for one that is not here.
    """
    host = cluster.node_ip()
    return [_listening(Holder(*each), host) for each in several]


def _listening(holder: Holder, host: str) -> str | Exception:
    question = ListenForNodes(graph=holder.key, secret=holder.secret, host=host)
    try:
        joined = join(holder.address, question, _IN_TASK_S, check_user)
    except (ConnectionRefusedError, ConnectionAbortedError, ProcessLookupError):
        return ""
    except Exception as error:  # noqa: BLE001 - raised where it was asked for
        return error
    message = joined.message
    joined.close()
    if not isinstance(message, ListensForNodes):
        return ValueError("what answers there is no such process")
    return message.address or PlacementError(message.trouble)
