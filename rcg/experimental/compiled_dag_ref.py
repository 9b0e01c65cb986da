# SPDX-License-Identifier: Apache-2.0
"""Ray's path of the references that ``execute`` returns."""

from rcg.runtime.refs import CompiledDAGFuture, CompiledDAGRef

__all__ = ["CompiledDAGFuture", "CompiledDAGRef"]
