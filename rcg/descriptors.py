# SPDX-License-Identifier: Apache-2.0
"""File descriptors: objects that own them, and the error when none are left.

A descriptor that is only a number leaks if Ctrl-C arrives between the call that opens it and the
line that stores it. ``Descriptor`` opens and stores in one step of the interpreter.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from itertools import repeat, starmap
from typing import Any, Final

from rcg.errors import OutOfDescriptors, OutOfThreads

# Of this process, of the machine, and of this user's descriptors that are under way in sockets.
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)
_MAX_CHAIN: Final = 16  # of errors that caused each other


def close_all(fds: list[int]) -> None:
    """Close all descriptors of a list and empty it; Ctrl-C between any two steps loses none."""
    while fds:
        with contextlib.suppress(OSError):
            # Taken out and closed within one call into C, where no signal handler of Python runs.
            any(map(os.close, map(list.pop, repeat(fds, len(fds)))))


class Descriptor:
    """A descriptor that is closed by ``close`` or with the last reference to this object.

    It is opened by ``opener(*args)``, a function of the interpreter's own such as ``os.eventfd``,
    whose errors are raised; without one there is no descriptor.
    """

    __slots__ = ("__weakref__", "_fds")

    def __init__(self, opener: Callable[..., int] | None = None, *args: Any) -> None:
        self._fds: list[int] = []
        if opener is not None:
            # Opened and stored within one call into C, where no signal handler of Python runs.
            self._fds.extend(starmap(opener, (args,)))

    @property
    def fd(self) -> int:
        """The descriptor, -1 if there is none or it was closed."""
        return self._fds[0] if self._fds else -1

    def close(self) -> None:
        """Close it; idempotent."""
        close_all(self._fds)

    def __del__(self) -> None:
        try:  # the interpreter, at its end, may have cleared this module
            close_all(self._fds)
        except (AttributeError, TypeError):
            pass  # that, or it was never completely made


def exhaustion_in(error: BaseException | None) -> OSError | None:
    """Return the error or its cause that says that descriptors are used up."""
    for _ in range(_MAX_CHAIN):
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return error
        if error is None:
            break
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def out_of_descriptors(
    error: BaseException, purpose: str, actor: str | None = None
) -> OutOfDescriptors | OutOfThreads | None:
    """Return ``OutOfDescriptors`` for an error that descriptors caused; None for other errors.

    ``OutOfThreads`` is returned in the same form: it comes from the same calls of other processes.
    """
    kinds: tuple[type[OutOfDescriptors | OutOfThreads], ...] = (OutOfDescriptors, OutOfThreads)
    for kind in kinds:
        if isinstance(error, kind):
            if type(error) is not kind:  # Ray's class around it, whose text is a traceback
                return kind(error.message, **error.facts)
            if actor is None or error.actor is not None or error.pid != os.getpid():
                return error
            return kind(error.message, **{**error.facts, "actor": actor})
    found = exhaustion_in(error)
    if found is None or (actor is None and getattr(error, "actor", None) is not None):
        return None  # or it happened in the process of an actor, which is not this one
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    who = f"process {os.getpid()}" if actor is None else f"{actor} (process {os.getpid()})"
    if found.errno == errno.ENFILE:
        return OutOfDescriptors(
            f"this machine has no file descriptor left for {who} {purpose}: raise the limit of the "
            "machine (`sysctl fs.file-max`), or end processes that hold some",
            pid=os.getpid(),
            actor=actor,
        )
    return OutOfDescriptors(
        f"{who} has no file descriptor left {purpose}: its limit (RLIMIT_NOFILE) is {soft}. Raise "
        f"it (`ulimit -n` before the process starts, or resource.setrlimit; at most {hard} here), "
        "or close files and connections and tear graphs down",
        pid=os.getpid(),
        limit=soft,
        actor=actor,
    )


@contextlib.contextmanager
def telling_exhaustion(purpose: str, actor: str | None = None) -> Iterator[None]:
    """Raise ``OutOfDescriptors`` in place of an error that running out of descriptors caused.

    Raises:
        OutOfDescriptors: The block failed because descriptors are used up.
        OutOfThreads: It raised that, perhaps in another process.
    """
    try:
        yield
    except Exception as error:
        found = out_of_descriptors(error, purpose, actor)
        if found is None or found is error:
            raise
        raise found from error
