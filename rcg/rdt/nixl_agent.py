# SPDX-License-Identifier: Apache-2.0
"""NIXL's Python package: whether it is there, whether to take it, and an agent of it.

The package has its agent poll for progress, which takes a whole core. Here its thread sleeps until
something comes (``_QUIET_US``): with UCX over TCP on two busy cores a read of 1 KB took 0.2 ms, and
94 ms when both ends polled.
"""

from __future__ import annotations

import functools
import glob
import importlib
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any, Final

from rcg.error_text import describe_error
from rcg.errors import Unavailable
from rcg.options import USES_NIXL, tls_files, uses_nixl

MISSING: Final = "the tensor transport NIXL needs a package: pip install 'rcg[nixl]'"

_NIXL: Final = "nixl"  # the transport
_PACKAGES: Final = ("nixl", "nixl_cu13", "nixl_cu12")
_QUIET_US: Final = 100_000  # how long NIXL's thread sleeps if nothing comes


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


def why_not_auto() -> str:
    """Return why this process takes no NIXL where the transport is left to rcg; "" if it does.

    Without RDMA, UCX sends over TCP as rcg does, for which it needs the processor of both ends and
    another connection. NIXL encrypts nothing.
    """
    wanted = uses_nixl()
    if wanted is False:
        return f"{USES_NIXL} says no"
    if tls_files() is not None:
        return "NIXL does not encrypt, and Ray uses TLS"
    if not is_installed():
        return "NIXL is not installed"
    if not wanted and not has_rdma():
        return "there is no RDMA device"
    return ""


_making: Final = threading.Lock()


def make_agent(name: str) -> Any:
    """Return a new agent of NIXL.

    Raises:
        Unavailable: NIXL is not installed, or does not start.
    """
    package = _package()
    if not package:
        raise Unavailable(MISSING, transport=_NIXL)
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # it prints two lines for each agent
    try:
        api = importlib.import_module(f"{package}._api")
    except ImportError as error:
        raise Unavailable(f"{package} cannot be imported: {error}", transport=_NIXL) from None
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
            why = describe_error(error).rstrip(".!")
            raise Unavailable(
                f"NIXL cannot start with its backend {backend}: {why}.{hint} "
                "`rcg doctor` says what this machine has",
                transport=_NIXL,
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
