# SPDX-License-Identifier: Apache-2.0
"""``get``, ``put``, ``wait`` and ``cancel`` on references of compiled DAGs, of Ray, and to tensors.

Calls without a reference of a compiled DAG go to Ray unchanged, with Ray's rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from rcg import cluster
from rcg.callers import at_users_line, end_at_caller, leave_out_caller
from rcg.errors import SignatureError
from rcg.options import Deadline, timeout_from_user
from rcg.rdt.refs import TensorRef, get_tensors, put_tensors
from rcg.rdt.transports import OBJECT_STORE
from rcg.runtime.refs import CompiledDAGRef, TwinRef, get_refs, late_error, wait_refs, watch_of

# Nothing wakes a wait for references of both kinds, so it polls, at intervals that grow from the
# first of these (a result that is about to arrive) to the second (idle CPU below 1 %).
_MIN_POLL_S: Final = 0.001
_MAX_POLL_S: Final = 0.05
_OF_DAGS: Final = frozenset((CompiledDAGRef, TwinRef))


def get(object_refs: Any, *, timeout: float | None = None, **options: Any) -> Any:
    """Return the value of a reference, or of each reference in a list.

    It may be repeated, and called from any thread. A list may contain references of compiled DAGs,
    references of Ray, and lists of them: a DAG with several outputs returns a list for each
    execution, and a list of such lists gives a list of lists of values.

    Args:
        object_refs: A reference or a list of them. A list that contains lists must have a
            reference of a compiled DAG in one of them; other lists go to Ray.
        timeout: Seconds for the whole call, also for a list. None sets no limit (for a compiled
            DAG: its ``get_timeout`` applies); 0 does not wait.
        **options: Ray's options, for Ray's references; ``_tensor_transport="object_store"``: how
            the tensors of a ``TensorRef`` come here, and ``_use_object_store=True`` for the same;
            ``out=tensor``, or a list of tensors: where they are received, instead of in fresh
            memory. After a timeout they go on arriving there.

    Returns:
        The value, or the list of values in the order of the references.

    Raises:
        ChannelTimeout: A compiled DAG's result did not come in time; it can still be got later.
        ray.exceptions.GetTimeoutError: One of Ray's results did not come in time.
        ActorDiedError: An actor that the result depends on died.
        ChannelClosed: The compiled DAG was torn down before the result came.
        TypeError: A list with a reference of a compiled DAG contains something else than
            references; or ``timeout`` is not a number.
        ValueError: ``timeout`` is negative.
        Exception: The exception of the user's method, in its own type. For a list it is raised as
            soon as any member has failed.
    """
    if isinstance(object_refs, CompiledDAGRef) and not options:
        try:
            return object_refs.get() if timeout is None else object_refs.get(timeout)
        except BaseException as error:
            leave_out_caller(error)  # the rest of the traceback is as it should be
            raise
    try:
        return _get(object_refs, timeout, options)
    except BaseException as error:
        end_at_caller(error)
        raise


def _get(object_refs: Any, timeout: float | None, options: dict[str, Any]) -> Any:
    """Return the value of a reference or of a list of them; see ``get``."""
    timeout_s = timeout_from_user(timeout, "timeout")
    given = {} if timeout is None else {"timeout_s": timeout_s}  # else it is the graph's
    transport = options.pop("_tensor_transport", None)
    if options.pop("_use_object_store", False):
        transport = transport or OBJECT_STORE
    out = options.pop("out", None)
    has_tensors = isinstance(object_refs, list) and TensorRef in map(type, object_refs)
    if options and (has_tensors or isinstance(object_refs, CompiledDAGRef | TensorRef)):
        _refuse(options)
    if isinstance(object_refs, TensorRef):
        return get_tensors([object_refs], timeout_s, transport, out)[0]
    if out is not None:
        raise TypeError(
            "out= takes the tensors of one TensorRef"
            + (": get them one by one" if isinstance(object_refs, list) else "")
        )
    if isinstance(object_refs, CompiledDAGRef):
        return get_refs([object_refs], **given)[0]
    if has_tensors:
        return _get_with_tensors(object_refs, timeout_s, transport)
    if isinstance(object_refs, list):
        compiled = [ref for ref in object_refs if isinstance(ref, CompiledDAGRef)]
        if len(compiled) < len(object_refs) and _has_nested(object_refs):
            values = iter(get(_flat(object_refs), timeout=timeout, **options))
            return _shape_like(object_refs, values)
        if compiled and options:
            _refuse(options)
        if compiled:
            if len(compiled) < len(object_refs):
                _check_members(object_refs, "get")
                return _get_mixed(object_refs, Deadline(timeout_s))
            return get_refs(object_refs, **given)
    return cluster.get(object_refs, timeout_s=timeout_s, **options)


def _refuse(options: Mapping[str, Any]) -> NoReturn:
    """Refuse options that ``get`` does not know."""
    raise TypeError(
        f"get() got an unexpected keyword argument {next(iter(options))!r}: it takes timeout, out, "
        "_tensor_transport and _use_object_store"
    )


@at_users_line
def put(value: Any, **options: Any) -> Any:
    """Store a value in Ray's object store and return its ObjectRef; ``options`` are Ray's.

    With ``_tensor_transport="object_store"``, or another transport, the tensors of the value stay
    in this process, and a ``TensorRef`` is returned.

    Raises:
        ValueError: There is no such transport, or it needs a group that this process is not in.
        TypeError: The value is, or contains, a reference of a compiled DAG.
    """
    if _holds_compiled_ref(value):
        raise TypeError(
            f"{value!r} was found to be non-serializable: a CompiledDAGRef works in the process "
            "that executed the DAG. Put the value: rcg.put(rcg.get(ref))."
        )
    transport = options.pop("_tensor_transport", None)
    return cluster.put(value, **options) if transport is None else put_tensors(value, transport)


@at_users_line
def wait(
    refs: Any, *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[Any], list[Any]]:
    """Wait until some references of a list are ready.

    Args:
        refs: A list of references of compiled DAGs, of Ray, or of both, each at most once.
        num_returns: How many to wait for.
        timeout: Seconds; None sets no limit.
        fetch_local: Ray's option, for Ray's references.

    Returns:
        At most ``num_returns`` references that are ready, and the others, both in the order of the
        list. A result that is an exception counts as ready.

    Raises:
        TypeError: ``refs`` is not a list of references.
        ValueError: A reference appears twice, or ``num_returns`` is not between 1 and their number.
    """
    timeout_s = timeout_from_user(timeout, "timeout")
    if isinstance(refs, CompiledDAGRef | TensorRef):
        raise TypeError(f"wait() expected a list of references, got a single one: {refs}")
    kinds = set(map(type, refs)) if isinstance(refs, list) else set()
    if TensorRef in kinds:
        return _wait_with_tensors(refs, num_returns, timeout_s, fetch_local)
    if any(issubclass(kind, list) for kind in kinds) and _has_nested(refs):
        raise _nested_in_wait(refs)
    if kinds.isdisjoint(_OF_DAGS):
        return cluster.wait(
            refs, num_returns=num_returns, timeout_s=timeout_s, fetch_local=fetch_local
        )
    are_all_of_dags = kinds <= _OF_DAGS
    if not are_all_of_dags:
        _check_members(refs, "wait")
    if len(set(refs)) != len(refs):
        raise ValueError("wait() requires a list of unique references")
    if not 1 <= num_returns <= len(refs):
        raise ValueError(
            f"num_returns must be between 1 and the number of references, {len(refs)}, found "
            f"{num_returns}"
        )
    if are_all_of_dags:
        return wait_refs(refs, num_returns=num_returns, timeout_s=timeout_s)
    return _wait_mixed(refs, num_returns, Deadline(timeout_s))


@at_users_line
def cancel(ref: Any, **options: Any) -> Any:
    """Cancel the call that makes a value, as Ray does; ``options`` are Ray's.

    Args:
        ref: A reference of Ray's, or to tensors.
        **options: Ray's: ``force=True``, ``recursive=False``.

    Raises:
        TypeError: It is a reference of a compiled DAG, whose executions cannot be cancelled.
    """
    if isinstance(ref, CompiledDAGRef):
        raise TypeError(
            f"cancel() cannot cancel {ref}: an execution of a compiled DAG runs to its end. Drop "
            "the reference, or tear the DAG down: cdag.teardown()"
        )
    if type(ref) is not TensorRef:
        return cluster.cancel(ref, **options)
    cluster.cancel(ref.inner, **options)
    ref.was_cancelled()
    return None


def refuse_compiled_refs(arguments: Iterable[Any]) -> None:
    """Raise if an argument of a Ray call is, or contains, a reference of a compiled DAG.

    Raises:
        SignatureError: An argument does; it is a TypeError.
    """
    for argument in arguments:
        if _holds_compiled_ref(argument):
            raise SignatureError(
                "CompiledDAGRef cannot be used as Ray task/actor argument: it works in the "
                "process that executed the DAG. Pass the value: rcg.get(ref)."
            )


def _get_with_tensors(refs: list[Any], timeout_s: float | None, transport: str | None) -> list[Any]:
    """Return the values of a list with references to tensors in it: these come together."""
    deadline = Deadline(timeout_s)
    tensors = [ref for ref in refs if type(ref) is TensorRef]
    found = dict(zip(tensors, get_tensors(tensors, deadline.remaining_s(), transport), strict=True))
    others = iter(
        get([ref for ref in refs if type(ref) is not TensorRef], timeout=deadline.remaining_s())
    )
    return [found[ref] if type(ref) is TensorRef else next(others) for ref in refs]


def _wait_with_tensors(
    refs: list[Any], num_returns: int, timeout_s: float | None, fetch_local: bool
) -> tuple[list[Any], list[Any]]:
    """Wait for references of which some are to tensors: their envelopes say when."""
    by_inner = {
        ref.inner if type(ref) is TensorRef else ref: ref for ref in refs if not _is_list(ref)
    }
    if _has_nested(refs):
        raise _nested_in_wait(refs)
    if len(by_inner) != len(refs):
        raise ValueError("wait() requires a list of unique references")
    ready, others = wait(
        list(by_inner), num_returns=num_returns, timeout=timeout_s, fetch_local=fetch_local
    )
    return [by_inner[ref] for ref in ready], [by_inner[ref] for ref in others]


def _holds_compiled_ref(value: Any) -> bool:
    """Look one level deep, which is cheap; references deeper inside raise when they are pickled."""
    if isinstance(value, list | tuple):
        return any(isinstance(item, CompiledDAGRef) for item in value)
    return isinstance(value, CompiledDAGRef)


def _flat(refs: list[Any]) -> list[Any]:
    """Return the items of a list and of the lists in it, in order."""
    return [item for member in refs for item in (_flat(member) if _is_list(member) else (member,))]


def _shape_like(refs: list[Any], values: Iterator[Any]) -> list[Any]:
    """Return lists like ``refs``, with values instead of references."""
    return [_shape_like(ref, values) if _is_list(ref) else next(values) for ref in refs]


def _is_list(member: Any) -> bool:
    return isinstance(member, list)


def _has_nested(refs: list[Any]) -> bool:
    """Whether lists are in a list, with a reference of a compiled DAG somewhere in it."""
    return any(map(_is_list, refs)) and any(isinstance(ref, CompiledDAGRef) for ref in _flat(refs))


def _nested_in_wait(refs: list[Any]) -> TypeError:
    position = next(at for at, member in enumerate(refs) if _is_list(member))
    return TypeError(
        f"wait() takes a flat list of references, found a list at position {position}: a graph "
        "with several outputs returns a list of references for each execution. Wait for all of "
        "them: rcg.wait([ref for refs in executions for ref in refs]), or for one output of each: "
        "rcg.wait([refs[0] for refs in executions])"
    )


def _check_members(refs: Sequence[Any], function: str) -> None:
    for position, ref in enumerate(refs):
        if not isinstance(ref, CompiledDAGRef) and not cluster.is_object_ref(ref):
            kind, advice = type(ref).__name__, ""
            if kind == CompiledDAGRef.__name__:
                kind = f"{kind} of ray.dag"
                advice = ", which goes by itself into get(): or write its DAG with rcg.dag"
            raise TypeError(
                f"{function}() takes a list of CompiledDAGRefs and ObjectRefs, found {kind} at "
                f"position {position}{advice}"
            )


def _get_mixed(refs: Sequence[Any], deadline: Deadline) -> list[Any]:
    values: dict[Any, Any] = {}
    pending = list(dict.fromkeys(refs))
    first = next(ref for ref in pending if isinstance(ref, CompiledDAGRef))
    watch = watch_of(first, deadline)
    while pending:
        is_late = watch.is_late
        ready, others = _wait_mixed(pending, 1, Deadline(watch.next_s()))
        if ready:
            values[ready[0]] = get(ready[0])
            pending = others
        elif not is_late:
            watch.look()
        elif isinstance(pending[0], CompiledDAGRef):
            raise late_error(pending[0], watch)
        else:
            get(pending[0], timeout=0)  # raises Ray's timeout, with its facts
    return [values[ref] for ref in refs]


def _wait_mixed(
    refs: Sequence[Any], num_returns: int, deadline: Deadline
) -> tuple[list[Any], list[Any]]:
    compiled = [ref for ref in refs if isinstance(ref, CompiledDAGRef)]
    rays = [ref for ref in refs if not isinstance(ref, CompiledDAGRef)]
    turn_s = _MIN_POLL_S
    while True:
        done = set(_ready_now(compiled, rays))
        if len(done) >= num_returns or deadline.expired:
            ready = [ref for ref in refs if ref in done][:num_returns]
            chosen = set(ready)
            return ready, [ref for ref in refs if ref not in chosen]
        remaining_s = deadline.remaining_s()
        pause_s = turn_s if remaining_s is None else min(turn_s, remaining_s)
        waiting = [ref for ref in compiled if ref not in done]
        if waiting:
            wait_refs(waiting, timeout_s=pause_s)
            turn_s = min(2 * turn_s, _MAX_POLL_S)
        else:
            missing = num_returns - len(compiled)
            cluster.wait(rays, num_returns=missing, timeout_s=remaining_s)


def _ready_now(compiled: list[Any], rays: list[Any]) -> list[Any]:
    ready: list[Any] = []
    if compiled:
        ready += wait_refs(compiled, num_returns=len(compiled), timeout_s=0)[0]
    if rays:
        ready += cluster.wait(rays, num_returns=len(rays), timeout_s=0)[0]
    return ready
