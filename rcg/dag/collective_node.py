# SPDX-License-Identifier: Apache-2.0
"""Ray's path of ``CollectiveOutputNode``."""

from rcg.dag.nodes import CollectiveOutputNode

__all__ = ["CollectiveOutputNode"]
