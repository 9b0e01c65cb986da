# SPDX-License-Identifier: Apache-2.0
"""vLLM on rcg: ``RcgExecutor`` runs an engine's workers as a compiled graph of Ray actors.

Pass the class as ``distributed_executor_backend``, or set ``RCG_VLLM=1``: then ``ray`` means it.
vLLM is imported when the class is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rcg.options import is_vllm_executor

if TYPE_CHECKING:
    from rcg.integrations.vllm.executor import RcgExecutor

__all__ = ["RcgExecutor", "register"]

_RAY = "ray"
_IS_OURS = "is_rcgs"


def register() -> None:
    """Have vLLM's backend ``ray`` mean ``RcgExecutor`` if ``RCG_VLLM`` says yes.

    It is the plugin of vLLM, which calls it in each of its processes, some of them several times.

    Raises:
        ValueError: ``RCG_VLLM`` holds neither yes nor no.
    """
    if not is_vllm_executor():
        return
    from vllm.v1.executor.abstract import Executor

    vllms = Executor.get_class
    if hasattr(vllms, _IS_OURS):
        return

    def get_class(vllm_config: Any) -> type[Any]:
        if vllm_config.parallel_config.distributed_executor_backend == _RAY:
            found: type[Any] = __getattr__("RcgExecutor")
            return found
        others: type[Any] = vllms(vllm_config)
        return others

    setattr(get_class, _IS_OURS, True)
    Executor.get_class = staticmethod(get_class)


def __getattr__(name: str) -> Any:
    if name == "RcgExecutor":
        try:
            return importlib.import_module("rcg.integrations.vllm.executor").RcgExecutor
        except ImportError as error:
            if error.name is None or not error.name.startswith("vllm."):
                raise
            raise ImportError(
                f"RcgExecutor does not run with this version of vLLM, which lacks a part that it "
                f"uses: {error}",
                name=error.name,
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
