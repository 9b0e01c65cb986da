# SPDX-License-Identifier: Apache-2.0
"""Waiting for the answers of actors that are asked to take part in a graph, and naming them.

What goes wrong becomes an error of rcg's that names the actor and the place where it was bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any, Final

from rcg import cluster
from rcg.error_text import shielded
from rcg.errors import ActorDiedError, ChannelTimeout, CompileError, PlacementError, RcgError
from rcg.ir.nodes import Site
from rcg.ir.plan import Bindings
from rcg.options import Deadline
from rcg.progress import notice
from rcg.runtime.driver.session import Session
from rcg.text import plural
from rcg.version import __version__

# After this long, compiling says which actors have not answered. The process of an actor is often
# started in ten seconds, with its imports.
_SILENT_WAIT_S: Final = 30.0
_MOST_NAMES: Final = 3  # in a sentence
# Between two checks for answers and deaths.
_POLL_S: Final = 0.2

Methods = Mapping[str, Mapping[str, Site | None]]
"""The methods called on each actor, and where the user bound them."""


class Named:
    """Names actors in errors: as views do, and by the first place where the graph uses them."""

    def __init__(self, bindings: Bindings, methods: Methods | None = None) -> None:
        self._bindings = bindings
        self._methods = methods or {}

    def name(self, actor: str) -> str:
        """Return what reports and pictures call an actor: ``a0 (Stage)``."""
        return f"{actor} ({cluster.actor_label(self._bindings.actors[actor])})"

    def names(self, actors: Iterable[str]) -> str:
        """Return the names of several, in a sentence: of many the first ones."""
        found = list(map(self.name, actors))
        more = len(found) - _MOST_NAMES
        shown = ", ".join(found[:_MOST_NAMES])
        return f"{shown} and {more} more" if more > 0 else shown

    def id(self, actor: str) -> str:
        """Return Ray's id of the actor, in hex."""
        return cluster.actor_id(self._bindings.actors[actor])

    def facts(self, actor: str) -> dict[str, Any]:
        """Return the facts of an error about this actor."""
        handle = self._bindings.actors[actor]
        bound = next(iter(self._methods.get(actor, {}).items()), None)
        return {
            "actor": self.name(actor),
            "node": None if bound is None else f"{cluster.actor_label(handle)}.{bound[0]}",
            "site": None if bound is None else bound[1],
        }


def gather(
    calls: Mapping[str, Any],
    named: Named,
    deadline: Deadline,
    done: str,
    session: Session | None = None,
) -> dict[str, Any]:
    """Wait for the answers of several actors; raises the first error as rcg's own.

    Args:
        calls: The call of each actor.
        named: Names them.
        deadline: When waiting ends.
        done: What they were asked to have done, for texts: "answered".
        session: With one, it also raises when an actor dies that has answered already.
    """
    pending = dict(calls)
    answers: dict[str, Any] = {}
    begun = Deadline(_SILENT_WAIT_S)
    has_warned = False
    while pending:
        left = deadline.remaining_s()
        refs = list(pending.values())
        cluster.wait(refs, timeout_s=_POLL_S if left is None else min(_POLL_S, left))
        ready, _ = cluster.wait(refs, num_returns=len(refs), timeout_s=0)
        for actor in [a for a, ref in pending.items() if ref in ready]:
            answers[actor] = answer_of(actor, pending.pop(actor), named)
        if pending and session is not None:
            gone = set(map(session.plan.host_of, session.control.lives.gone.copy()))
            if gone - set(pending):  # one that has not answered says itself what is wrong
                session.check_running()
        if pending and deadline.expired:
            raise ChannelTimeout(
                f"compile() waited {deadline.timeout_s:g} s, and {_late(pending, calls)} not "
                f"{done}: {named.names(pending)}. They may still be running a method or starting "
                "up; raise `timeout`, or look at them with `ray stack`.",
                timeout_s=deadline.timeout_s,
            )
        if pending and begun.expired and not has_warned:
            has_warned = True
            notice(
                f"rcg: compile() has waited {_SILENT_WAIT_S:g} s, and {_late(pending, calls)} not "
                f"{done} (still starting, or busy with a method?): {named.names(pending)}"
            )
    return answers


def _late(pending: Sized, calls: Sized) -> str:
    have = "has" if len(pending) == 1 else "have"
    return f"{len(pending)} of {plural(len(calls), 'actor')} {have}"


def answer_of(actor: str, ref: Any, named: Named) -> Any:
    """Return the answer of an actor's call, which is there; raises its error as rcg's own."""
    name, facts = named.name(actor), named.facts(actor)
    try:
        return cluster.get(ref)
    except Exception as error:
        if cluster.is_actor_death(error):
            said = shielded(str, error, otherwise="")
            raise ActorDiedError(
                f"{name} is dead, so the graph cannot be compiled: {cluster.why_dead(said)}",
                actor_id=named.id(actor),
                **facts,
            ) from (error if cluster.is_dead_in_init(said) else None)  # the user's line is there
        own = cluster.cause_of(error) or error
        if isinstance(own, RcgError):
            raise own from None  # it says all, and Ray's traceback says nothing more
        if isinstance(own, ImportError):
            raise PlacementError(
                f"the process of {name} cannot import rcg ({own}): install rcg "
                f"{__version__} on that node, or give it in the actor's runtime_env "
                '({"pip": ["rcg"]})',
                **facts,
            ) from error
        raise CompileError(
            f"{name} could not start its part of the graph: {error}", **facts
        ) from error
