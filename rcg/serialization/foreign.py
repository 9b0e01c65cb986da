# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries that travel as tensors: they are handed over by DLPack, uncopied.

A type is registered once, in the process that compiles. Its arrays then travel as torch tensors do,
through shared memory and over communicators, and arrive as arrays of their own library. The
protocol is that of https://dmlc.github.io/dlpack/latest/python_spec.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rcg.errors import Unavailable

FromDlpack = Callable[[Any], Any]
"""Makes an array of a library from an object with ``__dlpack__``; importable by name."""

_registered: Final[dict[type, FromDlpack]] = {}


def register_array_type(cls: type, from_dlpack: FromDlpack) -> None:
    """Register a type of arrays whose bytes travel as those of torch tensors.

    For JAX::

        rcg.register_array_type(type(jax.numpy.zeros(1)), jax.dlpack.from_dlpack)

    NumPy's arrays need no registration: they travel through shared memory. Registered as well, they
    go over communicators like tensors, and arrive writable.

    Graphs that are compiled later know the type, in all their processes. Registering a type again
    replaces the function.

    Args:
        cls: The exact type of the arrays. They must have ``__dlpack__``.
        from_dlpack: Makes such an array from an object with ``__dlpack__``. It is sent to the
            actors, so it must be importable there.

    Raises:
        TypeError: ``cls`` is not a type, or has no ``__dlpack__``; ``from_dlpack`` is not callable.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_array_type takes a type of arrays, found {cls!r}")
    if not callable(getattr(cls, "__dlpack__", None)):
        raise TypeError(
            f"{cls.__module__}.{cls.__qualname__} has no method __dlpack__, so its arrays cannot "
            "be handed over; pass the concrete type of an array, `type(array)`"
        )
    if not callable(from_dlpack):
        raise TypeError(f"from_dlpack must be callable, found {from_dlpack!r}")
    _registered[cls] = from_dlpack


def array_types() -> dict[type, FromDlpack]:
    """Return the registered types."""
    return dict(_registered)


def reducer_of(types: Mapping[type, FromDlpack]) -> dict[type, Callable[[Any], Any]]:
    """Return the reducers for these types, for a pickler that knows torch's tensors."""
    return {cls: _reducer(from_dlpack) for cls, from_dlpack in types.items()}


def import_torch() -> Any:
    """Import torch, through which the arrays travel, or raise ``Unavailable``."""
    try:
        import torch
    except ImportError as error:
        raise Unavailable(
            "arrays of registered types travel as torch tensors, and torch is not installed in "
            "this process: pip install 'rcg[torch]'"
        ) from error
    return torch


def _reducer(from_dlpack: FromDlpack) -> Callable[[Any], Any]:
    def reduce(array: Any) -> Any:
        return _rebuild, (from_dlpack, import_torch().from_dlpack(array))

    return reduce


def _rebuild(from_dlpack: FromDlpack, tensor: Any) -> Any:
    return from_dlpack(tensor)
