# SPDX-License-Identifier: Apache-2.0
"""Settings of this process for all graphs it compiles from now on.

They stand between the environment and the arguments of ``compile``: environment < context <
arguments. A context holds only what was set on it, so a variable that changes later is still seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rcg.options import Options, timeout_from_user

__all__ = ["DAGContext"]

# Ray's name -> the field of Options.
_FIELDS: Final[Mapping[str, str]] = {
    "submit_timeout": "submit_timeout_s",
    "get_timeout": "get_timeout_s",
    "teardown_timeout": "teardown_timeout_s",
    "buffer_size_bytes": "buffer_size_bytes",
    "max_inflight_executions": "max_inflight_executions",
    "max_buffered_results": "max_buffered_results",
    "overlap_gpu_communication": "overlap_communication",
}

# rcg does not poll: accepted, because programs set it, and without effect.
_POLL_FIELD: Final = "read_iteration_timeout"
_POLL_DEFAULT_S: Final = 0.1


class DAGContext:
    """Defaults for the graphs that this process compiles.

    The fields have the names and meanings of Ray's ``DAGContext``. They are read when a graph is
    compiled; a graph keeps what it was compiled with. Timeouts are in seconds, None for no limit.

    Attributes:
        submit_timeout: Longest wait of ``execute`` for room in the window.
        get_timeout: Longest wait for a result.
        teardown_timeout: Longest wait for the actors' loops to end.
        read_iteration_timeout: Without effect, as rcg does not poll.
        buffer_size_bytes: Checked and without effect: channels size themselves.
        max_inflight_executions: Executions that may be under way at once. Once it is set,
            ``execute`` raises when the window is full instead of waiting.
        max_buffered_results: Executions whose results may wait at the driver.
        overlap_gpu_communication: Without effect while all values go through shared memory.

    >>> DAGContext(buffer_size_bytes=500).buffer_size_bytes
    500
    """

    submit_timeout: float | None
    get_timeout: float | None
    teardown_timeout: float | None
    read_iteration_timeout: float
    buffer_size_bytes: int
    max_inflight_executions: int
    max_buffered_results: int
    overlap_gpu_communication: bool

    # One for the process, as users expect of `get_current`; made below.
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
        """Return the environment's options with what was set here on top."""
        changes = {_FIELDS[name]: value for name, value in self._changes.items() if name in _FIELDS}
        return Options.from_environment().replace(**changes)

    def __getattr__(self, name: str) -> Any:
        if name in _FIELDS:
            return getattr(self.options(), _FIELDS[name])
        if name == _POLL_FIELD:
            return self._changes.get(name, _POLL_DEFAULT_S)
        raise AttributeError(_no_field(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name != _POLL_FIELD and name not in _FIELDS:
            raise AttributeError(_no_field(name))
        if name.endswith("timeout"):
            value = timeout_from_user(value, name)
        if name in _FIELDS:
            Options().replace(**{_FIELDS[name]: value})  # for its checks
        self._changes[name] = value

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in (*_FIELDS, _POLL_FIELD))
        return f"DAGContext({shown})"


DAGContext._current = DAGContext()


def _no_field(name: str) -> str:
    return f"DAGContext has no field `{name}`: it has {', '.join((*_FIELDS, _POLL_FIELD))}"
