# SPDX-License-Identifier: Apache-2.0
"""Other nodes: where rcg would listen for them. ``reach`` tries whether two nodes reach each other.

It loads nothing of Ray, which may be what does not work.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Final

from rcg.doctor.report import Check, error_line
from rcg.options import PEER_TIMEOUT, PORT_RANGE, peer_timeout_s, port_range, tls_files
from rcg.wire.certificates import client_context, server_context

_GROUP: Final = "other nodes"
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
    """Say where rcg would listen for other nodes, at ``address_here`` or another, and try that."""
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
    found = "off (RAY_USE_TLS): both ends prove that they know a secret; values are not encrypted"
    return Check(_GROUP, "TLS", "ok", found)
