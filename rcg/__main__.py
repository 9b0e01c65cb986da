# SPDX-License-Identifier: Apache-2.0
"""``python -m rcg`` is the command ``rcg``."""

from __future__ import annotations

import sys

from rcg.cli import main

if __name__ == "__main__":
    sys.exit(main())
