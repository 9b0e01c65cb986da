# SPDX-License-Identifier: Apache-2.0
"""The inputs of ``map``: an iterable for each argument, of which some may be asynchronous.

This room knows nothing of executions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

_NO_KEYWORDS: Final[Mapping[str, Any]] = MappingProxyType({})
_NEEDS_ASYNC: Final = "an input of map() is an async iterable: iterate its results with `async for`"


class Call:
    """The arguments of one execution."""

    __slots__ = ("args", "keywords")

    def __init__(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self.args, self.keywords = args, keywords


class MapInputs:
    """The inputs: an iterable for each argument, which end with the shortest.

    Attributes:
        is_async: Whether one of them is iterated asynchronously; set by ``open``.
        calls: The arguments of the executions, if none is; set by ``open``.
    """

    calls: Iterator[Call]
    is_async: bool

    def __init__(self, iterables: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self._iterables = [*iterables, *keywords.values()]
        if not self._iterables:
            raise TypeError("map() needs an iterable of inputs for each argument of an execution")
        for each in self._iterables:
            if not (_is_async(each) or _is_sync(each)):
                raise TypeError(
                    "map() needs an iterable of inputs for each argument of an execution, found "
                    f"a {type(each).__name__}"
                )
        self._positional, self._names = len(iterables), tuple(keywords)
        self._iterators: list[Any] = []

    def open(self, *, is_async: bool) -> None:
        """Begin to iterate, unless that was done.

        Args:
            is_async: Whether what is both is iterated asynchronously.

        Raises:
            TypeError: The inputs can only be iterated asynchronously, or it was begun so.
        """
        if not self._iterators:
            asynchronous = [_is_async(each) and is_async for each in self._iterables]
            if not is_async and not all(map(_is_sync, self._iterables)):
                raise TypeError(_NEEDS_ASYNC)
            self.is_async = any(asynchronous)
            self._iterators = [
                aiter(each) if is_so else iter(each)
                for each, is_so in zip(self._iterables, asynchronous, strict=True)
            ]
            self._asynchronous = asynchronous
            self._iterables = []
            if not self.is_async:
                self.calls = map(self._call, zip(*self._iterators, strict=False))
        elif self.is_async and not is_async:
            raise TypeError(_NEEDS_ASYNC)

    async def next_async(self) -> Call | None:
        """Return the arguments of the next execution; None if there is none."""
        values = []
        for each, is_async in zip(self._iterators, self._asynchronous, strict=True):
            try:
                values.append(await anext(each) if is_async else next(each))
            except (StopIteration, StopAsyncIteration):
                return None
        return self._call(values)

    def _call(self, values: Sequence[Any]) -> Call:
        if not self._names:
            return Call(values, _NO_KEYWORDS)
        named = zip(self._names, values[self._positional :], strict=True)
        return Call(values[: self._positional], dict(named))


def _is_async(value: object) -> bool:
    return hasattr(type(value), "__aiter__")


def _is_sync(value: object) -> bool:
    return hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")
