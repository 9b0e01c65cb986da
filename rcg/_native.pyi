# SPDX-License-Identifier: Apache-2.0
# What `_native.c` offers, for type checkers. The C file says what it means.

from collections.abc import Callable, Sequence
from typing import Any, Final, final

from typing_extensions import Buffer

ABI_VERSION: Final[int]
FRAME_BYTES: Final[int]
INLINE_BUFFER: Final[int]
KIND_BYTES: Final[int]
KIND_FAILURE: Final[int]
KIND_PICKLE: Final[int]
MAX_MEMBERS: Final[int]
MIN_BLOCK: Final[int]
NOW_IDLE: Final[int]
NOW_RUNNING: Final[int]
NOW_WAITING: Final[int]
POISON_BROKEN: Final[int]
POISON_CLOSED: Final[int]

class Poisoned(Exception): ...
class TimedOut(Exception): ...
class NoMemory(Exception): ...
class Corrupt(Exception): ...

@final
class Arena: ...

@final
class Lease:
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Frame:
    @property
    def is_failure(self) -> bool: ...
    def decode(self) -> Any: ...

@final
class Reader:
    @property
    def seq(self) -> int: ...
    def read(self, timeout_ns: int | None = -1, /) -> Any: ...
    def take(self, timeout_ns: int | None = -1, /) -> Frame: ...
    def collect(
        self, frames: dict[int, Frame], execution: int, timeout_ns: int | None = -1, /
    ) -> None: ...
    def collect_pending(self, frames: dict[int, Frame], /) -> None: ...
    def pending(self) -> int: ...

@final
class Writer:
    @property
    def seq(self) -> int: ...
    def open(self) -> None: ...
    def write(
        self,
        kind: int,
        data: Buffer,
        buffers: list[Any] | None = None,
        writable: int | bytes = 0,
        timeout_ns: int | None = -1,
        /,
    ) -> None: ...

@final
class Member:
    def __new__(
        cls,
        board_fd: int,
        arena_fds: list[int],
        index: int,
        wait: str = "auto",
        record: bool = True,
        looping: bool = False,
    ) -> Member: ...
    @property
    def poisoned(self) -> tuple[int, int]: ...
    def reader(
        self, ring: int, op: int, decode: Callable[..., Any], failure: Callable[[Any], Any], /
    ) -> Reader: ...
    def writer(self, ring: int, op: int, /) -> Writer: ...
    def mark(self, op: int, execution: int, /) -> None: ...
    def write_all(
        self,
        frames: Sequence[
            tuple[Writer, int, Buffer]
            | tuple[Writer, int, Buffer, list[Any] | None]
            | tuple[Writer, int, Buffer, list[Any] | None, int | bytes]
        ],
        timeout_ns: int | None = -1,
        /,
    ) -> None: ...
    def wait_any(
        self,
        readers: list[Reader] | list[tuple[Reader, int]],
        timeout_ns: int | None = None,
        interrupts: int | None = None,
        /,
    ) -> int: ...
    def interrupt(self) -> None: ...
    def poison(self, code: int, culprit: int = -1, /) -> bool: ...
    def now(self, member: int, /) -> tuple[int, int, int, int, int, int, int]: ...
    def counters(self, member: int, /) -> tuple[int, int, int]: ...
    def waiting_since(self, member: int, /) -> int: ...
    def events(
        self, member: int, start: int, /
    ) -> tuple[int, int, list[tuple[int, int, int, int, int, int]]]: ...
    def ring(self, index: int, /) -> tuple[int, list[int]]: ...
    def trim(self, keep_bytes: int = 0, /) -> int: ...
    def forget(self, member: int, /) -> int: ...
    def statistics(self) -> dict[str, int]: ...

def format_board(
    fd: int,
    members: int,
    rings: Sequence[tuple[int, tuple[int, ...], int, int]],
    events: int,
    cap_bytes: int,
    /,
) -> int: ...
def format_arena(fd: int, owner: int, members: int, reserve_bytes: int, /) -> None: ...
def memcpy(
    destination: Any, source: Any, /
) -> int: ...  # buffers; numpy's stubs say so from 3.12 on
def ping_pong(fd: int, role: int, rounds: int, /) -> bytes: ...
