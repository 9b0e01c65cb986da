# SPDX-License-Identifier: Apache-2.0
"""The types of options: how a value is checked, and how it is parsed from a variable.

A ``Kind`` is the pair of both. Every error names the value as the user wrote it: by its keyword, by
its attribute, or by its variable. This room does not know which options there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final

from rcg.error_text import shielded, shortened
from rcg.frames import warn_user

_MOST_SHOWN: Final = 200  # characters of a wrong value
_LONGEST_COST_S: Final = 1e6
FOR_EVER_S: Final = 1e9
"""Thirty years. A longer timeout sets no limit: clocks and system calls overflow at some."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What an option takes."""

    # From a value and its name to its plain form, or a TypeError or ValueError with that name.
    check: Callable[[object, str], object]
    # From a text and the name of its variable to the value, or a ValueError with that name.
    parse: Callable[[str, str], object]


def timeout_from_user(value: object, name: str) -> float | None:
    """Read a timeout as users give it: seconds, None for no limit, or Ray's old -1 for the same.

    Every public function that takes a timeout calls this before it does anything. ``name`` is what
    the user calls it: a parameter or an environment variable.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, other than -1, or not a number of seconds at all (NaN).
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(
            f"`{name}` must be a number of seconds, or None for no limit, found {_shown(value)}"
        )
    try:
        seconds = float(value)
    except OverflowError:  # of an int, or a fraction
        number: Any = value
        seconds = math.inf if number > 0 else -math.inf
    if seconds == -1:
        warn_user(f"`{name}` = -1 for no limit is deprecated: use None", DeprecationWarning)
        return None
    if not seconds >= 0:
        raise ValueError(
            f"`{name}` must be at least 0 seconds, or None for no limit, found {_shown(value)}"
        )
    return None if seconds > FOR_EVER_S else seconds


def choice(*choices: str) -> Kind:
    """Return the kind of an option whose value is one of several words."""

    def check(value: object, name: str) -> object:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(
                f"`{name}` must be one of {', '.join(map(repr, choices))}, found {_shown(value)}"
            )
        return value

    return Kind(check, lambda text, variable: check(text.lower(), variable))


def _parse_timeout(text: str, variable: str) -> object:
    if text.lower() == "none":
        return None
    return timeout_from_user(_number(text, variable, "a number of seconds"), variable)


def _count(or_none: str = "") -> Kind:
    def check(value: object, name: str) -> object:
        if or_none and value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, Integral) or value <= 0:
            raise ValueError(f"`{name}` must be a positive integer{or_none}, found {_shown(value)}")
        return int(value)

    def parse(text: str, variable: str) -> object:
        is_none = or_none and text.lower() == "none"
        return check(None if is_none else _whole(text, variable), variable)

    return Kind(check, parse)


def _check_flag(value: object, name: str) -> object:
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False, found {_shown(value)}")
    return value


def _parse_flag(text: str, variable: str) -> object:
    if text.lower() not in _FLAGS:
        raise ValueError(f"`{variable}` must be one of {', '.join(_FLAGS)}, found {text!r}")
    return _FLAGS[text.lower()]


def _check_flag_or_auto(value: object, name: str) -> object:
    if not isinstance(value, bool) and not (isinstance(value, str) and value == "auto"):
        raise TypeError(f"`{name}` must be True, False or 'auto', found {_shown(value)}")
    return value


def _parse_flag_or_auto(text: str, variable: str) -> object:
    return "auto" if text.lower() == "auto" else _parse_flag(text, variable)


def _shown(value: object) -> str:
    return shortened(shielded(repr, value, otherwise=type(value).__name__), _MOST_SHOWN)


def _whole(text: str, variable: str) -> float:
    """Return the number of a text, as an int where it is whole: ``1e6`` is."""
    number = _number(text, variable, "a positive integer")
    return int(number) if math.isfinite(number) and number == int(number) else number


def _number(text: str, variable: str, wanted: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"`{variable}` must be {wanted}, found {text!r}") from None


_FLAGS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}

TIMEOUT: Final = Kind(timeout_from_user, _parse_timeout)
COUNT: Final = _count()
COUNT_OR_NONE: Final = _count(" or None")
FLAG: Final = Kind(_check_flag, _parse_flag)
FLAG_OR_AUTO: Final = Kind(_check_flag_or_auto, _parse_flag_or_auto)


def check_cost_s(cost_s: object, name: str) -> float:
    """Return a cost in seconds.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, or more than a million seconds.
    """
    if isinstance(cost_s, bool) or not isinstance(cost_s, Real):
        raise TypeError(f"{name} must be a number of seconds, found {cost_s!r}")
    seconds = float(cost_s)
    if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST_COST_S:
        raise ValueError(
            f"{name} must be a number of seconds from 0 to {_LONGEST_COST_S:,.0f}, found {cost_s!r}"
        )
    return seconds
