# SPDX-License-Identifier: Apache-2.0
# What `_limits.c` offers, for type checkers. The C file says what it means.

from typing import Any

def memcpy(
    destination: Any, source: Any, /
) -> int: ...  # buffers; numpy's stubs say so from 3.12 on
def ping_pong(fd: int, role: int, rounds: int, /) -> bytes: ...
