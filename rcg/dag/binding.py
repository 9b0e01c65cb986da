# SPDX-License-Identifier: Apache-2.0
"""Binding a method: from a handle and arguments to a checked ``CallRecord``.

Errors that concern a single call are raised here, at the line of its ``bind``. The caller passes
the function that recognizes nodes, so this room serves rcg's nodes and those of ``ray.dag`` alike
and knows neither.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rcg import cluster
from rcg.dag.records import (
    CallRecord,
    Constant,
    InputRecord,
    Nested,
    RecordArgument,
    ValueRecord,
    common_source,
    nodes_of,
)
from rcg.errors import GraphError, SignatureError, UnsupportedNodeError
from rcg.ir.containers import Template
from rcg.ir.nodes import Site
from rcg.option_kinds import check_cost_s

OWN_OPTIONS: Final = frozenset({"cost_s", "tensor_transport"})
"""Options of calls that Ray does not see: it would take the transport for its own."""

# Returns the record of a node, or None for a value that is not a node.
AsRecord = Callable[[object], ValueRecord | None]

# Their attributes are code, not data that travels with the argument.
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def bind_call(
    handle: Any,
    method: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    options: Mapping[str, Any],
    as_record: AsRecord,
    site: Site,
) -> CallRecord:
    """Record a call of an actor's method.

    Containers with nodes inside are taken apart now; later changes to them have no effect.

    Args:
        handle: Ray's handle of the actor.
        method: Name of the method.
        args: The positional arguments of ``bind``.
        kwargs: The keyword arguments of ``bind``.
        options: The user's ``options``; only ``num_returns`` and ``cost_s`` matter here.
        as_record: Returns the record of a node, None for other values.
        site: Where the user called ``bind``.

    Raises:
        SignatureError: The arguments do not fit the method.
        GraphError: A node is in a place that rcg does not support, or depends on another input.
        UnsupportedNodeError: The method is a generator.
    """
    label = cluster.actor_label(handle)
    name = f"{label}.{method}"
    _check_signature(handle, method, args, kwargs, name=name, site=site)
    num_returns = _num_returns(handle, method, options, name=name, site=site)
    given = freeze(args, kwargs, as_record, name=name, site=site)
    source = given.source
    call = CallRecord(
        site=site,
        source=source,
        handle=handle,
        label=label,
        method=method,
        args=given.args,
        kwargs=given.kwargs,
        options=tuple([each for each in options.items() if each[0] not in OWN_OPTIONS]),
        num_returns=num_returns,
        cost_s=_cost_s(options, name=name, site=site),
    )
    if source is not None:
        source.bound[call.order] = call.name, call.site
    return call


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a ``bind``, taken apart, and the input that they depend on."""

    args: tuple[RecordArgument, ...]
    kwargs: tuple[tuple[str, RecordArgument], ...]
    source: InputRecord | None


def freeze(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    as_record: AsRecord,
    *,
    name: str,
    site: Site,
    before: Sequence[ValueRecord] = (),
) -> Arguments:
    """Take the arguments of a ``bind`` apart.

    ``before`` are records that run earlier, and so must depend on the same input.

    Raises:
        GraphError: A node is where rcg does not look for one, or depends on another input.
    """
    frozen = [_freeze(value, as_record, name=name, site=site) for value in args]
    named = [
        (key, _freeze(value, as_record, name=name, site=site)) for key, value in kwargs.items()
    ]
    arguments = (*frozen, *(value for _, value in named))
    records = [*before, *[record for argument in arguments for record in nodes_of(argument)]]
    source = common_source(records, taker=name, site=site)
    return Arguments(tuple(frozen), tuple(named), source)


def _check_signature(
    handle: Any,
    method: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    site: Site,
) -> None:
    signature = cluster.actor_method_signature(handle, method)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        # Ray's words come first, because people search for them; Ray does not name the place.
        raise SignatureError(
            f"{error}. The function `{method}` has a signature `{signature}`, but the given "
            f"arguments to `bind` doesn't match. args: {tuple(args)}. kwargs: {dict(kwargs)}.",
            node=name,
            site=site,
        ) from None


def _cost_s(options: Mapping[str, Any], *, name: str, site: Site) -> float | None:
    if options.get("cost_s") is None:
        return None
    try:
        return check_cost_s(options["cost_s"], f"cost_s of {name}")
    except (TypeError, ValueError) as error:
        raise GraphError(str(error), node=name, site=site) from None


def _num_returns(
    handle: Any, method: str, options: Mapping[str, Any], *, name: str, site: Site
) -> int:
    found = options.get("num_returns")
    if found is None:
        found = cluster.actor_method_num_returns(handle, method)
    if isinstance(found, str):
        raise UnsupportedNodeError(
            f"{name} is a generator (num_returns={found!r}), which compiled graphs do not "
            "support: return a list, or a fixed number of values with num_returns=k",
            node=name,
            site=site,
        )
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise GraphError(
            f"num_returns of {name} must be a whole number of at least 1, found {found!r}",
            node=name,
            site=site,
        )
    return found


def _freeze(value: Any, as_record: AsRecord, *, name: str, site: Site) -> RecordArgument:
    record = as_record(value)
    if record is not None:
        return record
    template, nodes = Template.of(
        value, lambda item: as_record(item) is not None, node=name, site=site
    )
    if nodes:
        return Nested(
            template, tuple(found for found in map(as_record, nodes) if found is not None)
        )
    _refuse_hidden_node(value, as_record, name=name, site=site)
    return Constant(value)


def _refuse_hidden_node(value: Any, as_record: AsRecord, *, name: str, site: Site) -> None:
    """Raise if an attribute of an object is a node; deeper nodes raise when they are pickled."""
    if isinstance(value, _OPAQUE):
        return
    for attribute, item in getattr(value, "__dict__", {}).items():
        if as_record(item) is not None:
            raise GraphError(
                f"an argument of {name} has a DAG node in its attribute `{attribute}` "
                f"(of {type(value).__name__}): nodes may be nested in lists, tuples, named tuples "
                "and the values of dicts; put it there, or pass it as an argument of its own",
                node=name,
                site=site,
            )
