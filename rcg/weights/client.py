# SPDX-License-Identifier: Apache-2.0
"""What a publisher and a reader share: they ask the owner, hold a version, and end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from rcg import cluster
from rcg.error_text import describe_error, without_frames
from rcg.errors import ActorDiedError, OutOfThreads, RcgError
from rcg.log import Log
from rcg.options import FOR_EVER, Deadline
from rcg.progress import Progress
from rcg.rdt.connection import Connection
from rcg.rdt.envelope import Holder
from rcg.rdt.process import here
from rcg.rdt.samples import Sample
from rcg.rdt.store import Entry, Versions
from rcg.text import bytes_text, plural
from rcg.threads import run_together, start_thread
from rcg.weights.owner import Owner, Roll, Unused
from rcg.weights.shards import Member, Shards
from rcg.wire.messages import AskHeld

TRANSPORT: Final = "weights"  # in reports and profiles

_NAME: Final = "rcg.weights"
_ROLL_NAME: Final = "rcg.weights.roll"
_NAMESPACE: Final = "rcg"
_START_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 0.1
_MOST_RETRY_S: Final = 5.0
_LEAVE_TIMEOUT_S: Final = 2.0
_REPORT_TIMEOUT_S: Final = 2.0
_MOST_CALLS: Final = 10_000  # that wait at the same time
_TURN_S: Final = 1.0  # between two looks at whether those who are waited for are alive
_LOOK_S: Final = 2.0  # for one that is looked at to answer
_ANSWER_S: Final = 0.1  # beyond a deadline, for the owner's answer to arrive
_MOST_AT_ONCE: Final = 16  # are looked at
_MEGABYTE: Final = 1_000_000
_NONE: Final[Mapping[int, Any]] = MappingProxyType({})

_log = Log()

_lock: Final = threading.Lock()
_handles: Final[dict[str, Any]] = {}  # of the owner, by the id of this node: a session has its own


class Client:
    """A publisher or reader of weights, in the process that made it.

    It ends when it is closed, when nobody refers to it, and with its process.

    Attributes:
        name: The name.
    """

    def __init__(
        self,
        name: str,
        shards: Shards,
        *,
        is_publisher: bool = False,
        is_alone: bool = False,
        spare_bytes: int = 0,
    ) -> None:
        self.name = name
        self._here = here()
        holder = self._here.holder_now()
        self._member = Member(
            *(holder.label, dict(shards), secrets.token_hex(8), tuple(holder), self._here.pid),
            *(is_publisher, is_alone, spare_bytes),
        )
        self._lock = threading.Lock()  # held by a call that changes the version here
        self._numbers = itertools.count()
        self._keys: list[str] = []  # of the version of it in the store of this process
        self._here.store.clients.add(self._member.id)
        self._ending = _Ending(self, name, self._member.id, self._keys)

    @property
    def bytes(self) -> int:
        """The bytes of the tensors of this process."""
        return self._member.nbytes

    def close(self) -> None:
        """End it; idempotent."""
        self._ending.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _describe(self, version: int | None) -> str:
        count = plural(len(self._member.shards), "tensor")
        state = "no version yet" if version is None else f"version {version}"
        state = "closed" if self._ending.is_over else state
        return f"{type(self).__name__} of {self.name!r}: {count}, {bytes_text(self.bytes)}, {state}"

    def _check_open(self) -> None:
        if self._ending.is_over:
            raise ValueError(f"this {type(self).__name__.lower()} of {self.name!r} is closed")

    def _register(self) -> None:
        """Present this client to the owner, now and whenever it runs again."""
        self._check_open()  # another thread may wait meanwhile
        self._present()
        again = weakref.WeakMethod(self._register_again)
        when_owner_dies(again, "stay", self.name, self._member.id)

    def _register_again(self) -> None:
        if not self._ending.is_over:
            self._register()

    def _present(self) -> None:
        """Tell the owner who this is, and what it has."""
        raise NotImplementedError

    def _ask(self, method: str, *args: Any, within_s: float | None = None) -> Any:
        """Return what the owner answers to this client, which is registered first if need be.

        Args:
            method: The name of the method of ``Owner``, which returns None or False to strangers.
            *args: Its arguments after the name and the id.
            within_s: As in ``ask``.
        """
        about = self.name, self._member.id, *args
        while (answer := ask(method, *about, within_s=within_s)) is None or answer is False:
            self._register()
        return answer

    @property
    def _key(self) -> str:
        """The key of the version that others can read here; "" if there is none."""
        return self._keys[0] if self._keys else ""

    def _keep(
        self, version: int, payloads: Sequence[Any], watched: Mapping[int, Any] = _NONE
    ) -> Entry:
        """Make a version an object of this process's store, which others can read.

        Args:
            version: Its number.
            payloads: The bytes of its tensors: of uint8 [n].
            watched: The user's own among them, by their numbers: nobody may write to these while
                it is there.

        Raises:
            ValueError: This client was closed meanwhile.
        """
        key = f"{self._member.id}-{next(self._numbers)}"
        made = Entry(
            key=key,
            value=list(watched.values()),
            contents=_Sizes(
                tuple(each.numel() for each in payloads),
                tuple(each.device.type for each in payloads),
            ),
            payloads=payloads,
            transport=TRANSPORT,
            name=f"Version {version} of the weights {self.name!r}",
            advice="Call wait(version) of its publisher before writing, or publish(copy=True)",
        )
        made.versions = Versions(made.value)  # a store looks at the first ones of a value only
        made.sample = Sample(payloads, watched) if watched else None
        self._keys[:] = [key]
        self._here.store.keep(self._keys, self._member.id)
        self._here.store.add(made)
        if self._ending.is_over:  # since then: what it freed was not there yet
            self._free()
            self._check_open()
        return made

    def _free(self) -> None:
        """Let nobody read the version here any more."""
        self._here.store.free(self._keys)
        self._keys.clear()


class Moved:
    """Shows how many of all bytes were moved, once that takes long; see ``rcg.progress``."""

    def __init__(self, label: str, size: int) -> None:
        self._shown: Progress[Any] = Progress(max(1, size // _MEGABYTE), label)
        self._shown_mb = self._bytes = 0

    def begin(self, label: str) -> None:
        """Say what is being done now; counting begins again."""
        self._bytes = 0
        self._shown.start(label)

    def came(self, size: int) -> None:
        """Count bytes."""
        self._bytes += size
        more_mb = max(
            0, (self._bytes // _MEGABYTE) - self._shown_mb
        )  # none of what was read before
        self._shown_mb += more_mb
        self._shown.advance(more_mb)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()


class _Sizes(NamedTuple):
    """The contents of a version, for the store: nothing but the sizes of its tensors."""

    sizes: tuple[int, ...]
    devices: tuple[str, ...]

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the tensors' bytes."""
        return list(payloads)


class _Ending:
    """What ends with a client: its version is freed, and the owner forgets it."""

    def __init__(self, client: Client, name: str, which: str, keys: list[str]) -> None:
        self.is_over = False
        self._about = name, which
        self._store, self._keys = here().store, keys
        self._pid = os.getpid()
        # It may be dropped in the middle of anything, also of Ray's code: another thread ends it.
        self._dropped = weakref.finalize(client, self._end_later)
        self._dropped.atexit = False
        _endings.add(self)

    def end(self) -> None:
        """End it; idempotent."""
        if not self.is_over:
            self.is_over = True
            self._dropped.detach()
            _endings.discard(self)
            if self._pid != os.getpid():
                return  # of the process that has forked this one
            self._store.free(self._keys)
            self._store.clients.discard(self._about[1])
            _leave(*self._about)

    def _end_later(self) -> None:
        with contextlib.suppress(OutOfThreads):  # then it is found to be gone with this process
            thread = threading.Thread(target=self.end, name="rcg-weights-end", daemon=True)
            start_thread(thread, "to say that weights are not needed any more")


_endings: Final[set[_Ending]] = set()  # a list of it is made in one step, beside other threads


@atexit.register
def _end_all() -> None:
    for each in list(_endings):
        each.end()


def leave_cluster() -> None:
    """End all publishers and readers: this process leaves its cluster."""
    _end_all()
    _forget_owner()


def ask(method: str, *args: Any, within_s: float | None = None) -> Any:
    """Return what the owner answers; it is started if there is none.

    Args:
        method: The name of the method of ``Owner``.
        *args: Its arguments.
        within_s: How long an answer may take; None sets no limit.

    Raises:
        RcgError: It cannot be reached.
        TimeoutError: It does not answer in time.
    """
    return _ask(owner_handle, within_s, method, *args)


def ask_if_there(method: str, *args: Any) -> Any:
    """Return what the owner answers; None if there is none. Otherwise as ``ask``."""
    return _ask(_handle_if_there, None, method, *args)


def _ask(find: Callable[[], Any], within_s: float | None, method: str, *args: Any) -> Any:
    node = cluster.node_id()
    until_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        handle = find()
        if handle is None:
            return None
        try:
            return cluster.get(getattr(handle, method).remote(*args), timeout_s=within_s)
        except Exception as error:
            if within_s is not None and isinstance(error, TimeoutError):
                raise TimeoutError(
                    "the actor that knows who publishes weights did not answer in time"
                ) from None
            if isinstance(error, Unused):
                cluster.kill(handle)
            elif not cluster.is_actor_death(error):
                raise
            problem = describe_error(without_frames(error))
        _forget_owner()
        # Outside of a cluster Ray would start one.
        has_left = not cluster.is_connected() or cluster.node_id() != node
        if has_left or time.monotonic() > until_s:
            raise RcgError(f"the actor that knows who publishes weights is not there: {problem}")
        time.sleep(_RETRY_S)


def when_owner_dies(again: weakref.WeakMethod[Callable[[], None]], method: str, *args: Any) -> None:
    """Call a method of the owner that only ends with it, and ``again`` then, on a thread.

    ``again`` is tried until it succeeds, while this process stays in its cluster. If it fails for
    long, a warning says why.
    """
    node = cluster.node_id()

    def retry() -> None:
        _forget_owner()
        pause_s, until_s, has_told = _RETRY_S, time.monotonic() + _START_TIMEOUT_S, False
        while True:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_RETRY_S)
            call = again()
            # Ray starts a cluster for whoever asks it outside of one.
            if call is None or not cluster.is_connected() or cluster.node_id() != node:
                return
            try:
                call()
                return
            except Exception as error:  # noqa: BLE001 - also of the user's cluster
                problem = describe_error(without_frames(error))
            del call  # who is not used any more ends
            if not has_told and time.monotonic() > until_s:
                has_told = True
                _log.warning("rcg: goes on to register %s once more: %s", args[0], problem)

    def start(error: BaseException) -> None:
        if cluster.is_actor_death(error):
            thread = threading.Thread(target=retry, name="rcg-weights-again", daemon=True)
            with contextlib.suppress(OutOfThreads):
                start_thread(thread, "to register with the actor that knows who reads weights")

    cluster.when_failed(getattr(owner_handle(), method).remote(*args), start)


def owner_handle() -> Any:
    """Return Ray's handle of the owner, which is started if there is none."""
    with _lock:
        node = cluster.node_id()
        if node not in _handles:
            open_roll()  # so that both processes start at the same time
            _handles.clear()
            owner = cluster.remote(**_options(_NAME), max_restarts=-1)(Owner)
            _handles[node] = owner.remote(open_roll)
        return _handles[node]


def open_roll() -> Any:
    """Return Ray's handle of the roll, which is started if there is none."""
    return cluster.remote(**_options(_ROLL_NAME))(Roll).remote()


def _options(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": _NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_concurrency": _MOST_CALLS,
    }


def _handle_if_there() -> Any:
    """Return Ray's handle of the owner; None if there is none."""
    with _lock:
        handle = _handles.get(cluster.node_id())
    if handle is not None:
        return handle
    try:
        return cluster.get_actor(_NAME, _NAMESPACE)
    except ValueError:
        return None


def _forget_owner() -> None:
    """Forget how the owner is reached: it has died, or this process leaves its cluster."""
    with _lock:
        _handles.clear()


def _leave(name: str, which: str) -> None:
    """Make the owner forget a client; the last one ends the owner."""
    with contextlib.suppress(Exception):  # the cluster may be gone, or the owner
        handle = _handle_if_there() if cluster.is_connected() else None
        if handle is None:
            return
        if cluster.get(handle.leave.remote(name, which), timeout_s=_LEAVE_TIMEOUT_S):
            cluster.kill(handle)
            _forget_owner()
            cluster.kill(cluster.get_actor(_ROLL_NAME, _NAMESPACE))


def describe_soon() -> Any:
    """Return what ``Owner.describe`` does; None if there is no owner, or it is late."""
    if not cluster.is_connected():
        return None
    with contextlib.suppress(Exception):  # a report says what it can
        handle = cluster.get_actor(_NAME, _NAMESPACE)
        return cluster.get(handle.describe.remote(), timeout_s=_REPORT_TIMEOUT_S)
    return None


def turn_of(deadline: Deadline) -> float:
    """Return how long to wait, in seconds, until the next look at who is alive."""
    left_s = deadline.remaining_s()
    return _TURN_S if left_s is None else min(_TURN_S, left_s)


def limit_of(deadline: Deadline) -> float | None:
    """Return how long the owner may take to answer a question that it answers by the deadline."""
    left_s = deadline.remaining_s()
    return None if left_s is None else left_s + _ANSWER_S


def leave_dead(name: str, members: Sequence[Member], deadline: Deadline = FOR_EVER) -> bool:
    """Report those that have died to the owner; returns whether there were any.

    Those that do not say so by the deadline are taken to live.
    """
    died: list[Member] = []

    def look(member: Member) -> None:
        left_s = deadline.remaining_s()
        if not _lives(member, _LOOK_S if left_s is None else min(_LOOK_S, left_s)):
            died.append(member)

    run_together([functools.partial(look, each) for each in members], "rcg-weights", _MOST_AT_ONCE)
    for each in died:
        ask("leave", name, each.id, True)
    return bool(died)


def _lives(member: Member, within_s: float) -> bool:
    """Whether a publisher or reader is in its process, as far as that says so now."""
    if member.pid == os.getpid() and member.address[1] == here().holder.key:
        return member.id in here().store.clients
    try:
        with contextlib.closing(Connection(Holder(*member.address), "", within_s)) as connection:
            found = json.loads(connection.observe(lambda number: AskHeld(number=number)))
    except ActorDiedError:
        return False
    except Exception:  # noqa: BLE001 - it does not answer now: the next look tells
        return True
    return member.id in found["clients"]  # if not, it was closed, or its actor was restarted
