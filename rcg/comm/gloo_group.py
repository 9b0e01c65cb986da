# SPDX-License-Identifier: Apache-2.0
"""Building a process group of Gloo: it is connected when it is there, and can be aborted.

The group is built directly and never registered with ``torch.distributed``, so the user's default
group stays as it is. Its sockets listen at the address of this rank alone: that of the loopback
device, unless ranks are on other nodes.

Gloo cannot cancel anything. Only the shutdown of the sockets between the ranks ends its calls, so
these are found among the descriptors of the process: a connection belongs to the group if one end
has the address of a rank's listening socket, which Gloo publishes through the store. The listening
socket is left alone: Gloo ends the process if that fails.

Gloo takes whatever connects to a listening socket for a rank. So each rank publishes through the
store which connections it has, and one that no other rank has fails the attempt.

While Gloo connects, it cannot be ended at all. All ranks wait for each other first, so connecting
takes milliseconds; if a rank is lost just then, Gloo gives up after a short time. Then the ranks
agree to try again; closing the store ends the wait for that.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from rcg.comm.base import Membership, exchange
from rcg.descriptors import exhaustion_in, out_of_descriptors
from rcg.errors import CommError, GroupAborted, Unavailable
from rcg.options import Deadline

_CONNECT_TIMEOUT_S: Final = 1.5
_TIMEOUTS_OF_A_CONNECTION: Final = 5  # Gloo waits for a connection that many times its timeout
_ATTEMPTS: Final = 5

_Address = tuple[str, int]
"""A host, in numbers, and a port."""


@dataclass(slots=True)
class Group:
    """A process group whose ranks are connected."""

    process_group: Any  # a ``torch.distributed.ProcessGroupGloo``
    # Own descriptors of the sockets to the other ranks: the numbers of Gloo's may belong to
    # something else once Gloo has closed them.
    connections: tuple[socket.socket, ...]

    def drop(self) -> None:
        """Close all of it."""
        self.process_group = None
        for connection in self.connections:
            connection.close()


def distributed() -> Any:
    """Return ``torch.distributed`` with Gloo, or raise ``Unavailable``."""
    try:
        found = importlib.import_module("torch.distributed")
    except ImportError as error:
        raise Unavailable(
            "the transport gloo needs PyTorch: pip install 'rcg[torch]'", transport="gloo"
        ) from error
    if not found.is_available() or not hasattr(found, "ProcessGroupGloo"):
        raise Unavailable("this PyTorch is built without Gloo", transport="gloo")
    return found


def build(membership: Membership) -> Group:
    """Meet the other ranks and connect to them; see ``Communicator.open``."""
    dist = distributed()  # importing it takes seconds: before the others are made to wait
    deadline = Deadline(membership.timeout_s)
    answers = exchange(membership, "here", membership.host.encode(), deadline)
    hosts = frozenset(answer.decode(errors="replace") for answer in answers)
    failures: list[str] = []
    for attempt in range(_ATTEMPTS):
        group, failure = _try_build(dist, membership, hosts, f"{attempt}", deadline)
        try:
            answers = exchange(membership, f"{attempt}/built", _outcome(group, failure), deadline)
        except BaseException:
            if group is not None:
                group.drop()
            raise
        failures = _failures(membership.labels, answers)
        if not failures and group is not None:
            return group
        if group is not None:
            group.drop()
    raise CommError(
        f"the ranks of group {membership.group} cannot connect: {'; '.join(failures)}",
        group=membership.group,
        rank=membership.rank,
    )


def _outcome(group: Group | None, failure: str) -> bytes:
    """Return a rank's outcome of an attempt: why it failed, or ''; and its connections."""
    found = set() if group is None else {_name_of(each) for each in group.connections}
    return json.dumps([failure[:1000], sorted(found)]).encode()


def _name_of(connection: socket.socket) -> str:
    """Return a short name of a connection, which is the same at both of its ends."""
    ends = sorted(map(str, _ends_of(connection)))
    return hashlib.sha256(" ".join(ends).encode()).hexdigest()[:16]


def _failures(labels: Sequence[str], answers: Sequence[bytes]) -> list[str]:
    """Return why an attempt failed, from the ``_outcome`` of all ranks; nothing if it did not."""
    outcomes = [json.loads(answer) for answer in answers]
    failures = [f"{label}: {why}" for label, (why, _) in zip(labels, outcomes, strict=True) if why]
    counts = Counter(name for _, names in outcomes for name in names)
    return failures or [
        f"{label}: it is connected to something that is no rank of the group"
        for label, (_, names) in zip(labels, outcomes, strict=True)
        if any(counts[name] < 2 for name in names)
    ]


def _try_build(
    dist: Any, membership: Membership, hosts: frozenset[str], step: str, deadline: Deadline
) -> tuple[Group | None, str]:
    """Build the group; returns why that failed, or ''. Errors of the store are raised."""
    store = _store_class()(membership, hosts, step, deadline)
    process_group: Any = None
    try:
        options = dist.ProcessGroupGloo._Options()
        left = deadline.remaining_s()
        wait_s = _CONNECT_TIMEOUT_S if left is None else min(left, _CONNECT_TIMEOUT_S)
        options._timeout = timedelta(seconds=max(wait_s, 0.05) / _TIMEOUTS_OF_A_CONNECTION)
        device = dist.ProcessGroupGloo.create_device(hostname=membership.host, lazy_init=False)
        options._devices = [device]
        process_group = dist.ProcessGroupGloo(store, membership.rank, membership.size, options)
        return Group(process_group, _connections(store.listeners, membership)), ""
    except (GroupAborted, TimeoutError):
        raise
    except (RuntimeError, ValueError, LookupError, MemoryError, OSError, CommError) as error:
        exhausted = out_of_descriptors(error, f"to connect the group {membership.group}")
        if exhausted is not None:
            return None, exhausted.message
        # An exception of the store comes out of Gloo as its text alone.
        if isinstance(store.problem, (GroupAborted, TimeoutError)):
            raise store.problem from None
        return None, str(error) or type(error).__name__


@functools.cache
def _store_class() -> Any:
    """Return a class of ``torch.distributed.Store`` that uses one of ours."""
    base: Any = distributed().Store

    class GroupStore(base):
        """The store of one attempt. It keeps the listening addresses that go through it."""

        def __init__(
            self, membership: Membership, hosts: frozenset[str], step: str, deadline: Deadline
        ) -> None:
            super().__init__()
            self._patterns = {host: _address_at(host) for host in hosts}
            self._store = membership.store
            self._step = step
            self._deadline = deadline
            self.problem: BaseException | None = None  # which it has raised in Gloo
            # The addresses of the other ranks, and of this one.
            self.listeners: tuple[set[_Address], set[_Address]] = set(), set()

        def _call(self, call: Callable[..., Any], *args: Any) -> Any:
            try:
                return call(*args)
            except BaseException as error:
                self.problem = error
                raise

        def _names(self, keys: Any) -> list[str]:
            return [f"{self._step}/gloo/{key}" for key in keys]

        def set(self, key: str, value: bytes | str) -> None:
            data = value.encode() if isinstance(value, str) else bytes(value)
            self.listeners[1].update(_addresses_in(data, self._patterns))
            self._call(self._store.set, *self._names([key]), data)

        def get(self, key: str) -> bytes:
            found: bytes = self._get([key])[0]
            addresses = _addresses_in(found, self._patterns)
            self.listeners[0].update(addresses - self.listeners[1])
            return found

        def _get(self, keys: Any) -> Any:
            return self._call(self._store.get, self._names(keys), self._deadline.remaining_s())

        def wait(self, keys: Any, timeout: Any = None) -> None:
            self._get(keys)

        def check(self, keys: Any) -> Any:
            return self._call(self._store.has, self._names(keys))

        def add(self, key: str, amount: int) -> Any:
            return self._call(self._store.add, *self._names([key]), amount)

        def set_timeout(self, timeout: Any) -> None:
            """Do nothing: the deadline of ``open`` counts."""

        def has_extended_api(self) -> bool:
            return False

    return GroupStore


def _addresses_in(data: bytes, patterns: Mapping[str, re.Pattern[bytes]]) -> set[_Address]:
    """Return all addresses at these hosts that stand in what Gloo publishes."""
    return {
        (_numbers_of(host), int.from_bytes(port, "big"))
        for host, pattern in patterns.items()
        for port in pattern.findall(data)
    }


def _address_at(host: str) -> re.Pattern[bytes]:
    """Return what finds the port in the ``sockaddr_in`` or ``sockaddr_in6`` that Gloo publishes."""
    family = _family_of(host)
    packed = re.escape(socket.inet_pton(family, host))
    before, after = (rb"", rb"\0{8}") if family == socket.AF_INET else (rb".{4}", rb"")
    return re.compile(
        re.escape(struct.pack("=H", family)) + rb"(..)" + before + packed + after, re.DOTALL
    )


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _numbers_of(host: str) -> str:
    """Return an address as the kernel writes it: one of IPv6 may be written in several ways."""
    family = _family_of(host)
    return socket.inet_ntop(family, socket.inet_pton(family, host))


def _connections(
    listeners: tuple[set[_Address], set[_Address]], membership: Membership
) -> tuple[socket.socket, ...]:
    """Return own descriptors of the connections to the other ranks, or raise ``CommError``."""
    theirs, ours = listeners
    found: list[socket.socket] = []
    try:
        for name in os.listdir("/proc/self/fd"):
            candidate = _duplicate_of_socket(int(name))
            if candidate is None:
                continue
            here, there = _ends_of(candidate)
            if here in ours or there in theirs:
                found.append(candidate)
            else:
                candidate.close()
        if len(found) < membership.size - 1:
            raise CommError(
                f"only {len(found)} of the {membership.size - 1} connections of Gloo can be found; "
                "this version of PyTorch may be one that rcg does not know",
                group=membership.group,
                rank=membership.rank,
            )
        return tuple(found)
    except BaseException:
        for connection in found:
            connection.close()
        raise


def _duplicate_of_socket(fd: int) -> socket.socket | None:
    """Return a descriptor of our own if this is one of a socket; another thread may close it."""
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
            return None
        own = os.dup(fd)
    except OSError as error:
        if exhaustion_in(error):
            raise
        return None
    try:
        return socket.socket(fileno=own)
    except BaseException as error:
        os.close(own)
        if isinstance(error, OSError):  # it is of something else by now
            return None
        raise


def _ends_of(connection: socket.socket) -> tuple[_Address | None, _Address | None]:
    """Return the (local, remote) address of a connection; (None, None) if it is none."""
    try:
        is_inet = connection.family in (socket.AF_INET, socket.AF_INET6)
        if not is_inet or connection.type != socket.SOCK_STREAM:
            return None, None
        here, there = connection.getsockname(), connection.getpeername()
    except OSError:  # it listens, or is not connected
        return None, None
    return here[:2], there[:2]
