# SPDX-License-Identifier: Apache-2.0
"""A graph of another process, seen from here: what ``rcg.live`` returns and ``rcg attach`` shows.

The process that compiled the graph makes its reports and records its profiles
(``rcg.runtime.control.graphs``). They come as JSON and as the file of a trace, and are checked like
any file. Nothing of the graph runs here, and nothing more runs there while no one looks.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Final

from rcg.errors import AttachError, RcgError, TraceError
from rcg.options import timeout_from_user
from rcg.profiling import Profile
from rcg.runtime.control.joining import Joined, check_user, join
from rcg.runtime.observe.drivers import find_drivers, why_silent
from rcg.runtime.observe.report import Report
from rcg.text import visible
from rcg.trace.trace import Trace
from rcg.wire import sockets
from rcg.wire.messages import (
    GRAPHS,
    AskGraph,
    EndProfile,
    Failed,
    Opening,
    ProfileGraph,
    Ready,
    Reported,
)
from rcg.wire.payloads import open_payloads
from rcg.wire.sockets import Received

__all__ = ["LiveGraph", "find_live"]

_ANSWER_TIMEOUT_S: Final = 10.0
_START_TIMEOUT_S: Final = 45.0  # with torch's profiler, which may load a library in each actor
_TRACE_TIMEOUT_S: Final = 120.0  # five million events are packed in a few seconds
_MOST_SECONDS: Final = 3600.0
_MOST_COMMAND: Final = 60
_LEAST_OF_ID: Final = 4  # a shorter beginning of an id may well be a name


class LiveGraph:
    """A graph of another process of this user on this machine.

    Attributes:
        pid: The process that compiled it.
        command: Its command line.
        name: What people call the graph.
        graph_id: Its id, in hex.
    """

    def __init__(self, pid: int, command: str, address: str, found: Report) -> None:
        self.pid = pid
        self.command = command
        self.name = found.name
        self.graph_id = found.graph_id
        self._title = found.title
        self._address = address

    def __repr__(self) -> str:
        command = self.command
        if len(command) > _MOST_COMMAND:
            command = f"{command[: _MOST_COMMAND - 1]}\N{HORIZONTAL ELLIPSIS}"
        return visible(f"{self._title} of process {self.pid}: {command}")

    def report(self) -> Report:
        """Return what each process of the graph does now; see ``CompiledDAG.report``.

        Raises:
            AttachError: The process has ended or does not answer, or its graph has ended.
        """
        opening = AskGraph(graph=GRAPHS, secret=self._address, graph_id=self.graph_id)
        joined = self._ask(opening, _ANSWER_TIMEOUT_S)
        try:
            return Report.from_plain(json.loads(self._file_of(joined.answer)))
        except (ValueError, TypeError, KeyError) as error:
            raise self._unreadable(error) from error
        finally:
            joined.close()

    def profile(
        self,
        seconds: float,
        *,
        name: str = "",
        torch: bool = False,
        until_interrupt: bool = False,
    ) -> Profile:
        """Record from now on for so many seconds, and return the profile.

        Args:
            seconds: How long.
            name: What the profile is called; see ``rcg.profiles``.
            torch: See ``rcg.profile``.
            until_interrupt: Ctrl-C ends the recording early, instead of raising.

        Raises:
            AttachError: As for ``profiler``, also as soon as the process ends.
            TypeError: ``seconds`` is not a number.
            ValueError: It is no time from 0 to an hour.
        """
        limit_s = None if seconds == -1 else timeout_from_user(seconds, "seconds")
        if limit_s is None or limit_s > _MOST_SECONDS:
            raise ValueError(f"record from 0 to {_MOST_SECONDS:g} seconds, found {seconds!r}")
        early = (TimeoutError, *[KeyboardInterrupt] * until_interrupt)
        with self._recording(torch, name) as (profile, joined), contextlib.suppress(*early):
            sockets.wait_for_message(joined.connection, joined.pidfd.fd, limit_s)
        return profile

    @contextlib.contextmanager
    def profiler(self, *, name: str = "", torch: bool = False) -> Iterator[Profile]:
        """Record what happens in a block: ``with live.profiler() as p: ...``, then ``print(p)``.

        Args:
            name: What the profile is called; see ``rcg.profiles``.
            torch: See ``rcg.profile``.

        Raises:
            AttachError: The process has ended or does not answer, its graph has ended, or cannot
                be recorded.
        """
        with self._recording(torch, name) as (profile, _):
            yield profile

    @contextlib.contextmanager
    def _recording(self, torch: bool, name: str) -> Iterator[tuple[Profile, Joined]]:
        opening = ProfileGraph(
            graph=GRAPHS, secret=self._address, graph_id=self.graph_id, torch=torch
        )
        joined = self._ask(opening, _START_TIMEOUT_S)
        try:
            if not isinstance(joined.message, Ready):
                raise self._refused(joined.answer)
            profile = Profile(name=name)
            try:
                yield profile, joined
            except BaseException as error:  # of the block, which matters more than the profile
                try:
                    profile.complete(self._end(joined))
                except AttachError as lost:
                    error.add_note(f"{lost}; there is no profile")
                raise
            profile.complete(self._end(joined))
        finally:
            joined.close()

    def _end(self, joined: Joined) -> Trace:
        """End a recording and return what was recorded."""
        connection, pidfd = joined.connection, joined.pidfd.fd
        with contextlib.suppress(OSError):  # what it has sent says more
            sockets.send(connection, EndProfile())
        try:
            if not sockets.wait_for_message(connection, pidfd, _TRACE_TIMEOUT_S):
                raise self._error("has ended, and with it what was recorded")
        except TimeoutError:
            raise self._error(why_silent(self.pid, _TRACE_TIMEOUT_S)) from None
        with sockets.receive(connection, descriptors=1) as received:
            found = self._file_of(received)
        try:
            return Trace.load(found)
        except TraceError as error:
            raise self._unreadable(error) from error

    def _ask(self, opening: Opening, timeout_s: float) -> Joined:
        """Return the connection with the first answer to a question."""
        try:
            return join(self._address, opening, timeout_s, check_user, descriptors=1)
        except TimeoutError:
            raise self._error(why_silent(self.pid, timeout_s)) from None
        except ConnectionAbortedError:
            raise self._error("has ended this graph, or its rcg is an older one") from None
        except (ConnectionError, ProcessLookupError):
            raise self._error("has ended") from None
        except (OSError, ValueError, RcgError) as error:
            raise self._error(f"cannot be asked: {error}") from error

    def _file_of(self, received: Received) -> bytes:
        """Return the bytes of an answer, if it has any."""
        if not isinstance(received.message, Reported):
            raise self._refused(received)
        try:
            (payload,) = open_payloads(received)
            return bytes(payload.decode())
        except (OSError, ValueError, TypeError) as error:
            raise self._unreadable(error) from error

    def _refused(self, received: Received) -> AttachError:
        if isinstance(received.message, Failed):
            return self._error(f"cannot do that: {received.message.text}")
        return self._error("has ended, or its graph has")

    def _unreadable(self, error: Exception) -> AttachError:
        return self._error(f"has sent an answer that cannot be read: {error}")

    def _error(self, what: str) -> AttachError:
        return AttachError(f"process {self.pid} {what}", graph=self._title)


def find_live(name: str | None = None, *, pid: int | None = None) -> LiveGraph:
    """Return the graph of another process that has this name; see ``rcg.live``."""
    drivers = [each for each in find_drivers(pid) if each.pid != os.getpid() or each.pid == pid]
    found = [
        LiveGraph(driver.pid, driver.command, driver.address, graph.report)
        for driver in drivers
        for graph in driver.graphs
    ]
    if name:
        named = [each for each in found if each.name == name]
        is_id = len(name) >= _LEAST_OF_ID
        found = named or [each for each in found if is_id and each.graph_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    where = "this user's processes on this machine" if pid is None else f"process {pid}"
    if found:
        listed = "".join(f"\n  {each!r}" for each in found)
        raise AttachError(f"several graphs fit: choose one by its name, id or process{listed}")
    what = f"no graph {name!r}" if name else "no compiled graph"
    silent = "".join(f"\n  process {each.pid} {each.trouble}" for each in drivers if each.trouble)
    known = ", ".join(graph.report.title for each in drivers for graph in each.graphs)
    raise AttachError(
        f"there is {what} in {where}" + (f"; running: {known}" if known else "") + silent
    )
