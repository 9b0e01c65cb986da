# SPDX-License-Identifier: Apache-2.0
"""Ray's switches of compiled graphs, which only say what the environment has.

Setting one here warns and names the replacement, as its variable does.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Final

from rcg.frames import warn_user
from rcg.options import IGNORED, OPTIONS

__all__ = [
    "RAY_CGRAPH_ENABLE_DETECT_DEADLOCK",
    "RAY_CGRAPH_ENABLE_NVTX_PROFILING",
    "RAY_CGRAPH_ENABLE_PROFILING",
    "RAY_CGRAPH_ENABLE_TORCH_PROFILING",
    "RAY_CGRAPH_VISUALIZE_SCHEDULE",
]

RAY_CGRAPH_ENABLE_DETECT_DEADLOCK = os.environ.get("RAY_CGRAPH_ENABLE_DETECT_DEADLOCK", "1") == "1"
RAY_CGRAPH_ENABLE_NVTX_PROFILING = os.environ.get("RAY_CGRAPH_ENABLE_NVTX_PROFILING") == "1"
RAY_CGRAPH_ENABLE_PROFILING = os.environ.get("RAY_CGRAPH_ENABLE_PROFILING") == "1"
RAY_CGRAPH_ENABLE_TORCH_PROFILING = os.environ.get("RAY_CGRAPH_ENABLE_TORCH_PROFILING") == "1"
RAY_CGRAPH_VISUALIZE_SCHEDULE = os.environ.get("RAY_CGRAPH_VISUALIZE_SCHEDULE") == "1"

_INSTEAD: Final = {
    **{setting.variable: setting.instead for setting in IGNORED},
    **{
        option.rays_variable: f"compile with {option.keyword}=True, or set {option.variable}=1"
        for option in OPTIONS
    },
}


class _Switches(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if value and name in __all__:
            warn_user(f"{name} has no effect here: {_INSTEAD[name]}", UserWarning)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Switches
