# SPDX-License-Identifier: Apache-2.0
"""Writing a DAG, running it as it is, and compiling it.

``InputNode`` and ``bind`` make nodes, ``MultiOutputNode`` collects several of them, and every node
has ``compile`` (also ``experimental_compile``) and ``execute``. ``DAGContext`` holds the settings
of this process.
"""

from rcg.dag.context import DAGContext
from rcg.dag.nodes import (
    ClassMethodNode,
    CollectiveOutputNode,
    DAGNode,
    InputAttributeNode,
    InputNode,
    MultiOutputNode,
)
from rcg.dag.records import DAGInputData
from rcg.dag.tasks import ClassNode, FunctionNode

__all__ = [
    "ClassMethodNode",
    "ClassNode",
    "CollectiveOutputNode",
    "DAGContext",
    "DAGInputData",
    "DAGNode",
    "FunctionNode",
    "InputAttributeNode",
    "InputNode",
    "MultiOutputNode",
]
