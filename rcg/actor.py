# SPDX-License-Identifier: Apache-2.0
"""Ray's path of actors; other names are ``ray.actor``'s.

``isinstance`` accepts handles and methods of rcg's and of Ray's here.
"""

from __future__ import annotations

import importlib
from typing import Any

from rcg import actors
from rcg.actors import ActorClass
from rcg.experimental import names_behind

__all__ = ["ActorClass", "ActorHandle", "ActorMethod"]

__getattr__, __dir__ = names_behind(__name__, __all__)


class _Either(type):
    """The type of a name that stands for rcg's class and for Ray's of the same name."""

    def __instancecheck__(cls, thing: Any) -> bool:
        rays = getattr(importlib.import_module("ray.actor"), cls.__name__)
        return isinstance(thing, getattr(actors, cls.__name__) | rays)

    def __subclasscheck__(cls, kind: type) -> bool:
        rays = getattr(importlib.import_module("ray.actor"), cls.__name__)
        return issubclass(kind, getattr(actors, cls.__name__) | rays)


class ActorHandle(metaclass=_Either):
    """A handle of an actor: rcg's or Ray's."""


class ActorMethod(metaclass=_Either):
    """A method of an actor: of a handle of rcg's or Ray's."""
