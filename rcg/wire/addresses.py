# SPDX-License-Identifier: Apache-2.0
"""TCP addresses of endpoints: as text, listening at one, and connecting to one.

A process listens at one address of its machine, at any free port or within the range that
``RCG_PORT_RANGE`` names. An error names both ends of the connection, because what is in the way is
most often between them.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Final

from rcg.errors import PlacementError
from rcg.options import PORT_RANGE
from rcg.wire.liveness import close_in_children

_SCHEME: Final = "tcp://"
_BACKLOG: Final = 128
_KIND: Final = socket.SOCK_STREAM | socket.SOCK_CLOEXEC
_DATAGRAM: Final = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
_TAKEN: Final = (errno.EADDRINUSE, errno.EACCES)  # the second: a port of the system's
_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True, order=True)
class TcpAddress:
    """Where a process listens for other nodes.

    Raises:
        ValueError: The host is no such address, or the port is none.

    >>> str(TcpAddress("10.0.0.1", 20000)), str(TcpAddress("::1", 80))
    ('tcp://10.0.0.1:20000', 'tcp://[::1]:80')
    >>> TcpAddress.parse("tcp://[::1]:80").host
    '::1'
    """

    host: str  # an address of IPv4 or IPv6, in numbers: of one interface, not of all
    port: int

    def __post_init__(self) -> None:
        _check_host(self.host)
        if type(self.port) is not int or not 1 <= self.port <= _MAX_PORT:
            raise ValueError(f"a port is a number from 1 to {_MAX_PORT}, found {self.port!r}")

    def __str__(self) -> str:
        return f"{_SCHEME}{_pair(self.host, self.port)}"

    @classmethod
    def parse(cls, text: str) -> TcpAddress:
        """Return the address that a text is; raises ValueError for any other text."""
        host, colon, port = text.removeprefix(_SCHEME).rpartition(":")
        if ":" in host:
            if not (host.startswith("[") and host.endswith("]")):
                colon = ""
            host = host[1:-1]
        if not is_tcp(text) or not colon or not (port.isascii() and port.isdigit()):
            raise ValueError(f"{text!r} is no address such as tcp://10.0.0.1:20000")
        return cls(host, int(port))


def is_tcp(text: str) -> bool:
    """Whether a text is the address of an endpoint that other nodes reach; others are local."""
    return text.startswith(_SCHEME)


def listen_tcp(host: str, ports: range | None = None) -> tuple[socket.socket, TcpAddress]:
    """Return a socket that listens at an address of this machine; its ``accept`` does not wait.

    Args:
        host: The address; connections to other addresses of this machine are not accepted.
        ports: The first of these that is free is taken; None for any.

    Raises:
        ValueError: ``host`` is no address.
        PlacementError: No port of the range is free, or the address is not one of this machine.
        OSError: There is no descriptor left.
    """
    _check_host(host)
    choices = range(1) if ports is None else ports  # 0 is any
    for port in choices:
        listener = socket.socket(_family_of(host), _KIND)
        try:
            # A port whose last connections have only just ended is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            return listener, TcpAddress(host, listener.getsockname()[1])
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRNOTAVAIL:
                raise PlacementError(
                    f"{host} is no address of this machine, so rcg cannot listen there for other "
                    "nodes",
                    location=host,
                ) from error
            if error.errno not in _TAKEN or ports is None:
                raise
        except BaseException:
            listener.close()
            raise
    raise PlacementError(
        f"no port from {choices[0]} to {choices[-1]} is free at {host}: each process that other "
        f"nodes reach takes one. Set {PORT_RANGE} to more ports",
        location=host,
    )


def connect_tcp(address: TcpAddress, timeout_s: float) -> socket.socket:
    """Return a socket that is connected to an address.

    Raises:
        ConnectionRefusedError: Nothing listens there, or a firewall refuses.
        TimeoutError: There was no answer in time.
        OSError: There is no way there, or no descriptor left.
    """
    connection = close_in_children(socket.socket(_family_of(address.host), _KIND))
    try:
        connection.settimeout(timeout_s)
        connection.connect((address.host, address.port))
        if connection.getsockname() == connection.getpeername():
            # Nothing listens, and the kernel gave the connection the very port that it goes to.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError):
            _raise_with_ends(error, address)
        raise


def ends_of(address: TcpAddress) -> str:
    """Return both ends of a connection to an address, for people."""
    return f"from {_here(address)} to {_pair(address.host, address.port)}"


def _raise_with_ends(error: OSError, address: TcpAddress) -> None:
    """Raise the error with both ends of the connection, where that helps.

    No local name may hold what is raised: it would hold this frame, and with it those of all
    callers, until Python collects cycles.
    """
    question = (
        "is the port open between these nodes? Set RCG_PORT_RANGE to a range of ports that a "
        "firewall lets through"
    )
    ends = ends_of(address)
    if isinstance(error, ConnectionRefusedError):
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, f"{ends}: connection refused: the process has ended, or {question}"
        ) from error
    if isinstance(error, TimeoutError):
        raise TimeoutError(errno.ETIMEDOUT, f"{ends}: timed out: {question}") from error
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM):
        raise OSError(error.errno, f"{ends}: {os.strerror(error.errno)}: {question}") from error


def _here(address: TcpAddress) -> str:
    """Return the address of this machine from which the kernel connects to another."""
    with contextlib.suppress(OSError), socket.socket(_family_of(address.host), _DATAGRAM) as probe:
        probe.connect((address.host, address.port))  # sends nothing
        return str(probe.getsockname()[0])
    return "this machine"


def _check_host(host: str) -> None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{host!r} is no address of IPv4 or IPv6") from None
    if found.is_unspecified:
        raise ValueError(f"{host} stands for every address of a machine: rcg listens at one")


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _pair(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
