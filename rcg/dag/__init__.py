# SPDX-License-Identifier: Apache-2.0
"""Writing a DAG, running it as it is, and compiling it.

``InputNode`` and ``bind`` make nodes, ``MultiOutputNode`` collects several of them, and every node
has ``compile`` (also ``experimental_compile``) and ``execute``. ``DAGContext`` holds the settings
of this process. They are imported from where Ray has them, so that those modules are there, too.
"""

from rcg.dag import constants as constants
from rcg.dag.class_node import ClassMethodNode, ClassNode
from rcg.dag.collective_node import CollectiveOutputNode
from rcg.dag.context import DAGContext
from rcg.dag.dag_node import DAGNode
from rcg.dag.function_node import FunctionNode
from rcg.dag.input_node import DAGInputData, InputAttributeNode, InputNode
from rcg.dag.output_node import MultiOutputNode

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
