# SPDX-License-Identifier: Apache-2.0
"""The user's own method behind one that an actor of rcg has in its place (``rcg.rdt.methods``)."""

from __future__ import annotations

from typing import Any, Final

PLAIN: Final = "__rcg_plain__"
"""The attribute of a function that has the user's own."""


def plain_of(method: Any) -> Any:
    """Return the user's own method for one of an actor; others are returned unchanged."""
    plain = getattr(getattr(method, "__func__", None), PLAIN, None)
    return method if plain is None else plain.__get__(method.__self__)
