# SPDX-License-Identifier: Apache-2.0
"""Writing a DAG of actor methods, running it as it is, and compiling it.

``InputNode`` and ``actor.method.bind(...)`` make nodes, ``MultiOutputNode`` collects several of
them, and every node has ``compile`` (also ``experimental_compile``) and ``execute``. ``DAGContext``
holds the settings of this process.
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

__all__ = [
    "ClassMethodNode",
    "CollectiveOutputNode",
    "DAGContext",
    "DAGNode",
    "InputAttributeNode",
    "InputNode",
    "MultiOutputNode",
]
