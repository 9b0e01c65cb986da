# SPDX-License-Identifier: Apache-2.0
"""Labels that do not fit: a name may be cut, a number never is."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from rcg.text import brief
from rcg.views.data.lettering import shorten, width_of

NUMBER = re.compile(r"\d+(?:[.,]\d+)*", re.ASCII)
names = st.from_regex(r"[a-zA-Z_# .]{0,40}[0-9]{0,9}[a-z.# ]{0,20}[0-9]{0,9}", fullmatch=True)


def is_honest(shown: str, text: str) -> bool:
    """Whether all numbers in what is shown are numbers of the text."""
    return set(NUMBER.findall(shown)) <= set(NUMBER.findall(text))


@given(names | st.text(max_size=60), st.floats(0, 300), st.booleans(), st.booleans())
@example("execution 561", 12.0, False, False)
@example("forward 561", 24.0, False, False)
@example("Stage#1234567", 40.0, False, False)
def test_shortened_text_fits_and_no_number_is_cut(
    text: str, room: float, bold: bool, monospace: bool
) -> None:
    shown = shorten(text, room, 12, bold=bold, monospace=monospace)
    assert is_honest(shown, text)
    fits = width_of(shown, 12, bold=bold, monospace=monospace) <= room
    assert fits or shown in ("", "\N{HORIZONTAL ELLIPSIS}")


@given(names, st.integers(4, 60))
@example("PrefillWorkerWithSpeculativeDecoding1234567890", 16)
def test_names_of_hovers_and_of_text_cut_no_number(text: str, most: int) -> None:
    assert is_honest(brief(text, most), text)
    assert len(brief(text, most)) <= max(most, 1)


def test_a_number_is_shown_alone_where_the_name_does_not_fit() -> None:
    assert shorten("execution 561", 30, 12) == "561"
    assert shorten("execution 561", 1000, 12) == "execution 561"
    # Not even the number: no part of it.
    assert shorten("execution 561", 12, 12) == "\N{HORIZONTAL ELLIPSIS}"


def test_an_actor_is_named_alone_rather_than_with_the_end_of_its_class() -> None:
    assert [shorten("a10 (Stage10)", room, 12) for room in (100, 60, 30)] == [
        "a10 (Stage10)", "a10", "a10"
    ]  # fmt: skip


def test_a_name_is_cut_between_words_if_that_keeps_most_of_it() -> None:
    def cut(text: str, characters: int) -> str:
        return shorten(text, characters * 0.61 * 12 + 5, 12, monospace=True)

    assert cut("forward_micro_batch", 10) == "forward\N{HORIZONTAL ELLIPSIS}"
    assert cut("a14 (FeedForward14)", 14) == "a14 (Feed\N{HORIZONTAL ELLIPSIS}14)"
    assert cut("antidisestablishmentarianism", 10) == "anti\N{HORIZONTAL ELLIPSIS}anism"
