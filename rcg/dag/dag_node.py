# SPDX-License-Identifier: Apache-2.0
"""Ray's path of ``DAGNode``."""

from rcg.dag.nodes import DAGNode

__all__ = ["DAGNode"]
