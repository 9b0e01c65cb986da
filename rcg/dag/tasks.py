# SPDX-License-Identifier: Apache-2.0
"""Nodes that only an uncompiled DAG has: remote functions, actors to be made, and their methods.

A DAG with such a node runs as ``ray.dag`` runs it (see ``rcg.dag.interpret``), and cannot be
compiled. This room knows neither Ray nor the classes of users: what submits a task is passed in.
As in ``rcg.dag.nodes``, what drives a graph is imported when it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rcg.callers import at_users_line
from rcg.cluster import CALLED
from rcg.dag.binding import freeze
from rcg.dag.nodes import ClassMethodNode, ValueNode, no_attribute, value_record
from rcg.dag.records import InputRecord, TaskRecord, find_site, nodes_of
from rcg.errors import GraphError

_ONLY_OURS: Final = ("compile", "with_type_hint")
_OR_UNCOMPILED: Final = "or run the DAG without compiling it: node.execute(...)"


class FunctionNode(ValueNode):
    """A call of a remote function; ``function.bind(...)`` makes it."""

    _record: TaskRecord


class ClassNode(ValueNode):
    """An actor that each ``execute`` makes; ``ActorClass.bind(...)`` makes the node.

    Its methods have ``bind``. Calls run in the order in which they were bound, and one that is
    needed brings those before it.
    """

    _record: TaskRecord

    def __init__(self, cls: type, record: TaskRecord, *given: Any) -> None:
        super().__init__(record, *given)
        self._class = cls
        self._last: TaskRecord | None = None

    def __getattribute__(self, name: str) -> Any:
        # Of a method of the class that has the name of what nodes of rcg have beside Ray's.
        if name in _ONLY_OURS and callable(getattr(self._class, name, None)):
            return self.__getattr__(name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        is_special = name.startswith("__") and name not in CALLED
        if name in ("bind", "remote", "_class", "_last") or is_special:
            raise no_attribute(self, name)
        method = getattr(self._class, name)  # in Python's words if there is none
        count = getattr(method, "__ray_num_returns__", None)
        return UnboundMethod(self, name, {} if count is None else {"num_returns": count})


class UnboundMethod:
    """A method of a ``ClassNode``; ``bind`` puts a call of it into the DAG."""

    def __init__(self, node: ClassNode, name: str, options: Mapping[str, Any]) -> None:
        self._node = node
        self._name = name
        self._options = options

    def options(self, **options: Any) -> UnboundMethod:
        """Return the method with options of a call set."""
        return UnboundMethod(self._node, self._name, {**self._options, **options})

    @at_users_line
    def bind(self, *args: Any, **kwargs: Any) -> ClassMethodNode:
        """Put a call of the method into the DAG.

        Returns:
            One node. The value of a call with several returns is a list of ObjectRefs.

        Raises:
            GraphError: A node is where rcg does not look for one, or depends on another input.
            UnsupportedNodeError: A node is not rcg's.
            TypeError: An argument is a reference of a compiled DAG.
        """
        node, options = self._node, self._options
        record = _record(
            f"{node._record.label}.{self._name}",
            partial(_submit, self._name, options),
            (node, *args),
            kwargs,
            earlier=node._last,
            refusal=node._record.refusal,
        )
        node._last = record
        return ClassMethodNode(record, args, kwargs, options)

    def __getattr__(self, name: str) -> Any:
        text = f"a method of a ClassNode has no attribute {name!r}"
        if name == "remote":
            text = (
                ".remote() cannot be used on ClassMethodNodes. Use .bind() instead to express an "
                "symbolic actor call."
            )
        raise AttributeError(text, name=name, obj=self)


def bind_function(
    name: str,
    submit: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
) -> FunctionNode:
    """Make the node of a remote function's call; ``function.bind(...)`` calls this.

    Raises:
        GraphError: A node is where rcg does not look for one, or depends on another input.
        UnsupportedNodeError: A node is not rcg's.
    """
    refusal = (
        "Compiled DAGs currently only support actor method nodes: "
        f"`{name}` is a remote function. Make it a method of an actor, {_OR_UNCOMPILED}"
    )
    record = _record(name, submit, args, kwargs, refusal=refusal)
    return FunctionNode(record, args, kwargs, options)


def bind_class(
    cls: type,
    create: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
) -> ClassNode:
    """Make the node of an actor to be made; ``ActorClass.bind(...)`` calls this.

    Raises:
        GraphError: An argument is the input, or a node is where rcg does not look for one.
        UnsupportedNodeError: A node is not rcg's.
    """
    name = cls.__name__
    refusal = (
        "Compiled DAGs can only bind methods to an actor that is already created with "
        f"Actor.remote(): write `actor = {name}.remote(...)` first, then "
        f"`actor.method.bind(...)`, {_OR_UNCOMPILED}"
    )
    record = _record(name, create, args, kwargs, refusal=refusal)
    arguments = (*record.args, *[value for _, value in record.kwargs])
    if any(isinstance(each, InputRecord) for value in arguments for each in nodes_of(value)):
        raise GraphError(
            "InputNode handles user dynamic input the DAG, and cannot be used as args, kwargs, or "
            "other_args_to_resolve in ClassNode constructor because it is not available at class "
            "construction or binding time.",
            node=name,
            site=record.site,
        )
    return ClassNode(cls, record, args, kwargs, options)


def _record(
    name: str,
    submit: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    refusal: str,
    earlier: TaskRecord | None = None,
) -> TaskRecord:
    importlib.import_module("rcg.refs").refuse_compiled_refs((*args, *kwargs.values()))
    site = find_site()
    as_record = partial(value_record, taker=name, site=site)
    before = () if earlier is None else (earlier,)
    given = freeze(args, kwargs, as_record, name=name, site=site, before=before)
    record = TaskRecord(
        site=site,
        source=given.source,
        label=name,
        submit=submit,
        args=given.args,
        kwargs=given.kwargs,
        earlier=earlier,
        refusal=refusal,
    )
    if given.source is not None:
        given.source.bound[record.order] = record.name, site
    return record


def _submit(method: str, options: Mapping[str, Any], actor: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the actor that was made."""
    bound = getattr(actor, method)
    return (bound.options(**options) if options else bound).remote(*args, **kwargs)
