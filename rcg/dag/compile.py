# SPDX-License-Identifier: Apache-2.0
"""Compiling a DAG: keywords -> options, records -> graph -> plan -> processes that run it.

The one place where authoring, compiler and runtime meet. Nothing is decided here; each step has its
own room.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, TypedDict

from rcg.compiler import compile_graph
from rcg.dag.context import DAGContext
from rcg.dag.lower import lower, unreached_calls
from rcg.dag.records import Record
from rcg.descriptors import telling_exhaustion
from rcg.errors import CompileError
from rcg.ir.channels import slots_for
from rcg.ir.graph import Graph
from rcg.ir.nodes import MethodCall, Site
from rcg.options import Deadline, Options, timeout_from_user
from rcg.runtime.driver.compiled_dag import CompiledDAG
from rcg.runtime.driver.lifecycle import launch, locate
from rcg.warn import warn_user

__all__ = ["CompileKeywords", "compile_record", "options_from_user"]


class CompileKeywords(TypedDict, total=False):
    """What ``compile`` takes, all optional. Timeouts are in seconds, None for no limit.

    The names with an underscore are Ray's; with them None means the default.

    Attributes:
        timeout: Longest wait for the actors to answer while compiling.
        submit_timeout: Longest wait of ``execute`` for room.
        get_timeout: Longest wait for a result.
        teardown_timeout: Longest wait for the actors' loops to end.
        buffer_size_bytes: Checked and without effect: channels size themselves.
        max_inflight_executions: Executions that may be under way at once; if given, ``execute``
            raises when the window is full instead of waiting.
        max_buffered_results: Executions whose results may wait at the driver.
        overlap_communication: Without effect while all values go through shared memory.
        wait: How a process waits.
        memory_cap_bytes: Most shared memory that the graph may hold.
        concurrent: Whether methods of different graphs may overlap on one actor.
        thread: Whether methods run on a thread of their own or on the actor's main thread.
        record: Whether the flight recorder runs.
        enable_asyncio: Without effect: every compiled DAG does both.
    """

    timeout: float | None
    submit_timeout: float | None
    get_timeout: float | None
    teardown_timeout: float | None
    buffer_size_bytes: int | None
    max_inflight_executions: int | None
    max_buffered_results: int | None
    overlap_communication: bool | None
    wait: Literal["auto", "futex", "yield", "spin"] | None
    memory_cap_bytes: int | None
    concurrent: bool | None
    thread: Literal["own", "main"] | None
    record: bool | None
    enable_asyncio: bool
    _submit_timeout: float | None
    _buffer_size_bytes: int | None
    _max_inflight_executions: int | None
    _max_buffered_results: int | None
    _overlap_gpu_communication: bool | None
    _default_communicator: object


# Keyword -> the field of Options.
_TIMEOUTS: Final[Mapping[str, str]] = {
    "timeout": "compile_timeout_s",
    "submit_timeout": "submit_timeout_s",
    "get_timeout": "get_timeout_s",
    "teardown_timeout": "teardown_timeout_s",
}
_OTHERS: Final[Mapping[str, str]] = {
    name: name
    for name in (
        "buffer_size_bytes",
        "max_inflight_executions",
        "max_buffered_results",
        "overlap_communication",
        "wait",
        "memory_cap_bytes",
        "concurrent",
        "thread",
        "record",
    )
}
_RAYS_NAMES: Final[Mapping[str, str]] = {
    "_submit_timeout": "submit_timeout",
    "_buffer_size_bytes": "buffer_size_bytes",
    "_max_inflight_executions": "max_inflight_executions",
    "_max_buffered_results": "max_buffered_results",
    "_overlap_gpu_communication": "overlap_communication",
}
_KNOWN: Final = tuple(CompileKeywords.__annotations__)


def compile_record(root: Record, keywords: CompileKeywords) -> CompiledDAG:
    """Compile everything above ``root`` and start it on its actors.

    Blocks until every actor has answered, or until ``timeout``.

    Args:
        root: The record of the node that ``compile`` was called on.
        keywords: What the user gave.

    Raises:
        TypeError: There is no such keyword.
        ValueError: A keyword's value is out of range.
        GraphError: The DAG is wrong.
        CompileError: It is right but cannot be compiled for these actors.
        ActorDiedError: An actor is dead.
        ChannelTimeout: An actor did not answer in time.
        OutOfDescriptors: This process, or an actor's, has none left.
    """
    options = options_from_user(keywords)
    deadline = Deadline(options.compile_timeout_s)
    graph, bindings = lower(root)
    stray = unreached_calls(root)
    if stray:
        warn_user(
            "these nodes are bound under the same InputNode, but the compiled DAG does not reach "
            f"them, so they do not run: {', '.join(stray)}. Add them to a "
            "MultiOutputNode if they should.",
            UserWarning,
        )
    with telling_exhaustion("to compile a graph"):
        located = locate(bindings, deadline, _methods_by_actor(graph))
        compiled = compile_graph(
            graph,
            located.actors,
            located.driver,
            channel_slots=slots_for(options.max_inflight_executions),
        )
        running = launch(compiled.plan, bindings, options, deadline)
    if "IPython" in sys.modules:
        # By name, because it stands above: what it looks after is what is made here.
        importlib.import_module("rcg.ipython").attach()
    return running


def _methods_by_actor(graph: Graph) -> dict[str, dict[str, Site | None]]:
    """Return what is called of each actor, and where the user bound it first."""
    found: dict[str, dict[str, Site | None]] = {}
    for node in graph.nodes:
        if isinstance(node, MethodCall):
            found.setdefault(node.actor, {}).setdefault(node.method, node.site)
    return found


def options_from_user(keywords: CompileKeywords) -> Options:
    """Return the options for these keywords, over the ``DAGContext``, over the environment.

    Raises:
        TypeError: There is no such keyword, or one is given under both of its names.
        ValueError: A value is out of range; the text names the keyword.
        CompileError: A communicator was given.
    """
    given: dict[str, Any] = dict(keywords)
    _check_names(given)
    if "enable_asyncio" in given:
        del given["enable_asyncio"]
        warn_user(
            "enable_asyncio is not needed: every compiled DAG takes execute() and "
            "execute_async(), and every ref can be got and awaited",
            DeprecationWarning,
        )
    _check_communicator(given.pop("_default_communicator", "create"))

    changes: dict[str, Any] = {}
    for name, value in given.items():
        plain = _RAYS_NAMES.get(name, name)
        if plain in _TIMEOUTS:
            # Under Ray's name None is the default; under ours, which is new, it is no limit.
            if value is not None or plain == name:
                changes[_TIMEOUTS[plain]] = timeout_from_user(value, name)
        elif value is not None:
            changes[_OTHERS[plain]] = value
    return DAGContext.get_current().options().replace(**changes)


def _check_names(given: Mapping[str, Any]) -> None:
    unknown = [name for name in given if name not in _KNOWN]
    if unknown:
        raise TypeError(
            f"compile() got an unexpected keyword argument {unknown[0]!r}: it takes "
            f"{', '.join(_KNOWN)}"
        )
    for rays, plain in _RAYS_NAMES.items():
        if rays in given and plain in given:
            raise TypeError(f"compile() got both {plain!r} and {rays!r}, which mean the same")


def _check_communicator(given: object) -> None:
    if given is None or given == "create":
        return
    if isinstance(given, str):
        raise ValueError(
            f"The only allowed string for default_communicator is 'create', found {given!r}"
        )
    raise CompileError(
        "_default_communicator: this release passes every value through shared memory and has no "
        "use for a communicator; leave it out"
    )
