# SPDX-License-Identifier: Apache-2.0
"""Stands in for Ray where Ray is not installed: each actor is a plain process of this machine.

It has what rcg calls of Ray (``rcg.cluster``), and no more. An actor's process runs its calls one
after the other, on its main thread, in the order in which they are submitted. Classes, functions
and arguments travel by pickle, so they must be importable. There is one node, and no object store:
an ``ObjectRef`` is a future of the process that submitted the call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from typing import Any

from ray import actor, exceptions, remote_function, util
from ray.actor import ObjectRef, ObjectRefGenerator

__version__ = "0.0.0+plain"
__all__ = [
    "ObjectRef",
    "ObjectRefGenerator",
    "actor",
    "exceptions",
    "get",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "put",
    "remote",
    "remote_function",
    "shutdown",
    "util",
    "wait",
]

_started = threading.Event()


def init(*_: Any, **__: Any) -> None:
    _started.set()


def is_initialized() -> bool:
    return True


def shutdown(**_: Any) -> None:
    for handle in list(actor.alive):
        handle._end()
    _started.clear()


def get(refs: Any, *, timeout: float | None = None, **_: Any) -> Any:
    if not isinstance(refs, ObjectRef):
        return [get(each, timeout=timeout) for each in refs]
    try:
        return refs.future.result(timeout)
    except FutureTimeout as error:
        raise exceptions.GetTimeoutError(f"no result after {timeout} s") from error


def put(value: Any, **_: Any) -> ObjectRef:
    ref = ObjectRef()
    ref.future.set_result(value)
    return ref


def wait(
    refs: Sequence[ObjectRef], *, num_returns: int = 1, timeout: float | None = None, **_: Any
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Wait for one of them, or look at once; more is not asked for."""
    if timeout != 0 and sum(each.future.done() for each in refs) < num_returns:
        wait_for([each.future for each in refs], timeout, FIRST_COMPLETED)
    done = [each for each in refs if each.future.done()][:num_returns]
    return done, [each for each in refs if each not in done]


def remote(*args: Any, **options: Any) -> Any:
    if not args:
        return lambda target: remote(target, **options)
    target = args[0]
    if isinstance(target, type):
        return actor.ActorClass(target, options)
    return remote_function.RemoteFunction(target)


def method(**_: Any) -> Any:
    return lambda function: function


def kill(handle: Any, **_: Any) -> None:
    handle._end()


class _Context:
    def get_node_id(self) -> str:
        return "0" * 56

    def get_actor_id(self) -> str | None:
        return os.environ.get(actor.ACTOR_ID)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        return {"GPU": os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")}


def get_runtime_context() -> _Context:
    return _Context()
