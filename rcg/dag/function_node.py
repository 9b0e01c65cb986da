# SPDX-License-Identifier: Apache-2.0
"""Ray's path of ``FunctionNode``."""

from rcg.dag.tasks import FunctionNode

__all__ = ["FunctionNode"]
