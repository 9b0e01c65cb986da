# SPDX-License-Identifier: Apache-2.0
"""Whether two nodes reach each other: ``rcg doctor --listen`` and ``rcg doctor --connect HOST``.

The first listens on one node where a graph would, the second tries to reach it from another one.
Neither needs Ray, and nothing but a greeting is sent.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rcg.errors import PlacementError
from rcg.options import PORT_RANGE, port_range
from rcg.wire.addresses import TcpAddress, connect_tcp, listen_tcp

GREETING: Final = b"rcg doctor --listen\n"

_CONNECT_TIMEOUT_S: Final = 3.0
_MOST_PORTS: Final = 200


def target_of(text: str) -> list[TcpAddress]:
    """Return where ``--connect`` tries to reach: one port, or those of ``RCG_PORT_RANGE``.

    Args:
        text: ``HOST`` or ``HOST:PORT``; an address of IPv6 with a port is ``[HOST]:PORT``.

    Raises:
        ValueError: It is neither, no such host is known, or there is no port to try.
    """
    host, colon, port = text.rpartition(":")
    if colon and (":" not in host or host.startswith("[")):
        if not (port.isascii() and port.isdigit()):
            raise ValueError(f"{text!r} has no port: write HOST:PORT, such as 10.0.0.2:20000")
        ports: Sequence[int] = [int(port)]
    else:
        host = text
        ports = (port_range() or range(0))[:_MOST_PORTS]
        if not ports:
            raise ValueError(
                f"which port? Write {text}:PORT, as `rcg doctor --listen` prints it there, or set "
                f"{PORT_RANGE} on both machines"
            )
    host = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host, ports[0], type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"{host} is not known: {error.strerror or error}") from None
    return [TcpAddress(str(found[0][4][0]), port) for port in ports]


def try_connect(
    addresses: Sequence[TcpAddress], timeout_s: float = _CONNECT_TIMEOUT_S
) -> Iterator[tuple[TcpAddress, bool, str]]:
    """Try to reach each address; yields whether ``rcg doctor --listen`` answers, and a verdict."""
    for address in addresses:
        try:
            with connect_tcp(address, timeout_s) as connection:
                is_ours = _greeting(connection, timeout_s) == GREETING
        except OSError as error:
            yield address, False, error.strerror or str(error)
            continue
        works = "works: `rcg doctor --listen` answers"
        taken = "something else listens there: the way is open, but this port is taken"
        yield address, is_ours, works if is_ours else taken


def _greeting(connection: socket.socket, timeout_s: float) -> bytes:
    connection.settimeout(timeout_s)
    got = b""
    with contextlib.suppress(OSError):
        while len(got) < len(GREETING) and (more := connection.recv(len(GREETING))):
            got += more
    return got


def listen(host: str, say: Callable[[str], object], *, count: int | None = None) -> None:
    """Listen where a graph would, and greet each connection, until the user presses Ctrl-C.

    Args:
        host: The address.
        say: Prints a line.
        count: End after so many connections; None never ends.

    Raises:
        ValueError: ``host`` is no address in numbers, or ``RCG_PORT_RANGE`` no range.
        PlacementError: No port is free, or the address is not of this machine.
        OSError: There is no descriptor left.
    """
    ports = port_range()
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
        at = []
        for each in [None] if ports is None else [range(n, n + 1) for n in ports[:_MOST_PORTS]]:
            try:
                listener, address = listen_tcp(host, each)
            except PlacementError as error:
                if isinstance(error.__cause__, OSError):
                    raise  # it is no address of this machine
                continue  # another process has the port
            stack.enter_context(listener)
            waiting.register(listener, selectors.EVENT_READ, listener)
            at.append(address)
        if not at:
            raise PlacementError(f"no port of {PORT_RANGE} is free at {host}", location=host)
        first = str(at[0]).removeprefix("tcp://")
        more = f" and {len(at) - 1} more ports" if len(at) > 1 else ""
        say(f"listening at {first}{more}; run this on the other node, Ctrl-C ends it:")
        target = first if ports is None else host
        given = "" if ports is None else f"{PORT_RANGE}={ports[0]}-{ports[-1]} "
        say(f"  {given}rcg doctor --connect {target}")
        while count is None or count > 0:
            for key, _ in waiting.select():
                with contextlib.suppress(OSError):
                    connection, peer = key.data.accept()
                    with connection:
                        connection.sendall(GREETING)
                    say(f"port {key.data.getsockname()[1]} was reached from {peer[0]}")
                    count = None if count is None else count - 1
