# SPDX-License-Identifier: Apache-2.0
"""The installed software: rcg, its dependencies and extras, and the parts of Ray that it uses."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Final

import rcg
from rcg.doctor.report import Check, State, error_line, text_of
from rcg.options import Options, is_progress_wanted, peer_timeout_s, port_range, tls_files
from rcg.version import __version__

OLDEST_PYTHON: Final = (3, 11)
OLDEST_RAY: Final = (2, 44)

# Optional packages: their purpose, and the extra of rcg that brings them. `nixl` and CuPy are
# checked as transports.
_OPTIONAL: Final = {
    "torch": ("tensors", "torch"),
    "ipywidgets": ("interactive views", "notebook"),
    "anywidget": ("interactive views", "notebook"),
    "plotly": ("charts: Profile.figure() and others", "notebook"),
    "graphviz": ("graphs as PNG and PDF: it calls the program dot", "notebook"),
    "jupyterlab": ("notebooks", "notebook"),
    "tqdm": ("progress bars", "notebook"),
    "rich": ("rcg top", "notebook"),
    "pandas": ("traces as DataFrames", "notebook"),
    "libcst": ("rcg migrate", "migrate"),
    "nvtx": ("ops in Nsight Systems", "gpu"),
}


def check_versions() -> Iterator[Check]:
    """Check Python, rcg and the packages that it uses."""
    is_new = sys.version_info >= OLDEST_PYTHON
    state: State = "ok" if is_new else "missing"
    advice = "" if is_new else "rcg needs Python 3.11 or newer"
    yield Check("versions", "python", state, platform.python_version(), advice, is_needed=True)
    yield Check("versions", "rcg", "ok", f"{__version__} in {Path(rcg.__file__).parent}")
    yield _native_core()
    yield _package("ray", OLDEST_RAY)
    yield _package("numpy")
    for name, (purpose, extra) in _OPTIONAL.items():
        version = version_of(name)
        if version is None:
            advice = f"only for {purpose}: pip install 'rcg[{extra}]'"
            yield Check("versions", name, "missing", "not installed", advice)
        else:
            yield Check("versions", name, "ok", version)
        if name == "graphviz":
            yield _dot()
    if importlib.util.find_spec("rcg_widgets") is None:
        advice = "only for interactive views: install rcg again"
        yield Check("versions", "rcg_widgets", "missing", "not installed", advice)
    else:
        yield Check("versions", "rcg_widgets", "ok", "installed")


def _dot() -> Check:
    """Check the program of Graphviz, without which its Python package draws nothing."""
    found = shutil.which("dot")
    if found is not None:
        return Check("versions", "dot", "ok", f"{found}, the program that draws for graphviz")
    advice = (
        "only for graphs as PNG and PDF, which graphviz has it draw; without it they are SVGs: "
        "apt install graphviz, or brew install graphviz"
    )
    return Check("versions", "dot", "missing", "not installed", advice)


def _native_core() -> Check:
    try:
        from rcg import _native
    except ImportError as error:
        found = error_line(error)
        advice = (
            "it needs Linux on x86-64 or aarch64: install rcg again, or run `make setup` in a "
            "checkout"
        )
        return Check("versions", "native core", "missing", found, advice, is_needed=True)
    found = f"ABI {_native.ABI_VERSION}, {platform.machine()}"
    return Check("versions", "native core", "ok", found, is_needed=True)


def _package(name: str, oldest: tuple[int, int] | None = None) -> Check:
    version = version_of(name)
    if version is None:
        advice = f"pip install {name}"
        return Check("versions", name, "missing", "not installed", advice, is_needed=True)
    if oldest is not None and _numbers(version) < oldest:
        least = ".".join(map(str, oldest))
        advice = f"rcg is tested with {least} and later: pip install --upgrade {name}"
        return Check("versions", name, "warn", version, advice)
    return Check("versions", name, "ok", version, is_needed=True)


def version_of(name: str) -> str | None:
    """Return the version of an installed package, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, takewhile(str.isdigit, version.split(".")[:2])))


# The undocumented attributes of Ray's handles that `rcg.cluster` uses, and their purpose.
_HOOKS: Final = {
    "__ray_call__": "running rcg's loop in an actor",
    "__ray_ready__": "waiting for an actor",
    "_ray_method_signatures": "checking arguments when a DAG is made",
    "_ray_method_num_returns": "several return values",
}


def check_ray() -> Iterator[Check]:
    """Check the attributes of Ray that rcg uses, in Ray's source, and the environment variables."""
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        missing, advice = "Ray is not installed", "pip install ray"
        yield Check("Ray", "hooks", "missing", missing, advice, is_needed=True)
        return
    source = text_of(str(Path(found.origin).parent / "actor.py"))
    for name, purpose in _HOOKS.items():
        if name in source:
            yield Check("Ray", name, "ok", purpose)
        else:
            # Some releases define them elsewhere; rcg checks the handle itself.
            yield Check("Ray", name, "warn", f"not found in this Ray's actor.py; for {purpose}")
    yield _environment()
    hook = os.environ.get("RAY_RUNTIME_ENV_HOOK", "")
    if hook:
        advice = "it runs when Ray starts, and may give actors another version of rcg"
        yield Check("Ray", "RAY_RUNTIME_ENV_HOOK", "warn", hook, advice)


def _environment() -> Check:
    """Check whether rcg understands the variables that are set for it."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            Options.from_environment()
            is_progress_wanted()
            port_range()
            peer_timeout_s()
            tls_files()
        except (TypeError, ValueError) as error:
            advice = "correct it or unset it"
            return Check("Ray", "variables", "missing", str(error), advice, is_needed=True)
    if raised:
        return Check("Ray", "variables", "warn", "; ".join(str(each.message) for each in raised))
    given = [key for key in os.environ if key.startswith(("RCG_", "RAY_CGRAPH_"))]
    return Check("Ray", "variables", "ok", ", ".join(sorted(given)) or "none set")
