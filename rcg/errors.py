# SPDX-License-Identifier: Apache-2.0
"""The whole error tree of rcg.

The class says whose fault it is, the text says what is wrong and what to do, and the facts are
fields::

    RcgError
    |-- GraphError (ValueError)               the DAG as written is wrong: .node, .site
    |   |-- SignatureError (TypeError)        the arguments do not fit the method
    |   `-- UnsupportedNodeError              rcg cannot run such a node (NotImplementedError)
    |-- CompileError                          a right DAG that cannot be run here
    |   |-- PlacementError                    an actor is somewhere it cannot be reached
    |   `-- DeadlockError                     the programs would wait for each other: .programs
    |-- ExecutionError                        one execution, or what it needs, failed
    |   |-- ActorDiedError                    (ray.exceptions.ActorDiedError)
    |   |-- CapacityExceededError             (ray.exceptions.RayCgraphCapacityExceeded)
    |   `-- UnpicklableError                  a value cannot leave its process (TypeError)
    |-- ChannelError                          (ray.exceptions.RayChannelError)
    |   |-- ChannelClosed                     you closed it
    |   |-- ChannelBroken                     the peer is gone
    |   |-- ChannelTimeout                    (RayChannelTimeoutError, TimeoutError)
    |   |-- MessageTooLarge                   the value is larger than its channel can ever hold
    |   `-- OutOfSharedMemory                 no room now, within the cap
    |-- OutOfDescriptors                      a process has no file descriptor left: .limit
    |-- TransportError
    |   |-- Unavailable                       this transport does not work between these processes
    |   |-- TensorMismatch                    shape, dtype or device differ from what was promised
    |   `-- Transfer                          moving the bytes failed
    |-- CommError
    |   `-- GroupAborted                      a member of the group failed or left
    |-- TraceError (ValueError)               a recorded trace cannot be read, or not used so
    `-- InternalError                         a bug in rcg

Where Ray has a public exception for a case, ours is one too, so ``except`` clauses written for Ray
keep working; where the installed Ray lacks that name, or there is no Ray, a placeholder base stands
in. This room may look at ``ray.exceptions``, guarded, and knows nothing else of rcg or Ray. The
exceptions of users' own methods are not here: they reach the caller as what they are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

__all__ = [
    "ActorDiedError",
    "CapacityExceededError",
    "ChannelBroken",
    "ChannelClosed",
    "ChannelError",
    "ChannelTimeout",
    "CommError",
    "CompileError",
    "DeadlockError",
    "ExecutionError",
    "GraphError",
    "GroupAborted",
    "InternalError",
    "MessageTooLarge",
    "OutOfDescriptors",
    "OutOfSharedMemory",
    "PlacementError",
    "RcgError",
    "SignatureError",
    "TensorMismatch",
    "TraceError",
    "Transfer",
    "TransportError",
    "Unavailable",
    "UnpicklableError",
    "UnsupportedNodeError",
]

if TYPE_CHECKING:
    # What the type checker sees, and what stands in where Ray does not have the name.
    class _RayActorDiedError(Exception): ...

    class _RayCapacityExceeded(Exception): ...

    class _RayChannelError(Exception): ...

    class _RayChannelTimeout(_RayChannelError, TimeoutError): ...

else:
    try:
        import ray.exceptions as _ray_exceptions
    except ImportError:
        _ray_exceptions = None

    def _ray_base(name, *stand_in_bases):
        """Return Ray's exception of this name, or a placeholder where there is none."""
        found = getattr(_ray_exceptions, name, None)
        if isinstance(found, type) and issubclass(found, stand_in_bases):
            return found
        doc = f"Stands in for ray.exceptions.{name}, which this Ray does not have."
        return type(name, stand_in_bases, {"__doc__": doc, "__module__": __name__})

    _RayActorDiedError = _ray_base("ActorDiedError", Exception)
    _RayCapacityExceeded = _ray_base("RayCgraphCapacityExceeded", Exception)
    _RayChannelError = _ray_base("RayChannelError", Exception)
    _RayChannelTimeout = _ray_base("RayChannelTimeoutError", _RayChannelError, TimeoutError)


class RcgError(Exception):
    """Base of everything rcg raises on its own account.

    A class names the facts it usually carries by annotating them; those are attributes of every
    instance, None when not given. Any other keyword becomes an attribute as well. Facts are plain
    data (strings, numbers, tuples, things with a short ``str``), because errors travel between
    processes.

    Args:
        message: A sentence that says what is wrong and what to do about it.
        **facts: What is known about the case. Facts that are None are left out of the text.
    """

    message: str
    facts: dict[str, Any]
    _known_facts: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = (name for name in inspect.get_annotations(cls) if name[0] != "_")
        cls._known_facts = tuple(dict.fromkeys((*cls._known_facts, *own)))

    def __init__(self, message: str = "", **facts: Any) -> None:
        # Not super(): the bases taken from Ray have constructors of their own shape.
        Exception.__init__(self, message)
        self.message = message
        self.facts = {name: fact for name, fact in facts.items() if fact is not None}
        for name in self._known_facts:
            setattr(self, name, None)
        for name, fact in self.facts.items():
            setattr(self, name, fact)

    def __str__(self) -> str:
        return _describe(self.message, self.facts)

    def __repr__(self) -> str:
        facts = "".join(f", {name}={fact!r}" for name, fact in self.facts.items())
        return f"{type(self).__name__}({self.message!r}{facts})"

    def __reduce__(self) -> tuple[Any, ...]:
        notes = getattr(self, "__notes__", None)
        state = None if notes is None else {"__notes__": list(notes)}
        return _rebuild, (type(self), self.message, self.facts), state


def _rebuild(cls: type[RcgError], message: str, facts: Mapping[str, Any]) -> RcgError:
    return cls(message, **facts)


def _describe(message: str, facts: Mapping[str, Any]) -> str:
    r"""The one template: the sentence, the facts it does not mention yet, then the long ones.

    >>> print(_describe("Stage.fwd takes no input", {"node": "Stage.fwd", "site": "a.py:12"}))
    Stage.fwd takes no input [site: a.py:12]
    >>> print(_describe("They wait for each other", {"programs": "a0\n  Read c1 -> s0"}))
    They wait for each other
    programs:
      a0
        Read c1 -> s0
    """
    short: list[str] = []
    blocks: list[str] = []
    for name, fact in facts.items():
        text = str(fact)
        label = name.replace("_", " ")
        if "\n" in text:
            indented = "\n".join(f"  {line}".rstrip() for line in text.split("\n"))
            blocks.append(f"\n{label}:\n{indented}")
        elif not re.search(rf"(?<!\w){re.escape(text)}(?!\w)", message):
            short.append(f"{label}: {text}")
    listed = f" [{', '.join(short)}]" if short else ""
    return f"{message}{listed}{''.join(blocks)}"


class GraphError(RcgError, ValueError):
    """The DAG as written is wrong; says at which node and where the user bound it."""

    node: str | None
    site: object | None


class SignatureError(GraphError, TypeError):
    """The arguments given to ``bind`` do not fit the method's signature."""


class UnsupportedNodeError(GraphError, NotImplementedError):
    """A kind of node that rcg does not run."""


class CompileError(RcgError):
    """A DAG that is right but cannot be compiled for these actors."""

    node: str | None
    site: object | None
    actor: str | None


class PlacementError(CompileError):
    """An actor is where this graph cannot reach it, or its process cannot run rcg."""

    location: str | None


class DeadlockError(CompileError):
    """The programs would wait for each other for ever; ``programs`` shows where each stops."""

    programs: str | None


class ExecutionError(RcgError):
    """One execution, or something that all of them need, failed."""

    execution: int | None
    actor: str | None


class ActorDiedError(ExecutionError, _RayActorDiedError):
    """An actor of the graph is dead. Also a ``ray.exceptions.ActorDiedError``."""

    actor_id: str | None

    def __init__(self, message: str = "", **facts: Any) -> None:
        # Ray's properties read these.
        self._preempted = bool(facts.pop("preempted", False))
        self._actor_init_failed = bool(facts.pop("actor_init_failed", False))
        super().__init__(message, **facts)
        if self._preempted:
            self.facts["preempted"] = True
        if self._actor_init_failed:
            self.facts["actor_init_failed"] = True
        self.error_msg = str(self)

    @property
    def preempted(self) -> bool:
        """Whether the actor died because its node was preempted."""
        return self._preempted

    @property
    def actor_init_failed(self) -> bool:
        """Whether the actor's constructor raised."""
        return self._actor_init_failed


class CapacityExceededError(ExecutionError, _RayCapacityExceeded):
    """More executions in flight, or results buffered, than allowed. Nothing was submitted."""

    limit: int | None


class UnpicklableError(ExecutionError, TypeError):
    """A value cannot be sent to another process; ``where`` is the way to the part at fault."""

    where: str | None


class ChannelError(RcgError, _RayChannelError):
    """A channel cannot be used. Also a ``ray.exceptions.RayChannelError``."""

    channel: str | None
    execution: int | None


class ChannelClosed(ChannelError):
    """This side closed the channel, usually by ``teardown``."""


class ChannelBroken(ChannelError):
    """The process at the other end is gone."""

    peer: str | None


class ChannelTimeout(ChannelError, _RayChannelTimeout):
    """The deadline passed; nothing was lost, and the call may be repeated.

    Also a ``ray.exceptions.RayChannelTimeoutError`` and a ``TimeoutError``.
    """

    timeout_s: float | None
    report: str | None


class MessageTooLarge(ChannelError):
    """One value is larger than its channel can ever hold."""

    size_bytes: int | None
    limit_bytes: int | None


class OutOfSharedMemory(ChannelError):
    """Shared memory is used up, by the cap or on the machine; that execution fails."""

    size_bytes: int | None
    cap_bytes: int | None


class OutOfDescriptors(RcgError):
    """A process, or the machine, has no file descriptor left; says whose limit it is."""

    pid: int | None
    limit: int | None
    actor: str | None


class TransportError(RcgError):
    """A tensor could not be handed over."""

    transport: str | None


class Unavailable(TransportError):
    """The transport does not work here, or not between these two processes."""


class TensorMismatch(TransportError, ValueError):
    """A tensor differs in shape, dtype or device from what was promised."""

    expected: object | None
    found: object | None


class Transfer(TransportError):
    """Moving the bytes failed."""

    peer: str | None


class CommError(RcgError):
    """A communicator cannot do what was asked."""

    group: str | None
    rank: int | None


class GroupAborted(CommError):
    """The group ended because a member failed or left; its other members are usable."""


class TraceError(RcgError, ValueError):
    """A recorded trace cannot be read, or what was asked of it is not in it."""


class InternalError(RcgError):
    """A bug in rcg, not in the program that uses it."""

    def __str__(self) -> str:
        return f"{super().__str__()} (this is a bug in rcg: please report it with this text)"
