# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs of Ray actors over shared memory, on plain Ray Core.

``import rcg as ray`` works: ``__all__`` lists the names that rcg defines, and any other name is
Ray's, looked up when it is used. Importing rcg imports neither Ray nor another large package; a
name is loaded when it is first used.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

from rcg.display import Views, draw_with
from rcg.runtime.control.registry import follow
from rcg.version import __version__

if TYPE_CHECKING:
    from rcg import collective, dag, errors, experimental, weights
    from rcg.actors import (
        ActorClass,
        ActorHandle,
        ActorMethod,
        get_actor,
        kill,
        method,
        remote,
        unwrap,
        wrap_actor,
    )
    from rcg.comm.registry import register_communicator
    from rcg.dag import InputNode, MultiOutputNode
    from rcg.interop import compile, plan
    from rcg.profiling import Profile
    from rcg.rdt.refs import TensorRef
    from rcg.rdt.transports import register_tensor_transport
    from rcg.refs import cancel, get, put, wait
    from rcg.runs import Runs
    from rcg.runtime.driver.compiled_dag import CompiledDAG
    from rcg.runtime.node.arrays import empty
    from rcg.runtime.observe.attach import LiveGraph
    from rcg.runtime.observe.profiler import Profiler
    from rcg.runtime.observe.report import Reports
    from rcg.runtime.refs import CompiledDAGFuture, CompiledDAGRef
    from rcg.runtime.remote.handle import CompiledDAGHandle
    from rcg.serialization import register_array_type
    from rcg.trace.spans import span
    from rcg.trace.trace import Trace

__all__ = [
    # actors
    "ActorClass",
    "ActorHandle",
    "ActorMethod",
    "get_actor",
    "kill",
    "method",
    "remote",
    "unwrap",
    "wrap_actor",
    # references
    "TensorRef",
    "cancel",
    "get",
    "put",
    "wait",
    # arrays and tensors
    "empty",
    "register_array_type",
    "register_tensor_transport",
    # DAGs
    "CompiledDAG",
    "CompiledDAGFuture",
    "CompiledDAGHandle",
    "CompiledDAGRef",
    "InputNode",
    "MultiOutputNode",
    "compile",
    "plan",
    "report",
    # tensors between actors
    "register_communicator",
    # seeing
    "Profile",
    "Trace",
    "live",
    "profile",
    "profiles",
    "span",
    # the session
    "shutdown",
    # rooms
    "collective",
    "dag",
    "errors",
    "experimental",
    "weights",
    "__version__",
]

_HOMES: Final = {
    name: home
    for home, names in {
        "rcg.actors": "ActorClass ActorHandle ActorMethod get_actor kill method remote unwrap "
        "wrap_actor",
        "rcg.comm.registry": "register_communicator",
        "rcg.dag": "InputNode MultiOutputNode",
        "rcg.interop": "compile plan",
        "rcg.profiling": "Profile",
        "rcg.rdt.refs": "TensorRef",
        "rcg.rdt.transports": "register_tensor_transport",
        "rcg.refs": "cancel get put wait",
        "rcg.runtime.driver.compiled_dag": "CompiledDAG",
        "rcg.runtime.node.arrays": "empty",
        "rcg.runtime.refs": "CompiledDAGFuture CompiledDAGRef",
        "rcg.runtime.remote.handle": "CompiledDAGHandle",
        "rcg.serialization": "register_array_type",
        "rcg.trace.spans": "span",
        "rcg.trace.trace": "Trace",
    }.items()
    for name in names.split()
}
_ROOMS: Final = ("actor", "collective", "dag", "errors", "experimental", "weights")


def shutdown(**options: Any) -> None:
    """Tear down the compiled DAGs of this process, then disconnect from Ray.

    Args:
        **options: Ray's options of ``shutdown``.
    """
    for module, leave in (
        ("rcg.runtime.driver.compiled_dag", "teardown_all"),
        ("rcg.rdt.process", "leave_session"),
        ("rcg.weights.client", "leave_cluster"),
    ):
        if module in sys.modules:
            getattr(sys.modules[module], leave)()
    importlib.import_module("rcg.cluster").shutdown(**options)


def report() -> Reports:
    """Return the report of every live compiled DAG of this process; see ``CompiledDAG.report``.

    Its ``tensors`` are the references to tensors that this process looks after: who holds them, how
    large they are, and who waits for them. Its ``weights``, in a process that has used
    ``rcg.weights``, are the publishers and readers of the cluster.

    The result is a sequence of reports and prints as text.
    """
    execute = importlib.import_module("rcg.runtime.driver.compiled_dag")
    found: Reports = execute.report_all()
    if "rcg.rdt.process" in sys.modules:
        found.tensors = importlib.import_module("rcg.rdt.observe").report_tensors()
    if "rcg.weights" in sys.modules:
        found.weights = importlib.import_module("rcg.weights").report_if_used()
    return found


def profile(*, name: str = "", max_events: int | None = None, torch: bool = False) -> Profiler:
    """Return a profiler of all compiled DAGs of this process, including those compiled later.

    ``with rcg.profile() as p`` gives a ``Profile``, which is complete at the end of the block::

        with rcg.profile() as p:
            rcg.get([cdag.execute(x) for x in batches])
        print(p)                        # or show it in a notebook
        p.trace.save("run.rcg")

    ``CompiledDAG.profile`` records one of them. ``rcg.profiles()`` compares those of this process.

    Args:
        name: What the profile is called there; by default the time.
        max_events: How many events of each graph are kept; later ones are counted as lost. None for
            five million.
        torch: Whether torch's profiler runs in the actors meanwhile, on the threads that run
            methods and transfers. Its events are shown inside these, as spans are, and kernels of
            GPUs in a row per stream. Torch's profiler slows small operations down.
    """
    execute = importlib.import_module("rcg.runtime.driver.compiled_dag")
    found: Profiler = execute.profile_all(name=name, max_events=max_events, torch=torch)
    return found


def profiles(*, keep: int | None = None) -> Runs:
    """Return the profiles that this process has recorded, the oldest first, side by side.

    The result prints as a table, and a notebook shows bars: throughput and latency of each, against
    the first, and what limits it. It is a sequence of ``Profile``; ``profiles()["after"]`` is the
    newest of that name, and a slice is a comparison of some::

        with rcg.profile(name="one by one"): ...
        with rcg.profile(name="three in flight"): ...
        rcg.profiles()

    At most the newest 20 are kept, and those before the newest only while the events of all take no
    more than 256 MB; one that the program holds itself is listed as well. What is to outlive the
    process is saved by ``profile.trace.save(path)``.

    Args:
        keep: Let go of all but the newest so many first; 0 of all.

    Raises:
        ValueError: ``keep`` is negative.
    """
    found: Runs = importlib.import_module("rcg.profiling").kept_profiles(keep)
    return found


def live(name: str | None = None, *, pid: int | None = None) -> LiveGraph:
    """Return a graph that another process of this user runs on this machine, to look at it.

    Its ``report()`` and ``profile(seconds)`` are those of a graph of this process::

        live = rcg.live("vllm")         # the graph of an engine, in whichever process it runs
        print(live.report())
        print(live.profile(2.0))

    Args:
        name: The name of the graph, or the beginning of its id; None if there is only one.
        pid: Only graphs of this process; it may be this very one.

    Raises:
        AttachError: There is no such graph, or there are several; the text lists them.
    """
    attach = importlib.import_module("rcg.runtime.observe.attach")
    found: LiveGraph = attach.find_live(name, pid=pid)
    return found


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: what ``%load_ext rcg`` calls."""
    importlib.import_module("rcg.magics").load(shell)


def _views() -> Views:
    """Return the views, loaded when something is displayed; the only place that names them."""
    views: Views = importlib.import_module("rcg.views.display").VIEWS
    return views


class _Notebook:
    """Follows the graphs of this process: where there is an IPython, its cells are looked after."""

    def graph_started(self, graph: object) -> None:
        """Look after each cell from the first graph on."""
        if "IPython" in sys.modules:
            importlib.import_module("rcg.ipython").attach()


draw_with(_views)
_notebook: Final = _Notebook()
follow(_notebook)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"rcg.{name}")
    elif name.startswith("_"):  # `from rcg import _native` asks for this first
        if name == "_native" and importlib.util.find_spec("rcg._native") is None:
            raise ImportError(
                f"{__path__[0]} are sources of rcg whose native core is not built: run programs in "
                "a folder from which Python finds the installed rcg, or build it by `make setup`"
            )
        raise AttributeError(f"module 'rcg' has no attribute {name!r}")
    else:
        # Not stored, because Ray's names may change between sessions.
        return importlib.import_module("rcg.cluster").attribute(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    rays = importlib.import_module("rcg.cluster").attribute_names()
    return sorted({*__all__, *rays})
