# SPDX-License-Identifier: Apache-2.0
"""The other side of the futex ping-pong: `python -m rcg.bench.pong FD`, a program of its own.

Reads a number of round trips from each line of its standard input, and ends with it.
"""

from __future__ import annotations

import sys

from rcg.bench import _limits


def main() -> None:
    """Answers until the standard input ends."""
    fd = int(sys.argv[1])
    for line in sys.stdin:
        _limits.ping_pong(fd, 1, int(line))


if __name__ == "__main__":
    main()
