# SPDX-License-Identifier: Apache-2.0
"""Containers with nodes inside: taken apart when they are bound, made anew in every execution.

This room must know neither nodes nor the calls that take containers.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NoReturn

from rcg.errors import GraphError
from rcg.ir.nodes import Site


@dataclass(frozen=True, slots=True, eq=False)
class _Hole:
    index: int

    def fill(self, values: Sequence[Any]) -> Any:
        return values[self.index]


@dataclass(frozen=True, slots=True, eq=False)
class _Constant:
    value: Any

    def fill(self, values: Sequence[Any]) -> Any:
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class _ListShape:
    items: tuple[_Shape, ...]

    def fill(self, values: Sequence[Any]) -> Any:
        return [item.fill(values) for item in self.items]


@dataclass(frozen=True, slots=True, eq=False)
class _TupleShape:
    items: tuple[_Shape, ...]

    def fill(self, values: Sequence[Any]) -> Any:
        return tuple([item.fill(values) for item in self.items])


@dataclass(frozen=True, slots=True, eq=False)
class _NamedTupleShape:
    cls: Any
    items: tuple[_Shape, ...]

    def fill(self, values: Sequence[Any]) -> Any:
        return self.cls._make([item.fill(values) for item in self.items])


@dataclass(frozen=True, slots=True, eq=False)
class _DictShape:
    """A dict, or one of its two standard kin; ``empty`` makes the container to fill."""

    empty: Callable[[], dict[Any, Any]] | tuple[Any, ...]
    items: tuple[tuple[Any, _Shape], ...]

    def fill(self, values: Sequence[Any]) -> Any:
        filled = defaultdict(*self.empty) if isinstance(self.empty, tuple) else self.empty()
        for key, item in self.items:
            filled[key] = item.fill(values)
        return filled


_Shape = _Hole | _Constant | _ListShape | _TupleShape | _NamedTupleShape | _DictShape


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A container with holes where values of nodes go.

    Lists, tuples, named tuples and dicts (``OrderedDict`` and ``defaultdict`` too) that lead to a
    hole are made anew by every ``fill``. Everything else inside is the user's own object, like a
    constant argument.

    >>> template, nodes = Template.of(["scale", {"x": 1j}], lambda item: isinstance(item, complex))
    >>> nodes
    [1j]
    >>> template.fill(["filled"])
    ['scale', {'x': 'filled'}]
    """

    shape: _Shape
    num_holes: int

    @classmethod
    def of(
        cls,
        value: object,
        is_node: Callable[[object], bool],
        *,
        node: str | None = None,
        site: Site | None = None,
    ) -> tuple[Template, list[Any]]:
        """Take a value apart into a template and the nodes in it, in order of appearance.

        Args:
            value: The user's argument.
            is_node: Returns whether a value is a node.
            node: The name of the node that takes the argument, for errors.
            site: Where it was bound, for errors.

        Returns:
            The template, and one node per hole. Without nodes the template is the constant itself
            and the list is empty.

        Raises:
            GraphError: A node is in a place that rcg does not support: in a set, among the
                keys of a dict, in a dataclass or a container class of the user's own, or in a
                container that contains itself.
        """
        taker = _TakeApart(is_node, node, site)
        if not taker.has_node(value):
            return cls(_Constant(value), 0), []
        shape = taker.take(value)
        return cls(shape, len(taker.nodes)), taker.nodes

    def fill(self, values: Sequence[Any]) -> Any:
        """Return a new container with these values in the holes.

        Raises:
            ValueError: The number of values is not the number of holes.
        """
        if len(values) != self.num_holes:
            raise ValueError(f"the template has {self.num_holes} holes, got {len(values)} values")
        return self.shape.fill(values)


class _TakeApart:
    """One walk through an argument; collects the nodes it meets."""

    def __init__(
        self, is_node: Callable[[object], bool], node: str | None, site: Site | None
    ) -> None:
        self.nodes: list[Any] = []
        self._is_node = is_node
        self._node = node
        self._site = site
        self._open: set[int] = set()

    def has_node(self, value: object) -> bool:
        """Whether a node can be reached through containers; works on cyclic values too."""
        if self._is_node(value):
            return True
        seen: set[int] = set()
        stack = [value]
        while stack:
            container = stack.pop()
            if id(container) in seen:
                continue
            for item in _items_of(container):
                if self._is_node(item):
                    return True
                if isinstance(item, _CONTAINERS) or is_dataclass(item):
                    stack.append(item)
            seen.add(id(container))
        return False

    def take(self, value: Any) -> _Shape:
        if self._is_node(value):
            self.nodes.append(value)
            return _Hole(len(self.nodes) - 1)
        if not (isinstance(value, _CONTAINERS) or is_dataclass(value)):
            return _Constant(value)
        if id(value) in self._open:
            self._fail(f"a {type(value).__name__} that contains itself")
        self._open.add(id(value))
        before = len(self.nodes)
        shape = self._take_container(value)
        self._open.discard(id(value))
        return shape if len(self.nodes) > before else _Constant(value)

    def _take_container(self, value: Any) -> _Shape:
        cls = type(value)
        if cls is list:
            return _ListShape(tuple([self.take(item) for item in value]))
        if cls is tuple:
            return _TupleShape(tuple([self.take(item) for item in value]))
        if issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make"):
            return _NamedTupleShape(cls, tuple([self.take(item) for item in value]))
        if cls in (dict, OrderedDict, defaultdict):
            for key in value:
                if self._is_node(key) or self.has_node(key):
                    self._fail(f"a key of a {cls.__name__}")
            items = tuple([(key, self.take(item)) for key, item in value.items()])
            return _DictShape((value.default_factory,) if cls is defaultdict else cls, items)
        if self.has_node(value):
            self._fail(f"a {cls.__name__}")
        return _Constant(value)

    def _fail(self, where: str) -> NoReturn:
        taker = f" of {self._node}" if self._node else ""
        raise GraphError(
            f"an argument{taker} has a DAG node inside {where}: nodes may be nested in lists, "
            "tuples, named tuples and the values of dicts; put it there, or pass it as an "
            "argument of its own",
            node=self._node,
            site=self._site,
        )


_CONTAINERS = (list, tuple, dict, set, frozenset)


def _items_of(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    if isinstance(container, list | tuple | set | frozenset):
        return container
    if is_dataclass(container) and not isinstance(container, type):
        return [getattr(container, field.name, None) for field in fields(container)]
    return ()
