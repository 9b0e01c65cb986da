# SPDX-License-Identifier: Apache-2.0
"""Ray's path of the input's nodes."""

from rcg.dag.nodes import InputAttributeNode, InputNode
from rcg.dag.records import DAGInputData

__all__ = ["DAGInputData", "InputAttributeNode", "InputNode"]
