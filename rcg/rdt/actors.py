# SPDX-License-Identifier: Apache-2.0
"""Actors of rcg: a class derived from the user's, whose methods open and seal.

Each method gets a hidden keyword, whose default names the method's transport. Ray ships signatures
with handles, so every handle tells it (``cluster.actor_method_transport``), and a call can name
another one. The user's method runs inside: it never sees an envelope.

The constructor gets one, too: its default is a secret of the class, from which the secret of each
actor follows (``rcg.rdt.process``). So the processes that have a handle, and the actor, however
often it runs again, know the same secret. It is only where Ray keeps the class.

The functions here go to the actors by value, as the class does. So they name only what can be
imported there.
"""

from __future__ import annotations

import functools
import inspect
import secrets
from typing import Any, Final

from rcg.cluster import CALLED, HIDDEN_KEYWORD, SECRET_KEYWORD
from rcg.frames import left_out_by_ray
from rcg.ir.nodes import KEEP
from rcg.rdt.transports import with_transport
from rcg.runtime.actor.methods import PLAIN

DECLARED: Final = "__rcg_tensor_transport__"
"""The attribute of a function that has what ``@method(tensor_transport=...)`` says."""

KEEPS_NONE: Final = "-"
"""In place of a transport: the class says that its actors keep no tensors."""

_TARGETS: Final = "__rcg_receive_into__"
_DERIVED: Final = "__rcg_derived_from__"


def declare_transport(function: Any, transport: str) -> Any:
    """Note on a function what ``@method(tensor_transport=...)`` says."""
    setattr(function, DECLARED, transport)
    return function


def declare_targets(function: Any, targets: Any) -> Any:
    """Note on a function what ``@method(receive_into=...)`` says: attributes, by parameters.

    Raises:
        TypeError: It is no dict of such names.
        ValueError: The function has no parameter of a name.
    """
    if not isinstance(targets, dict) or not all(
        isinstance(each, str) for pair in targets.items() for each in pair
    ):
        raise TypeError(
            "receive_into must be a dict from names of parameters to names of attributes of the "
            f"actor, as in {{'weights': '_weights'}}, found {targets!r}"
        )
    _, *parameters = inspect.signature(function).parameters.values()
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    named = {each.name for each in parameters if each.kind not in several}
    for name in targets:
        if name not in named:
            raise ValueError(
                f"receive_into={targets!r}: {function.__qualname__} has no parameter {name!r}"
            )
    if len(set(targets.values())) < len(targets):
        raise ValueError(
            f"receive_into={targets!r}: two parameters would be received into one attribute"
        )
    setattr(function, _TARGETS, dict(targets))
    return function


def derive(cls: type, *, keeps_tensors: bool = True) -> type:
    """Return the class that Ray makes actors of."""
    if _DERIVED in vars(cls):
        return cls
    members: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        _DERIVED: cls,
        "__init__": _constructor(cls),
    }
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        is_users = not name.startswith("__") or name in CALLED
        if hasattr(function, DECLARED) and _is_generator(function):
            raise ValueError(
                f"{cls.__name__}.{name} has a tensor_transport, but it is a generator, whose "
                "tensors cannot be passed by reference: have it return a list, or leave that out"
            )
        # A partialmethod, or another descriptor, gives a function, too.
        if is_users and not isinstance(inspect.getattr_static(cls, name), staticmethod):
            members[name] = _wrap(function, keeps_tensors)
    for name in dir(cls):
        found = inspect.getattr_static(cls, name, None)
        is_such = isinstance(found, staticmethod | classmethod)
        if is_such and not name.startswith("__") and inspect.isfunction(found.__func__):
            if hasattr(found.__func__, DECLARED):
                raise ValueError(
                    f"{cls.__name__}.{name} has a tensor_transport, but a {type(found).__name__} "
                    "has no actor that could keep its tensors: make it a method, or leave that out"
                )
            members[name] = type(found)(_without_actor(found.__func__))
    if hasattr(cls, KEEP):
        raise ValueError(f"{cls.__name__}.{KEEP}: rcg has a method of this name; choose another")
    members[KEEP] = _keeping(keeps_tensors)
    return type(cls)(cls.__name__, (cls,), members)


def _keeping(keeps_tensors: bool) -> Any:
    """Return the method that keeps a result of a graph.

    A graph calls what is behind it. A DAG that is run without being compiled calls it as a task
    that returns the value, with a transport.
    """

    def rcg_keep(self: Any, value: Any, transport: str, where: str) -> Any:
        return value

    def keep(self: Any, value: Any, transport: str, where: str) -> Any:
        from rcg.rdt.held import keep_result

        return keep_result(value, transport, where)

    made = _wrap(rcg_keep, keeps_tensors)
    setattr(made, PLAIN, keep)
    return made


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _constructor(cls: type) -> Any:
    plain: Any = cls.__init__  # type: ignore[misc]
    name, secret = cls.__name__, secrets.token_hex(16)

    @left_out_by_ray
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        from rcg.rdt.methods import construct

        construct(name, secret, plain, self, args, kwargs)

    if plain is not object.__init__:
        functools.update_wrapper(__init__, plain)
        del __init__.__wrapped__  # type: ignore[attr-defined]  # Ray would look behind it
        signature = inspect.signature(plain)
    else:
        signature = inspect.Signature(
            [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        )
    hidden = _with_hidden(signature, SECRET_KEYWORD, secret)
    __init__.__signature__ = hidden  # type: ignore[attr-defined]
    return __init__


def _wrap(function: Any, keeps_tensors: bool) -> Any:
    """Return a method that opens its arguments, and seals what it returns if the call asks for it.

    Calls ask by the hidden keyword, which every handle of rcg passes to a method with a transport.
    A call from within the actor does not, and gets the value itself.
    """
    transport = getattr(function, DECLARED, "") if keeps_tensors else KEEPS_NONE
    num_returns = getattr(function, "__ray_num_returns__", 1)
    targets = _targets_of(function)
    if keeps_tensors and transport and isinstance(num_returns, int) and num_returns > 1:
        transport = f"{transport}*{num_returns}"
    made: Any
    if inspect.isasyncgenfunction(function):

        async def asynchronous_generator(
            self: Any, *args: Any, _rcg_tensor_transport_: str = "", **kwargs: Any
        ) -> Any:
            from rcg.rdt.methods import open_arguments_later

            args, kwargs = await open_arguments_later(args, kwargs, self, targets)
            async for item in function(self, *args, **kwargs):
                yield item

        made = asynchronous_generator
    elif inspect.isgeneratorfunction(function):

        def generator(
            self: Any, *args: Any, _rcg_tensor_transport_: str = "", **kwargs: Any
        ) -> Any:
            from rcg.rdt.methods import open_arguments

            args, kwargs = open_arguments(args, kwargs, self, targets)
            yield from function(self, *args, **kwargs)

        made = generator
    elif inspect.iscoroutinefunction(function):

        async def coroutine(
            self: Any, *args: Any, _rcg_tensor_transport_: str = "", **kwargs: Any
        ) -> Any:
            from rcg.rdt.methods import call_async

            return await call_async(function, self, args, kwargs, targets, _rcg_tensor_transport_)

        made = coroutine
    else:

        def method(self: Any, *args: Any, _rcg_tensor_transport_: str = "", **kwargs: Any) -> Any:
            from rcg.rdt.methods import call

            return call(function, self, args, kwargs, targets, _rcg_tensor_transport_)

        made = method
    functools.update_wrapper(left_out_by_ray(made), function)
    del made.__wrapped__  # Ray would look behind it
    made.__signature__ = _with_hidden(
        inspect.signature(function), HIDDEN_KEYWORD, with_transport(transport)
    )
    setattr(made, PLAIN, function)
    return made


def _without_actor(function: Any) -> Any:
    """Return the function of a static method or a class method, which opens its arguments."""
    made: Any
    if inspect.isasyncgenfunction(function):

        async def asynchronous_generator(*args: Any, **kwargs: Any) -> Any:
            from rcg.rdt.methods import open_arguments_later

            args, kwargs = await open_arguments_later(args, kwargs)
            async for item in function(*args, **kwargs):
                yield item

        made = asynchronous_generator
    elif inspect.isgeneratorfunction(function):

        def generator(*args: Any, **kwargs: Any) -> Any:
            from rcg.rdt.methods import open_arguments

            args, kwargs = open_arguments(args, kwargs)
            yield from function(*args, **kwargs)

        made = generator
    elif inspect.iscoroutinefunction(function):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            from rcg.rdt.methods import open_arguments_later

            args, kwargs = await open_arguments_later(args, kwargs)
            return await function(*args, **kwargs)

        made = coroutine
    else:

        def plain(*args: Any, **kwargs: Any) -> Any:
            from rcg.rdt.methods import open_arguments

            args, kwargs = open_arguments(args, kwargs)
            return function(*args, **kwargs)

        made = plain
    functools.update_wrapper(left_out_by_ray(made), function)
    del made.__wrapped__  # Ray would look behind it
    made.__signature__ = inspect.signature(function)
    return made


def _targets_of(function: Any) -> dict[int | str, tuple[str, str]]:
    """Return which arguments are received into what: (parameter, attribute).

    The keys are the places of arguments, without ``self``, and their names.
    """
    found: dict[int | str, tuple[str, str]] = {}
    targets = getattr(function, _TARGETS, {})
    for at, each in enumerate(inspect.signature(function).parameters.values() if targets else ()):
        if each.name in targets:
            found[each.name] = each.name, targets[each.name]
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
                found[at - 1] = found[each.name]
    return found


def _with_hidden(signature: inspect.Signature, name: str, default: object) -> inspect.Signature:
    hidden = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
    parameters = list(signature.parameters.values())
    has_rest = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    at = len(parameters) - 1 if has_rest else len(parameters)
    return signature.replace(parameters=[*parameters[:at], hidden, *parameters[at:]])
