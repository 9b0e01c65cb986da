# SPDX-License-Identifier: Apache-2.0
"""Other nodes: where rcg would listen for them, and whether two nodes reach each other.

``rcg doctor --listen`` listens on one node where a graph would, ``rcg doctor --connect HOST`` tries
to reach it from another one. Nothing but a greeting is sent. Nothing of Ray is loaded, which may be
what does not work.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rcg.doctor.report import Check, error_line
from rcg.errors import PlacementError
from rcg.options import PEER_TIMEOUT, PORT_RANGE, peer_timeout_s, port_range, tls_files
from rcg.wire.addresses import TcpAddress, connect_tcp, listen_tcp
from rcg.wire.tls import client_context, server_context

GREETING: Final = b"rcg doctor --listen\n"

_GROUP: Final = "other nodes"
_CONNECT_TIMEOUT_S: Final = 3.0
_MOST_PORTS: Final = 200
# Any address that is not of this machine: the kernel only says from where it would connect.
_ELSEWHERE: Final = ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888"))


def address_here() -> str:
    """Return the address of this machine from which the kernel would reach other ones.

    It is the one that Ray uses without ``--node-ip-address``. Nothing is sent.
    """
    for family, far in _ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 53))
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def check_nodes(address: str | None = None) -> Iterator[Check]:
    """Say where rcg would listen for other nodes, and try that.

    Args:
        address: The address; None for ``address_here``.
    """
    here = address_here() if address is None else address
    is_alone = here.startswith("127.") or here == "::1"
    advice = "no other machine reaches this address: is there a network?" if is_alone else ""
    yield Check(_GROUP, "address", "warn" if is_alone else "ok", here, advice)
    yield _listening(here)
    try:
        yield Check(_GROUP, "silence allowed", "ok", f"{peer_timeout_s():g} s ({PEER_TIMEOUT})")
    except ValueError as error:
        advice = f"set {PEER_TIMEOUT} to a number of seconds"
        yield Check(_GROUP, "silence allowed", "missing", str(error), advice)
    yield _encryption()


def _listening(here: str) -> Check:
    try:
        ports = port_range()
    except ValueError as error:
        return Check(_GROUP, "ports", "missing", str(error), f"set {PORT_RANGE} to 20000-20099")
    which = "any free port" if ports is None else f"{ports[0]} to {ports[-1]} ({PORT_RANGE})"
    try:
        port = _free_port(here, ports)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            found, advice = f"{here} is no address of this machine", "look at its interfaces"
            return Check(_GROUP, "ports", "missing", found, advice)
        advice = f"set {PORT_RANGE} to ports that are free, and open between the nodes"
        return Check(_GROUP, "ports", "missing", f"{which}: {error_line(error)}", advice)
    advice = "" if ports else f"behind a firewall set {PORT_RANGE}, for example to 20000-20099"
    return Check(_GROUP, "ports", "ok", f"{which}; listening at port {port} works", advice)


def _free_port(here: str, ports: range | None) -> int:
    """Return the first port that is free, after listening at it."""
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    problem = OSError("there is no port to try")
    for port in (0,) if ports is None else ports:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((here, port))
                listener.listen()
                return int(listener.getsockname()[1])
            except OSError as error:
                problem = error
    raise problem


def _encryption() -> Check:
    try:
        files = tls_files()
        if files is not None:
            server_context(files)
            client_context(files)
    except (OSError, ValueError) as error:
        advice = "RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT name files in PEM"
        return Check(_GROUP, "TLS", "missing", f"RAY_USE_TLS is on: {error_line(error)}", advice)
    if files is not None:
        return Check(_GROUP, "TLS", "ok", f"on, by the certificate of Ray in {files.certificate}")
    found = "off (RAY_USE_TLS): connections prove to know a secret, values are not encrypted"
    return Check(_GROUP, "TLS", "ok", found)


# --- two nodes ----------------------------------------------------------------------------------


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
