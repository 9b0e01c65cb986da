# SPDX-License-Identifier: Apache-2.0
"""The answering side of the futex ping-pong, a separate program: `python -m rcg.bench.pong FD`.

Each line of its standard input is a number of round trips. It ends with its standard input.
"""

from __future__ import annotations

import sys

from rcg.bench import _limits


def main() -> None:
    """Answer until the standard input ends."""
    fd = int(sys.argv[1])
    for line in sys.stdin:
        _limits.ping_pong(fd, 1, int(line))


if __name__ == "__main__":
    main()
