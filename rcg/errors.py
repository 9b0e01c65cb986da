# SPDX-License-Identifier: Apache-2.0
"""All error classes of rcg.

The class tells where the fault is, the text says what is wrong and what to do, and the facts are
fields::

    RcgError
    |-- GraphError (ValueError)               the DAG as written is wrong: .node, .site
    |   |-- SignatureError (TypeError)        the arguments do not fit the method
    |   `-- UnsupportedNodeError              rcg cannot run such a node (NotImplementedError)
    |-- CompileError                          a right DAG that cannot be run here
    |   |-- PlacementError                    an actor is in a place that rcg cannot reach
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
    |   `-- OutOfSharedMemory                 the value does not fit into shared memory
    |-- OutOfDescriptors                      a process has no file descriptor left: .limit
    |-- OutOfThreads (RuntimeError)           a process can start no more threads: .limit
    |-- TransportError
    |   |-- Unavailable                       this transport does not work between these processes
    |   |-- NixlOutOfMemoryError              a pool registered with NIXL is full (RuntimeError)
    |   |-- TensorMismatch                    shape, dtype or device differ from what was promised
    |   `-- Transfer                          moving the bytes failed
    |-- CommError
    |   `-- GroupAborted                      a member of the group failed or left
    |-- AttachError                           a graph of another process cannot be looked at
    |-- TraceError (ValueError)               a trace cannot be read, or lacks what was asked for
    `-- InternalError                         a bug in rcg

If Ray has a public exception for a case, rcg's class is a subclass of it, so ``except`` clauses
written for Ray keep working. Without Ray, or if the installed Ray lacks the name, the base is a
placeholder. This room may import ``ray.exceptions``, guarded, and knows nothing else of rcg or Ray.
Exceptions of users' methods are not here: the caller gets them with their own class. Only what
Python takes for an end (``ENDS``) arrives as an ``ExecutionError``, whose cause it is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

__all__ = [
    "ActorDiedError",
    "AttachError",
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
    "NixlOutOfMemoryError",
    "OutOfDescriptors",
    "OutOfSharedMemory",
    "OutOfThreads",
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

_T = TypeVar("_T")

if TYPE_CHECKING:
    # The bases for the type checker, and the placeholders if Ray does not have the name.
    class _RayActorDiedError(Exception): ...

    class _RayCapacityExceeded(Exception): ...

    class _RayChannelError(Exception): ...

    class _RayChannelTimeout(_RayChannelError, TimeoutError): ...

    class RayTaskError(Exception): ...

else:
    try:
        import ray.exceptions as _ray_exceptions
    except ImportError:
        _ray_exceptions = None

    def _ray_base(name, *stand_in_bases):
        """Return Ray's exception of this name, or a placeholder if there is none."""
        found = getattr(_ray_exceptions, name, None)
        if isinstance(found, type) and issubclass(found, stand_in_bases):
            return found
        doc = f"Stands in for ray.exceptions.{name}, which this Ray does not have."
        return type(name, stand_in_bases, {"__doc__": doc, "__module__": __name__})

    _RayActorDiedError = _ray_base("ActorDiedError", Exception)
    _RayCapacityExceeded = _ray_base("RayCgraphCapacityExceeded", Exception)
    _RayChannelError = _ray_base("RayChannelError", Exception)
    _RayChannelTimeout = _ray_base("RayChannelTimeoutError", _RayChannelError, TimeoutError)
    RayTaskError = _ray_base("RayTaskError", Exception)


ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)
"""What Python takes for the end of an iterator, or for a generator that is closed."""


class RcgError(Exception):
    """Base of all errors that rcg itself raises.

    A class declares its usual facts by annotations; these are attributes of every instance, None if
    not given. Any other keyword becomes an attribute as well. Facts are plain data (strings,
    numbers, tuples, things with a short ``str``), because errors travel between processes.

    Args:
        message: A sentence that says what is wrong and what to do about it.
        **facts: The facts of the case. Facts that are None are left out of the text.
    """

    message: str
    facts: dict[str, Any]
    _no_facts: ClassVar[dict[str, None]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = (name for name in inspect.get_annotations(cls) if name[0] != "_")
        cls._no_facts = {**cls._no_facts, **dict.fromkeys(own)}

    def __init__(self, message: str = "", **facts: Any) -> None:
        # Not super(): the bases taken from Ray have constructors of their own shape.
        Exception.__init__(self, message)
        self.message = message
        self.facts = {name: fact for name, fact in facts.items() if fact is not None}
        # Of the instance: Ray's wrapper of an error looks through to what a class does not have.
        self.__dict__.update(self._no_facts, **self.facts)

    def __str__(self) -> str:
        return _describe(self.message, self.facts)

    def __repr__(self) -> str:
        facts = "".join(f", {name}={fact!r}" for name, fact in self.facts.items())
        return f"{type(self).__name__}({self.message!r}{facts})"

    def __reduce__(self) -> tuple[Any, ...]:
        notes = getattr(self, "__notes__", None)
        state: dict[str, Any] = {} if notes is None else {"__notes__": list(notes)}
        if isinstance(self.__cause__, ENDS):
            state["__cause__"] = self.__cause__
        return _rebuild, (type(self), self.message, self.facts), state or None


def _rebuild(cls: type[RcgError], message: str, facts: Mapping[str, Any]) -> RcgError:
    return cls(message, **facts)


def _describe(message: str, facts: Mapping[str, Any]) -> str:
    r"""Return the text: the sentence, the short facts that it does not contain, then the long ones.

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
    """The DAG as written is wrong; ``node`` and ``site`` say where."""

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
    """The graph cannot reach an actor, or the actor's process cannot run rcg."""

    location: str | None


class DeadlockError(CompileError):
    """The programs would wait for each other forever; ``programs`` shows where each stops."""

    programs: str | None


class ExecutionError(RcgError):
    """One execution, or something that all of them need, failed."""

    execution: int | None
    actor: str | None


class ActorDiedError(ExecutionError, _RayActorDiedError):
    """An actor of the graph is dead; ``node`` and ``site`` are those of the method that it ran.

    Also a ``ray.exceptions.ActorDiedError``.
    """

    actor_id: str | None
    node: str | None
    site: object | None

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
    """A value cannot be sent to another process; ``where`` is the path to the part at fault."""

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

    @classmethod
    def polled(cls, message: str, report: Callable[[], str | None]) -> ChannelTimeout:
        """Return the error of a wait so short that only who asks for the report has it made."""
        made = cls(message, timeout_s=0.0)
        del made.report
        made.__dict__["_report"] = report
        return made

    def __getattr__(self, name: str) -> Any:
        make = self.__dict__.pop("_report", None) if name == "report" else None
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = self.report = make()
        if found is not None:
            self.facts["report"] = found
        return found

    def __str__(self) -> str:
        return _with_report(self, super().__str__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_report(self, super().__reduce__)


def _with_report(error: ChannelTimeout, call: Callable[[], _T]) -> _T:
    """Return what a call returns once the report is among the facts of the error."""
    getattr(error, "report", None)  # Ray's wrapper of an error has none of its own
    return call()


class MessageTooLarge(ChannelError):
    """One value is larger than its channel can ever hold."""

    size_bytes: int | None
    limit_bytes: int | None


class OutOfSharedMemory(ChannelError):
    """A value does not fit into shared memory, by cap or machine; its execution fails."""

    size_bytes: int | None
    cap_bytes: int | None


class OutOfDescriptors(RcgError):
    """A process, or the machine, has no file descriptor left; the text names the limit."""

    pid: int | None
    limit: int | None
    actor: str | None


class OutOfThreads(RcgError, RuntimeError):
    """A process can start no more threads; the text names the limits."""

    pid: int | None
    limit: int | None
    actor: str | None


class TransportError(RcgError):
    """A tensor could not be transferred."""

    transport: str | None


class Unavailable(TransportError):
    """The transport does not work here, or not between these two processes."""


class NixlOutOfMemoryError(TransportError, RuntimeError):
    """The memory pool that was registered with NIXL has no room for an object."""


class TensorMismatch(TransportError, ValueError):
    """A tensor differs in shape, dtype or device from what was promised."""

    expected: object | None
    found: object | None


class Transfer(TransportError):
    """Moving the bytes failed."""

    peer: str | None


class CommError(RcgError):
    """A communicator failed."""

    group: str | None
    rank: int | None


class GroupAborted(CommError):
    """The group ended because a member failed or left; its other members are usable."""


class TraceError(RcgError, ValueError):
    """A recorded trace cannot be read, or does not contain what was asked for."""


class AttachError(RcgError):
    """A graph of another process is not there, or cannot be looked at from here."""


class InternalError(RcgError):
    """A bug in rcg, not in the program that uses it."""

    def __str__(self) -> str:
        return f"{super().__str__()} (this is a bug in rcg: please report it with this text)"
