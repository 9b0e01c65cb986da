# SPDX-License-Identifier: Apache-2.0
"""Calls that take and return references to tensors: what is checked and replaced when one is made.

What cannot work is said here, in the process that calls, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rcg import cluster
from rcg.ir.nodes import KEEP
from rcg.rdt import collective_groups
from rcg.rdt.actors import KEEPS_NONE
from rcg.rdt.collective_groups import groups_of
from rcg.rdt.custom import check_reaches
from rcg.rdt.methods import WithValues
from rcg.rdt.nixl import check_has_nixl
from rcg.rdt.process import here
from rcg.rdt.refs import Deferred, TensorRef
from rcg.rdt.transports import NIXL, Transport, WithTransport, find_transport, with_transport

_OF_RAY: Final = "__ray_call__"
"""A method that Ray adds to every class of actors: it calls its first argument with the others."""


def lower_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], handle: Any = None, method: str = ""
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call as Ray takes them: references to tensors become Ray's own.

    Raises:
        ValueError: The actor cannot get the tensors.
        OutOfThreads: No more threads can be started.
    """
    if method == _OF_RAY and args:
        args = WithValues(args[0]), *args[1:]

    def lower_refs(value: Any) -> Any:
        if type(value) is not TensorRef:
            return value
        here().keeper.start()
        if handle is not None:
            value.note_passed_to(handle)
        return value.inner

    named = {name: lower_refs(each) for name, each in kwargs.items()}
    return tuple([lower_refs(each) for each in args]), named


def lower_constructor_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a constructor as Ray takes them.

    Ray unpickles them before anything of rcg runs in the actor. So references go as they are, and
    the actor gets their values when it is one (``rcg.rdt.methods.construct``).
    """
    named = {name: _defer(each) for name, each in kwargs.items()}
    return tuple(map(_defer, args)), named


def _defer(value: Any) -> Any:
    if type(value) is not TensorRef:
        return value
    here().keeper.start()
    return Deferred(value)


def transport_for(
    handle: Any, name: str, declared: str | None, asked: str | None, num_returns: object
) -> str | WithTransport | None:
    """Return what the hidden keyword of a call says; None if it is to be left out.

    Args:
        handle: Ray's handle of the actor.
        name: The method.
        declared: What its handle says of it (``cluster.actor_method_transport``).
        asked: The transport that the call asks for, if any.
        num_returns: How many values it returns.

    Raises:
        ValueError: The actor is not one of rcg's, or keeps no tensors, or cannot send by this
            transport, or the method is a generator.
        OutOfThreads: No more threads can be started.
    """
    if num_returns == 0 or (asked is None and declared in (None, "", KEEPS_NONE)):
        return None
    if declared == KEEPS_NONE:
        raise ValueError(
            f'Currently, methods with .options(tensor_transport="{asked}") are not supported when '
            f"enable_tensor_transport=False. {handle!r} was made so: please set "
            "@ray.remote(enable_tensor_transport=True) on the actor class definition."
        )
    if declared is None:
        raise ValueError(
            f"{handle!r} was not made by rcg.remote, so its tensors cannot be passed by reference: "
            f"leave tensor_transport={asked!r} out, or make the actor with rcg.remote"
        )
    if not isinstance(num_returns, int):
        raise ValueError(
            f"{handle!r}.{name} is a generator, whose tensors cannot be passed by reference: leave "
            f"tensor_transport={asked!r} out, or have it return a list"
        )
    plain = (asked if asked is not None else declared.partition("*")[0]).lower()
    found = find_transport(plain)
    if found.needs_group:
        _check_sends(handle, found)
    elif found.manager is not None:
        check_reaches(found, handle)
    elif found.name == NIXL:
        check_has_nixl(here().note_peer(cluster.actor_id(handle), handle))
    count = f"*{num_returns}" if num_returns > 1 else ""
    here().keeper.start()
    return with_transport(f"{plain}{count}:{here().new_key()}")


def check_keeps(handle: Any, transport: Any) -> str | WithTransport:
    """Return the transport by which the tensors of a graph's output travel later.

    Raises:
        ValueError: There is no such transport, or the actor keeps no tensors for it.
    """
    chosen = find_transport(transport).name
    transport_for(handle, KEEP, cluster.actor_method_transport(handle, KEEP), chosen, 1)
    return with_transport(chosen)


def call_keep(handle: Any, value: Any, transport: str, where: str) -> Any:
    """Have an actor keep the tensors of a value, by an ordinary call; returns the reference."""
    plain = str(transport)
    said = transport_for(handle, KEEP, "", plain, 1)
    hidden = {cluster.HIDDEN_KEYWORD: said}
    made = getattr(handle, KEEP).remote(value, plain, where, **hidden)
    return wrap_results(made, said, handle)


def wrap_results(made: Any, said: object, handle: Any) -> Any:
    """Return references to tensors in place of those that Ray's call returned."""
    transport, _, key = str(said).partition(":")
    plain = transport.partition("*")[0]
    ours, maker = here(), cluster.actor_id(handle)
    keeper, holder = ours.keeper, ours.note_peer(maker, handle)
    label, kept = holder.label, None if ours.holder.actor else handle
    if isinstance(made, list):
        keys = [f"{key}.{at}" for at in range(len(made))]
        for each, its_key in zip(made, keys, strict=True):
            keeper.keep(each, its_key, holder, kept)
        return [
            TensorRef(each, plain, maker, label, its_key)
            for each, its_key in zip(made, keys, strict=True)
        ]
    if cluster.is_object_ref(made):
        keeper.keep(made, key, holder, kept)
        return TensorRef(made, plain, maker, label, key)
    return made  # a generator, or nothing


def hold_until_done(
    taken: Sequence[TensorRef], made: Any, what: Callable[[], str], handle: Any = None
) -> None:
    """Hold references that a call takes until its results are there.

    Args:
        taken: The references.
        made: What Ray's call returned.
        what: Returns what messages call the call.
        handle: Ray's handle of the actor that is called; None for a task.
    """
    results = made if isinstance(made, list) else [made]
    waited = [each for each in map(_plain_of, results) if each is not None]
    if taken and waited:
        taker = None if handle is None else here().note_peer(cluster.actor_id(handle), handle)
        here().keeper.hold(taken, waited, what, taker=taker)


def refuse_in_tasks(options: Mapping[str, Any]) -> None:
    """Refuse options of a task that would have it keep tensors.

    Raises:
        ValueError: There is one.
    """
    for name in ("tensor_transport", "_tensor_transport", "enable_tensor_transport"):
        if options.get(name):
            raise ValueError(
                f"{name}={options[name]!r}: a task cannot keep tensors for others, because its "
                "process may end at any time. Make them in a method of an actor that has "
                "@method(tensor_transport=...), or leave the option out: the value is copied then"
            )


def references_in(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[TensorRef]:
    """Return the references among the arguments of a call."""
    return [each for each in (*args, *kwargs.values()) if type(each) is TensorRef]


def _plain_of(result: Any) -> Any:
    """Return an ObjectRef that is ready when a call has ended; None if there is none."""
    if cluster.is_object_ref(result):
        return result
    completed = getattr(result, "completed", None)  # of a generator
    return None if completed is None else completed()


def _check_sends(handle: Any, transport: Transport) -> None:
    """Check that an actor is in a group of a transport."""
    if collective_groups.groups_with([cluster.actor_id(handle)], transport.name):
        return
    if not any(each.backend == transport.name for each in groups_of(handle) or ()):
        raise ValueError(
            f"{handle!r} does not have tensor transport {transport.name.upper()} available. If "
            "using a collective-based transport, please create a communicator with "
            "`ray.experimental.collective.create_collective_group` before calling actor tasks."
        )
