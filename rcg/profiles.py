# SPDX-License-Identifier: Apache-2.0
"""``rcg.profiles`` for programs that import it as a module: it has ``Profile``, and can be called.

``from rcg.profiles import Profile`` makes the package's ``profiles`` this module, instead of the
function of that name. So the module is called like the function.
"""

from __future__ import annotations

import sys
from types import ModuleType

from rcg.callers import at_users_line
from rcg.profiling import Profile, kept_profiles
from rcg.runs import Runs

__all__ = ["Profile"]


class _Callable(ModuleType):
    @at_users_line
    def __call__(self, *, keep: int | None = None) -> Runs:
        """Return the profiles of this process; see ``rcg.profiles``."""
        return kept_profiles(keep)


sys.modules[__name__].__class__ = _Callable
