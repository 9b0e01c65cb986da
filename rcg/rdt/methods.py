# SPDX-License-Identifier: Apache-2.0
"""What a method of an actor does before and after the user's own, and may call itself.

The class that Ray makes actors of (``rcg.rdt.actors``) calls these functions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final

from rcg.callers import not_an_end
from rcg.error_text import describe_error
from rcg.errors import ENDS
from rcg.frames import errors_from_user_on, left_out_by_ray, warn_user
from rcg.options import timeout_from_user
from rcg.rdt.awaiting import holders_of, submit
from rcg.rdt.envelope import Envelope, closed, let_methods_open
from rcg.rdt.process import existing, is_reachable, start_actor
from rcg.rdt.refs import Deferred
from rcg.rdt.store import Entry, memory_of
from rcg.rdt.values import check_all_apart, open_all, open_into, seal

# The objects of this process that the running call has taken as arguments.
_taken: Final[ContextVar[frozenset[str]]] = ContextVar("rcg_rdt_taken", default=frozenset())


@contextlib.contextmanager
def taking(keys: frozenset[str]) -> Iterator[None]:
    """Have a call run that has taken objects of this process as arguments."""
    token = _taken.set(keys)
    try:
        yield
    finally:
        _taken.reset(token)


def wait_tensor_freed(tensor: Any, timeout: float | None = None) -> None:
    """Wait until no reference and no pending call needs a tensor that this actor has returned.

    After it the tensor may be written to: nobody sees that. It is about the tensor's memory, so any
    view of the tensor will do.

    Args:
        tensor: The tensor.
        timeout: Seconds; None sets no limit.

    Raises:
        TypeError: ``tensor`` is no torch tensor, or a sparse or nested one.
        TimeoutError: It is still needed; the text says which objects need it.
    """
    if not hasattr(tensor, "untyped_storage"):
        raise TypeError(f"wait_tensor_freed takes a torch tensor, found {type(tensor).__name__}")
    try:
        shape = list(tensor.shape)
        memory = memory_of(tensor)
    except (RuntimeError, NotImplementedError) as error:
        raise TypeError(
            "wait_tensor_freed tells tensors by their memory, and this one has none of its own: "
            f"{describe_error(error)}. Wait for the tensors that it consists of"
        ) from None
    timeout_s = timeout_from_user(timeout, "timeout")
    ours = existing()
    if ours is None:
        return  # this process has never kept one
    has_warned: list[bool] = []
    taken_here = _taken.get()

    def meanwhile(entries: list[Entry]) -> None:
        if not has_warned:
            has_warned.append(True)
            own = [each.key for each in entries if ours.holds_ref_to(each)]
            if own:
                warn_user(
                    f"wait_tensor_freed waits for {', '.join(own)}, and this process itself holds "
                    "a reference to it: drop that (`del ref`)",
                    UserWarning,
                )
            taken = [each.key for each in entries if each.key in taken_here]
            if taken:
                warn_user(
                    f"wait_tensor_freed waits for {', '.join(taken)}, which the call that waits "
                    "has itself taken as an argument: it is freed when the call ends, not before",
                    UserWarning,
                )

    ours.keeper.look()
    left = ours.store.wait_freed(memory, timeout_s, meanwhile)
    if left:
        objects = ", ".join(f"object {each.key} ({each.transport})" for each in left)
        raise TimeoutError(
            f"Tensor of shape {shape} not freed from RDT object store after "
            f"{timeout_s} s: {objects} still has references, or calls that depend on it"
        )


Named = dict[str, Any]
Arguments = tuple[tuple[Any, ...], Named]

# By the places and names of arguments: a parameter and the attribute that it is received into.
Targets = Mapping[int | str, tuple[str, str]]

_NONE: Final[Targets] = {}
_NO_CONTEXT: Final = nullcontext()


class no_end_of:  # noqa: N801 - used as a function is
    """Raise an error in place of what a user's function raises and Python takes for an end."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __enter__(self) -> None:
        """Do nothing."""

    @left_out_by_ray
    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """See the class."""
        if isinstance(error, ENDS):
            name = getattr(self._function, "__qualname__", "a function")
            raise not_an_end(error, name)


@left_out_by_ray
def construct(
    name: str,
    secret: str,
    function: Callable[..., Any],
    actor: Any,
    args: tuple[Any, ...],
    kwargs: Named,
) -> None:
    """Make this process an actor of rcg, and run the user's constructor."""
    let_methods_open()
    start_actor(name, secret)
    named = {key: _open_deferred(each) for key, each in kwargs.items()}
    call(function, actor, tuple(map(_open_deferred, args)), named)


def _open_deferred(value: Any) -> Any:
    return value.open() if type(value) is Deferred else value


@left_out_by_ray
def call(
    function: Callable[..., Any],
    actor: Any,
    args: tuple[Any, ...],
    kwargs: Named,
    targets: Targets = _NONE,
    request: object = "",
) -> Any:
    """Run a user's method.

    Returns:
        What the method returns, or what travels in its place.
    """
    running = _running(args, kwargs)
    with errors_from_user_on:
        args, kwargs = open_arguments(args, kwargs, actor, targets)
    with no_end_of(function), running, closed(False):  # what it unpickles itself is opened at once
        value = function(actor, *args, **kwargs)
    with errors_from_user_on:
        return _finish(value, function, request)


@left_out_by_ray
async def call_async(
    function: Callable[..., Any],
    actor: Any,
    args: tuple[Any, ...],
    kwargs: Named,
    targets: Targets,
    request: object,
) -> Any:
    """As ``call``, of a coroutine."""
    running = _running(args, kwargs)
    with errors_from_user_on:
        args, kwargs = await open_arguments_later(args, kwargs, actor, targets)
    with no_end_of(function), running, closed(False):
        value = await function(actor, *args, **kwargs)
    with errors_from_user_on:
        return _finish(value, function, request)


class WithValues:
    """A function that a user sends to an actor, which opens its arguments."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @left_out_by_ray
    def __call__(self, actor: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call it with the values of its arguments."""
        running = _running(args, kwargs)
        args, kwargs = open_arguments(args, kwargs, actor)
        with no_end_of(self._function), running, closed(False):
            return self._function(actor, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return WithValues, (self._function,)


def open_arguments(
    args: tuple[Any, ...], kwargs: Named, actor: Any = None, targets: Targets = _NONE
) -> Arguments:
    """Return the arguments of a method with those that are envelopes opened.

    Raises:
        ValueError: What such an attribute has does not fit.
        TypeError: It is no tensor.
        Exception: As ``rcg.rdt.open_all``.
    """
    if not _has_envelope(args, kwargs):
        return args, kwargs
    return _open(args, kwargs, actor, targets)


async def open_arguments_later(
    args: tuple[Any, ...], kwargs: Named, actor: Any = None, targets: Targets = _NONE
) -> Arguments:
    """As ``open_arguments``; the event loop goes on while tensors are pulled."""
    if not _has_envelope(args, kwargs):
        return args, kwargs
    key = holders_of([*args, *kwargs.values()])
    future = submit(key, lambda: _open(args, kwargs, actor, targets))
    return await asyncio.wrap_future(future)


def _finish(value: Any, function: Callable[..., Any], request: object) -> Any:
    ours = existing()
    if ours is not None and ours.store.is_holding:
        ours.store.look_for_writes(function)
    return seal_return(value, request, function.__qualname__) if request else value


def seal_return(value: Any, request: object, name: str) -> Any:
    """Return what a method returns in place of a value with tensors.

    Args:
        value: What the user's method returned.
        request: What the hidden keyword says: the transport and the object's id, ``gloo:KEY``;
            ``gloo*2:KEY`` for a method that returns two values.
        name: The name of the method.
    """
    if not is_reachable():
        return value
    transport, _, key = str(request).partition(":")
    plain, _, count = transport.partition("*")
    if not count:
        return seal(value, plain, key, f"The value of {name}")
    if not isinstance(value, (tuple, list)):
        return value  # Ray says what is wrong with it
    return [
        seal(each, plain, f"{key}.{at}", f"Value {at} of {name}") for at, each in enumerate(value)
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


def _open(args: tuple[Any, ...], kwargs: Named, actor: Any, targets: Targets) -> Arguments:
    if targets:
        named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        received = {
            key: (*targets[key], _target_of(actor, targets[key][1]))
            for key, value in named
            if key in targets and type(value) is Envelope
        }
        check_all_apart([(attribute, out) for _, attribute, out in received.values()])
        args = tuple(_receive(each, *received.get(at, ())) for at, each in enumerate(args))
        kwargs = {name: _receive(each, *received.get(name, ())) for name, each in kwargs.items()}
    values = open_all([*args, *kwargs.values()])
    count = len(args)
    return tuple(values[:count]), dict(zip(kwargs, values[count:], strict=True))


def _target_of(actor: Any, attribute: str) -> Any:
    """Return what an attribute of an actor has; None where the method is still to set it.

    Raises:
        AttributeError: The actor has no such attribute.
    """
    try:
        return getattr(actor, attribute)
    except AttributeError:
        raise AttributeError(
            f"receive_into names the attribute {attribute!r}, which {type(actor).__name__} does "
            "not have: set it in the constructor, to None as long as there is no memory"
        ) from None


def _receive(value: Any, name: str = "", attribute: str = "", out: Any = None) -> Any:
    """Return the value of an envelope that is received into an attribute of the actor.

    Without something there it stays an envelope, to be opened with the others.
    """
    if out is None:
        return value
    return open_into(value, None, out, f"the argument {name}, received into {attribute}")
