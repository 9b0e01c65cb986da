# SPDX-License-Identifier: Apache-2.0
"""Ray's path of the nodes of actors and their methods."""

from rcg.dag.nodes import ClassMethodNode
from rcg.dag.tasks import ClassNode

__all__ = ["ClassMethodNode", "ClassNode"]
