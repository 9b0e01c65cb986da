# SPDX-License-Identifier: Apache-2.0
"""Settings of this process for all graphs it compiles from now on.

They override environment variables and are overridden by the arguments of ``compile``. A context
holds only what was set on it, so a variable that changes later still has an effect.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rcg.options import IGNORED, OPTIONS, Options, Overlap, with_attributes

__all__ = ["DAGContext"]

_FIELDS: Final = {option.context: option for option in OPTIONS if option.context}
_IGNORED: Final = {setting.context: setting for setting in IGNORED if setting.context}


class DAGContext:
    """Defaults for the graphs that this process compiles.

    The fields have the names and meanings of Ray's ``DAGContext``. They are read when a graph is
    compiled; a graph keeps the values it was compiled with. Timeouts are in seconds, None for no
    limit.

    >>> DAGContext(buffer_size_bytes=500).buffer_size_bytes
    500
    """

    # For type checkers; a test compares them with the records of the options.
    submit_timeout: float | None
    get_timeout: float | None
    teardown_timeout: float | None
    read_iteration_timeout: float
    buffer_size_bytes: int
    max_inflight_executions: int
    max_buffered_results: int
    overlap_gpu_communication: Overlap

    # There is one for the process, as users expect of `get_current`; it is made below.
    _current: ClassVar[DAGContext]
    _changes: dict[str, Any]

    def __init__(self, **fields: Any) -> None:
        object.__setattr__(self, "_changes", {})
        for name, value in fields.items():
            setattr(self, name, value)

    @classmethod
    def get_current(cls) -> DAGContext:
        """Return the context of this process. Any thread may call."""
        return cls._current

    def options(self) -> Options:
        """Return the options of the environment, overridden by what was set here."""
        changes = {
            _FIELDS[name].field: value for name, value in self._changes.items() if name in _FIELDS
        }
        return Options.from_environment().replace(**changes)

    def __getattr__(self, name: str) -> Any:
        if name in _FIELDS:
            return getattr(self.options(), _FIELDS[name].field)
        if name in _IGNORED:
            return self._changes.get(name, _IGNORED[name].default)
        raise AttributeError(_no_field(name))

    def __setattr__(self, name: str, value: Any) -> None:
        known = _FIELDS.get(name) or _IGNORED.get(name)
        if known is None:
            raise AttributeError(_no_field(name))
        self._changes[name] = known.kind.check(value, name)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in (*_FIELDS, *_IGNORED))
        return f"DAGContext({shown})"


DAGContext._current = DAGContext()


def _no_field(name: str) -> str:
    return f"DAGContext has no field `{name}`: it has {', '.join((*_FIELDS, *_IGNORED))}"


DAGContext.__doc__ = with_attributes(
    DAGContext.__doc__,
    [(name, option.text) for name, option in _FIELDS.items()]
    + [(name, f"no effect: {setting.instead}") for name, setting in _IGNORED.items()],
)
