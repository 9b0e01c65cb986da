# SPDX-License-Identifier: Apache-2.0
"""Compiling a DAG: keywords -> options, records -> graph -> plan -> processes that run it.

``plan`` ends at the plan, ``compile`` starts the same one. Only this module joins authoring,
compiler and runtime. It decides nothing; each step has its own room.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TypedDict

from rcg.compiler import compile_graph
from rcg.compiler.transports import with_transports
from rcg.dag.communicators import DefaultCommunicator
from rcg.dag.context import DAGContext
from rcg.dag.costs import GivenCosts, costs_of_graph
from rcg.dag.lower import lower, unreached_calls
from rcg.dag.records import Record
from rcg.descriptors import telling_exhaustion
from rcg.frames import warn_user
from rcg.ir.channels import slots_for
from rcg.ir.graph import Graph
from rcg.ir.nodes import CollectiveCall, MethodCall, Site, driver_edges, group_members
from rcg.ir.plan import Bindings, Plan
from rcg.option_kinds import TIMEOUT
from rcg.options import (
    IGNORED,
    OPTIONS,
    Deadline,
    Option,
    Options,
    Overlap,
    ThreadChoice,
    WaitPolicy,
    with_attributes,
)
from rcg.rdt.held import watch_results
from rcg.runtime.control import registry
from rcg.runtime.driver.answers import Named
from rcg.runtime.driver.compiled_dag import CompiledDAG
from rcg.runtime.driver.lifecycle import Located, check_groups, launch, locate
from rcg.runtime.driver.session import GraphName


class CompileKeywords(TypedDict, total=False):
    """The keywords of ``compile``, all optional. Timeouts are in seconds, None for no limit.

    The names with an underscore are Ray's; for those, None means the default, except for
    ``_default_communicator``. Type checkers read the keywords here; a test compares them with the
    records of the options.
    """

    timeout: float | None
    submit_timeout: float | None
    get_timeout: float | None
    report_after: float | None
    teardown_timeout: float | None
    buffer_size_bytes: int | None
    max_inflight_executions: int | None
    max_buffered_results: int | None
    overlap: Overlap | None
    wait: WaitPolicy | None
    memory_cap_bytes: int | None
    concurrent: bool | None
    thread: ThreadChoice | None
    record: bool | None
    nvtx: bool | None
    enable_asyncio: bool
    _submit_timeout: float | None
    _buffer_size_bytes: int | None
    _max_inflight_executions: int | None
    _max_buffered_results: int | None
    _overlap_gpu_communication: Overlap | None
    _default_communicator: object
    costs: object
    name: str | None


_OPTIONS: Final[Mapping[str, Option]] = {
    keyword: option for option in OPTIONS for keyword in option.keywords
}
_COMMUNICATOR: Final = "_default_communicator"
_COSTS: Final = "costs"
_NAME: Final = "name"
_MOST_LETTERS: Final = 60  # of a name
_IGNORED: Final = {setting.keyword: setting for setting in IGNORED if setting.keyword}

CompileKeywords.__doc__ = with_attributes(
    CompileKeywords.__doc__,
    [
        (keyword, option.text if keyword == option.keyword else f"as `{option.keyword}`")
        for keyword, option in _OPTIONS.items()
    ]
    + [(keyword, f"no effect: {setting.instead}") for keyword, setting in _IGNORED.items()]
    + [
        (
            _COMMUNICATOR,
            'what serves where no communicator is chosen: `"create"` (the default) creates one, a '
            "communicator serves all collectives of its actors, and with None the choice must be "
            "made at each node",
        ),
        (
            _COSTS,
            "how long calls take: a profile of these actors, or seconds by name, as in "
            '`{"Stage.forward": 0.02}`; see `rcg.dag.costs`',
        ),
        (
            _NAME,
            "what views and messages call the graph; by default the global variable of the main "
            "program that it is assigned to, else its last method",
        ),
    ],
)


def compile_record(root: Record, keywords: CompileKeywords, called: str) -> CompiledDAG:
    """Compile everything that ``root`` depends on and start it on its actors.

    Blocks until every actor has answered, or until ``timeout``. ``called`` is the name of the
    function that the user called.

    Raises:
        TypeError: There is no such keyword.
        ValueError: A keyword's value is out of range.
        TraceError: The profile given as ``costs`` is not complete.
        GraphError: The DAG is wrong.
        CompileError: The DAG is right but cannot be compiled for these actors.
        ActorDiedError: An actor is dead.
        ChannelTimeout: An actor did not answer in time.
        OutOfDescriptors: This process, or an actor's, has none left.
    """
    options = options_from_user(keywords, called)
    deadline = Deadline(options.compile_timeout_s)
    with telling_exhaustion("to compile a graph"):
        name = _checked_name(keywords.get(_NAME))
        plan, bindings, fallback = _plan(root, keywords, options, deadline)
        graph = launch(plan, bindings, options, deadline, GraphName(name, fallback))
    if plan.held_nodes():
        watch_results(partial(registry.find, graph.get_id()))
    return graph


def plan_record(root: Record, keywords: CompileKeywords) -> Plan:
    """Return the plan that ``compile_record`` would start, and start nothing.

    Blocks until every actor has said on which node it is, or until ``timeout``. Keywords that are
    about running have no effect. The errors are those of ``compile_record``.
    """
    options = options_from_user(keywords, "plan")
    with telling_exhaustion("to plan a graph"):
        plan, _, _ = _plan(root, keywords, options, Deadline(options.compile_timeout_s))
        return plan


def _plan(
    root: Record, keywords: CompileKeywords, options: Options, deadline: Deadline
) -> tuple[Plan, Bindings, str]:
    """Return the plan of everything that ``root`` depends on, and the objects that it names.

    The third is what the graph is called if nothing else names it: its last method.
    """
    default = DefaultCommunicator.of(keywords.get(_COMMUNICATOR, "create"))
    costs = GivenCosts(keywords.get(_COSTS))
    graph, bindings = lower(root, default)
    costs.check(graph)
    warn_of_fallbacks(graph)
    stray = unreached_calls(root)
    if stray:
        warn_user(
            "these nodes are bound under the same InputNode, but the compiled DAG does not reach "
            f"them, so they do not run: {', '.join(stray)}. Add them to a "
            "MultiOutputNode if they should.",
            UserWarning,
        )
    located = locate(bindings, deadline, _methods_by_actor(graph), _tensor_nodes(graph))
    default.check_auto(graph, with_transports(graph, located.gpus))
    warn_of_lacking_cupy(graph, bindings, located)
    compiled = compile_graph(
        graph,
        located.actors,
        located.driver,
        channel_slots=slots_for(options.max_inflight_executions),
        overlap=options.overlap,
        costs=costs_of_graph(graph, costs, located.costs),
        gpus=located.gpus,
        cores=located.cores,
    )
    check_groups(compiled.plan, graph, bindings, located, options)
    return compiled.plan, bindings, graph.name(graph.outputs[-1])


def warn_of_fallbacks(graph: Graph) -> None:
    """Warn of each node whose tensors cannot use the chosen transport, because of the driver."""
    for node_id in driver_edges(graph):
        hint = graph.nodes[node_id].hint
        if hint is not None:
            warn_user(
                f"{graph.describe(node_id)}: the driver is no member of a communicator, so between "
                "it and the actors tensors travel through shared memory, and not as "
                f"with_tensor_transport({hint.transport!r}) at {hint.site} asks",
                UserWarning,
            )


def warn_of_lacking_cupy(graph: Graph, bindings: Bindings, located: Located) -> None:
    """Warn if tensors of GPUs travel through the host's memory only because CuPy is missing."""
    everything = {
        actor: () if owned.lacks_torch else owned.gpus for actor, owned in located.owned.items()
    }
    possible = with_transports(graph, everything)
    if possible != with_transports(graph, located.gpus):
        lacking = [
            Named(bindings).name(actor)
            for actor in group_members(possible)
            if located.owned[actor].lacks_cupy
        ]
        warn_user(
            f"tensors between the GPUs of {', '.join(lacking)} and others travel through the "
            "host's memory, because their processes have no CuPy: pip install 'rcg[gpu]'",
            UserWarning,
        )


def _methods_by_actor(graph: Graph) -> dict[str, dict[str, Site | None]]:
    """Return the methods called on each actor, with the place where the user first bound each."""
    found: dict[str, dict[str, Site | None]] = {}
    for node in graph.nodes:
        match node:
            case MethodCall(actor=actor, method=method, site=site):
                found.setdefault(actor, {}).setdefault(method, site)
            case CollectiveCall(actor=actor):
                found.setdefault(actor, {})  # it may do nothing else
    return found


def _tensor_nodes(graph: Graph) -> dict[str, tuple[str, Site]]:
    """Return the node, and its place, for which each actor takes part in a group."""
    return {
        actor: (graph.name(node_id), graph.nodes[node_id].site)
        for actor, node_id in group_members(graph).items()
    }


def options_from_user(keywords: CompileKeywords, called: str = "compile") -> Options:
    """Return the options for these keywords, over the ``DAGContext``, over the environment.

    ``called`` is the name of the function that the user called, for errors.

    Raises:
        TypeError: There is no such keyword, or one is given under both of its names.
        ValueError: A value is out of range; the text names the keyword.
    """
    given: dict[str, Any] = dict(keywords)
    _check_names(given, called)
    if "enable_asyncio" in given:
        warn_user(
            f"enable_asyncio is not needed: {_IGNORED['enable_asyncio'].instead}",
            DeprecationWarning,
        )
    changes: dict[str, Any] = {}
    for keyword, value in given.items():
        option = _OPTIONS.get(keyword)
        if option is None:
            continue
        is_timeout = option.kind is TIMEOUT
        # None is the default, except for a timeout under rcg's own name: there it is no limit.
        if value is not None or (is_timeout and keyword == option.keyword):
            # Ray names a size `buffer_size_bytes` in errors, whichever keyword was used.
            name = keyword if is_timeout else option.keyword
            changes[option.field] = option.kind.check(value, name)
    return DAGContext.get_current().options().replace(**changes)


def _checked_name(name: object) -> str:
    """Return the name that the user gave to a graph, or ""."""
    if name is None:
        return ""
    if not isinstance(name, str):
        raise TypeError(f"`name` must be a str, found {name!r}")
    if not name.strip() or len(name) > _MOST_LETTERS or not name.isprintable():
        raise ValueError(
            f"`name` must have 1 to {_MOST_LETTERS} letters that can be printed, found {name!r}"
        )
    return name


_RENAMED: Final = {"_execution_timeout": ["submit_timeout"]}
"""What names of earlier versions of Ray are now."""


def _check_names(given: Mapping[str, Any], called: str) -> None:
    known = [*_OPTIONS, *_IGNORED, _COMMUNICATOR, _COSTS, _NAME]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            near = _RENAMED.get(name, near)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            ours = [each for each in known if not each.startswith("_") and each not in _IGNORED]
            raise TypeError(
                f"{called}() got an unexpected keyword argument {name!r}{hint} It takes "
                f"{', '.join(sorted(ours))}, and Ray's names of these"
            )
    for option in OPTIONS:
        if option.rays_keyword in given and option.keyword in given:
            raise TypeError(
                f"{called}() got both {option.keyword!r} and {option.rays_keyword!r}, which mean "
                "the same"
            )
