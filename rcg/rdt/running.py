# SPDX-License-Identifier: Apache-2.0
"""What a method of an actor does before and after the user's own; see ``rcg.rdt.methods``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from rcg.frames import left_out_by_ray
from rcg.rdt import opening
from rcg.rdt.envelope import Envelope, closed, opened_by_methods
from rcg.rdt.freed import taking
from rcg.rdt.process import existing, is_reachable, start_actor
from rcg.rdt.pullers import holders_of, submit
from rcg.rdt.refs import Unopened

__all__ = [
    "WithValues",
    "awaited",
    "called",
    "constructed",
    "opened_arguments",
    "opened_later",
    "sealed_return",
]

Named = dict[str, Any]
Arguments = tuple[tuple[Any, ...], Named]

# By the places and names of arguments: a parameter and the attribute that it is received into.
Targets = Mapping[int | str, tuple[str, str]]

_NONE: Final[Targets] = {}
_NO_CONTEXT: Final = nullcontext()


@left_out_by_ray
def constructed(
    name: str,
    secret: str,
    function: Callable[..., Any],
    actor: Any,
    args: tuple[Any, ...],
    kwargs: Named,
) -> None:
    """Make this process an actor of rcg, and run the constructor of the user's.

    Args:
        name: The name of the class.
        secret: The secret of the class.
        function: The constructor.
        actor: The actor.
        args: The arguments.
        kwargs: The keyword arguments.
    """
    opened_by_methods()
    start_actor(name, secret)
    named = {key: _opened_by_constructor(each) for key, each in kwargs.items()}
    called(function, actor, tuple(map(_opened_by_constructor, args)), named)


def _opened_by_constructor(value: Any) -> Any:
    return value.opened() if type(value) is Unopened else value


@left_out_by_ray
def called(
    function: Callable[..., Any],
    actor: Any,
    args: tuple[Any, ...],
    kwargs: Named,
    targets: Targets = _NONE,
    told: object = "",
) -> Any:
    """Run a method of the user's.

    Args:
        function: The method.
        actor: The actor.
        args: The arguments, of which some may be envelopes.
        kwargs: The keyword arguments.
        targets: Which arguments are received into attributes of the actor.
        told: What the hidden keyword says: see ``rcg.rdt.calls``.

    Returns:
        What the method returns, or what travels in its place.
    """
    running = _running(args, kwargs)
    args, kwargs = opened_arguments(args, kwargs, actor, targets)
    with running, closed(False):  # what it unpickles itself is opened at once
        value = function(actor, *args, **kwargs)
    return _returned(value, function, told)


@left_out_by_ray
async def awaited(
    function: Callable[..., Any],
    actor: Any,
    args: tuple[Any, ...],
    kwargs: Named,
    targets: Targets,
    told: object,
) -> Any:
    """As ``called``, of a coroutine."""
    running = _running(args, kwargs)
    args, kwargs = await opened_later(args, kwargs, actor, targets)
    with running, closed(False):
        value = await function(actor, *args, **kwargs)
    return _returned(value, function, told)


class WithValues:
    """A function that a user sends to an actor, which opens its arguments.

    Args:
        function: The function; its first argument is the actor.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @left_out_by_ray
    def __call__(self, actor: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call it with the values of its arguments."""
        running = _running(args, kwargs)
        args, kwargs = opened_arguments(args, kwargs, actor)
        with running, closed(False):
            return self._function(actor, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return WithValues, (self._function,)


def opened_arguments(
    args: tuple[Any, ...], kwargs: Named, actor: Any = None, targets: Targets = _NONE
) -> Arguments:
    """Return the arguments of a method with those that are envelopes opened.

    Args:
        args: The arguments.
        kwargs: The keyword arguments.
        actor: The actor.
        targets: Which arguments are received into attributes of the actor.

    Raises:
        ValueError: What such an attribute has does not fit.
        TypeError: It is no tensor.
        Exception: As ``rcg.rdt.opening.opened_all``.
    """
    if not _has_envelope(args, kwargs):
        return args, kwargs
    return _opened(args, kwargs, actor, targets)


async def opened_later(
    args: tuple[Any, ...], kwargs: Named, actor: Any = None, targets: Targets = _NONE
) -> Arguments:
    """As ``opened_arguments``; the event loop goes on while tensors are pulled."""
    if not _has_envelope(args, kwargs):
        return args, kwargs
    key = holders_of([*args, *kwargs.values()])
    future = submit(key, lambda: _opened(args, kwargs, actor, targets))
    return await asyncio.wrap_future(future)


def _returned(value: Any, function: Callable[..., Any], told: object) -> Any:
    ours = existing()
    if ours is not None and ours.store.is_holding:
        ours.store.look_for_writes(function)
    return sealed_return(value, told, function.__qualname__) if told else value


def sealed_return(value: Any, told: object, name: str) -> Any:
    """Return what a method returns in place of a value with tensors.

    Args:
        value: What the user's method returned.
        told: What the hidden keyword says: the transport and the object's id, ``gloo:KEY``;
            ``gloo*2:KEY`` for a method that returns two values.
        name: The name of the method.
    """
    if not is_reachable():
        return value
    transport, _, key = str(told).partition(":")
    plain, _, count = transport.partition("*")
    if not count:
        return opening.sealed(value, plain, key, f"The value of {name}")
    if not isinstance(value, (tuple, list)):
        return value  # Ray says what is wrong with it
    return [
        opening.sealed(each, plain, f"{key}.{at}", f"Value {at} of {name}")
        for at, each in enumerate(value)
    ]


def _has_envelope(args: tuple[Any, ...], kwargs: Named) -> bool:
    return Envelope in map(type, args) or Envelope in map(type, kwargs.values())


def _running(args: tuple[Any, ...], kwargs: Named) -> AbstractContextManager[None]:
    """Return the context of a call that has these arguments, before they are opened."""
    ours = existing()
    if ours is None or not _has_envelope(args, kwargs):
        return _NO_CONTEXT
    key = ours.holder.key
    own = [
        each.key
        for each in (*args, *kwargs.values())
        if type(each) is Envelope and each.holder.key == key
    ]
    return taking(frozenset(own)) if own else _NO_CONTEXT


def _opened(args: tuple[Any, ...], kwargs: Named, actor: Any, targets: Targets) -> Arguments:
    if targets:
        args = tuple(_received(at, each, actor, targets) for at, each in enumerate(args))
        kwargs = {name: _received(name, each, actor, targets) for name, each in kwargs.items()}
    values = opening.opened_all([*args, *kwargs.values()])
    count = len(args)
    return tuple(values[:count]), dict(zip(kwargs, values[count:], strict=True))


def _received(key: int | str, value: Any, actor: Any, targets: Targets) -> Any:
    """Return the value of an envelope that is received into an attribute of the actor.

    Without something there it stays an envelope, to be opened with the others.
    """
    name, attribute = targets.get(key, ("", ""))
    out = getattr(actor, attribute, None) if name and type(value) is Envelope else None
    if out is None:
        return value
    return opening.opened_into(value, None, out, f"the argument {name}, received into {attribute}")
