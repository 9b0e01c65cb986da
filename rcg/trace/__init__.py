# SPDX-License-Identifier: Apache-2.0
"""What the processes of a graph did and when: reading the flight recorder."""

from __future__ import annotations

from rcg.trace.recorder import Recorder

__all__ = ["Recorder"]
