# SPDX-License-Identifier: Apache-2.0
"""Ray's path of ``CompiledDAG``."""

from rcg.runtime.driver.compiled_dag import CompiledDAG

__all__ = ["CompiledDAG"]
