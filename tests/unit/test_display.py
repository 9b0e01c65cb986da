# SPDX-License-Identifier: Apache-2.0
"""How things show themselves: the hook between what is shown and what draws."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import rcg.runtime.driver.compiled_dag
import rcg.runtime.observe.report  # noqa: F401 - its types are shown as well
from rcg.display import Displayed
from rcg.views import display


def displayed(base: type) -> Iterator[type]:
    """The classes that show themselves; of a dataclass with slots, not what it was made of."""
    for each in base.__subclasses__():
        if getattr(sys.modules[each.__module__], each.__name__, None) is each:
            yield each
        yield from displayed(each)


@pytest.mark.parametrize("shown", sorted(set(displayed(Displayed)), key=lambda each: each.__name__))
def test_the_views_know_every_type_that_shows_itself(shown: type) -> None:
    unknown = display._mimebundle_of.dispatch(object)
    by_itself = shown._mimebundle is not Displayed._mimebundle  # type: ignore[attr-defined]
    assert by_itself or display._mimebundle_of.dispatch(shown) is not unknown


def test_a_type_that_the_views_do_not_know_is_shown_as_its_text() -> None:
    class Unknown(Displayed):
        __slots__ = ()

        def __str__(self) -> str:
            return "it is\x00 this"

    assert Unknown()._repr_mimebundle_() == {"text/plain": r"it is\x00 this"}
