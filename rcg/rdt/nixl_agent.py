# SPDX-License-Identifier: Apache-2.0
"""NIXL's Python package: whether it is there, also at an actor, and an agent of it.

The package has its agent poll for progress, which takes a whole core. Here its thread sleeps until
something comes (``_QUIET_US``): with UCX over TCP on two busy cores a read of 1 KB took 0.2 ms, and
94 ms when both ends polled.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import importlib.util
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from rcg.error_text import describe_error
from rcg.errors import RcgError, Unavailable
from rcg.rdt.connection import ASK_TIMEOUT_S, Connection
from rcg.rdt.envelope import Holder
from rcg.rdt.reach import place_soon_of
from rcg.rdt.transports import NIXL
from rcg.wire.messages import AskHeld

MISSING: Final = "the tensor transport NIXL needs a package: pip install nixl"

_PACKAGES: Final = ("nixl", "nixl_cu13", "nixl_cu12")
_QUIET_US: Final = 100_000  # how long NIXL's thread sleeps if nothing comes
_NOT_JUDGED_S: Final = 10.0  # for which an actor that does not answer is not asked again
_MOST_ACTORS: Final = 1000  # of which it is known that they have NIXL


@functools.cache
def _package() -> str:
    """Return the name of NIXL's Python package, which is not imported: that takes a second."""
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:  # no mere folder of that name
            return name
    return ""


def is_installed() -> bool:
    """Whether NIXL's Python package is there."""
    return bool(_package())


_have_nixl: Final[dict[str, float]] = {}  # actors, by their stores, and until when that is known


def check_has_nixl(holder: Holder) -> None:
    """Check that an actor can use NIXL, where a call with its tensors is made.

    Args:
        holder: The actor. One that does not answer soon is not judged: its method will fail.

    Raises:
        Unavailable: NIXL is not installed where it runs.
    """
    now_s = time.monotonic()
    if _have_nixl.get(holder.key, 0.0) > now_s:
        return
    if len(_have_nixl) > _MOST_ACTORS:
        _have_nixl.clear()
    _have_nixl[holder.key] = now_s + _NOT_JUDGED_S
    try:
        connection = Connection(holder, "", ASK_TIMEOUT_S, place_soon_of)
        with contextlib.closing(connection):
            found = json.loads(connection.observe(lambda number: AskHeld(number=number)))
    except (OSError, RcgError, TimeoutError):
        return
    if not found["nixl"][0]:
        del _have_nixl[holder.key]
        raise Unavailable(f"{holder.label}: {MISSING}", transport=NIXL)
    _have_nixl[holder.key] = float("inf")


_making: Final = threading.Lock()


def make_agent(name: str) -> Any:
    """Return a new agent of NIXL.

    Raises:
        Unavailable: NIXL is not installed, or does not start.
    """
    package = _package()
    if not package:
        raise Unavailable(MISSING, transport=NIXL)
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # it prints two lines for each agent
    try:
        api = importlib.import_module(f"{package}._api")
    except ImportError as error:
        raise Unavailable(f"{package} cannot be imported: {error}", transport=NIXL) from None
    backend = _backend()
    with _making:
        original: Any = api.nixlBind.nixlAgentConfig

        class Quiet(original):
            """A configuration with which the agent's thread sleeps until something comes."""

            def __setattr__(self, field: str, value: Any) -> None:
                super().__setattr__(field, _QUIET_US if field == "pthrDelay" else value)

        try:
            api.nixlBind.nixlAgentConfig = Quiet  # the package sets 0, and has no option for it
            strict = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT  # any thread may use it
            return api.nixl_agent(name, api.nixl_agent_config(backends=[backend], sync_mode=strict))
        except Exception as error:  # noqa: BLE001 - NIXL has many
            ways = os.environ.get("UCX_TLS")
            hint = f" UCX_TLS={ways} may leave out what it needs;" if ways else ""
            raise Unavailable(
                f"NIXL cannot start with its backend {backend}: {describe_error(error)}.{hint} "
                "`rcg doctor` says what this machine has",
                transport=NIXL,
            ) from None
        finally:
            api.nixlBind.nixlAgentConfig = original


@functools.cache
def has_rdma() -> bool:
    """Whether memory has keys that end with its registration; with UCX's other ways it has none."""
    return bool(glob.glob("/sys/class/infiniband/*"))


def _backend() -> str:
    """Return NIXL's backend: LIBFABRIC on AWS's EFA, UCX elsewhere.

    In a container the network devices may be hidden, and other RDMA devices stand beside EFA's: the
    driver tells.
    """
    is_efa = bool(glob.glob("/sys/class/net/efa*")) or any(
        Path(each, "device", "driver").resolve().name == "efa"
        for each in glob.glob("/sys/class/infiniband/*")
    )
    return "LIBFABRIC" if is_efa else "UCX"
