# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Ray that rcg looks for; see ``ray``."""

from __future__ import annotations

from typing import Any


class RayError(Exception):
    """Base of all."""


class GetTimeoutError(RayError, TimeoutError):
    """``get`` took too long."""


class RayActorError(RayError):
    """The process of an actor is gone."""


class ActorDiedError(RayActorError):
    """The same; Ray tells reasons apart."""


class RayTaskError(RayError):
    """An exception of a method, with its traceback in the actor."""

    def __init__(self, function_name: str, traceback_str: str, cause: Any, **_: Any) -> None:
        super().__init__(traceback_str)
        self.cause = cause

    def as_instanceof_cause(self) -> Exception:
        kind = type(self.cause)
        made: Exception = type(kind.__name__, (kind,), {"__str__": lambda _: str(self)})(str(self))
        return made
