# SPDX-License-Identifier: Apache-2.0
"""Ray's path of ``MultiOutputNode``."""

from rcg.dag.nodes import MultiOutputNode

__all__ = ["MultiOutputNode"]
