# SPDX-License-Identifier: Apache-2.0
"""How things of rcg show themselves in a notebook: as text and, if it has any, as a picture.

Plans and traces are shown, too, and they stand below the views; and a program that only runs must
not load what draws. So what is shown asks for its pictures by name, when it is shown and not
before: the one place that looks upward.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

__all__ = ["Displayed"]


class Displayed:
    """What a notebook shows as text and as static HTML, which needs no script.

    A class names the function of ``rcg.views.bundle`` that shows it, and gives its arguments.
    """

    __slots__ = ()

    _shown_by: ClassVar[str]

    def _shown(self) -> tuple[Any, ...]:
        return (self,)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        show = getattr(importlib.import_module("rcg.views.bundle"), self._shown_by)
        bundle: dict[str, str] = show(*self._shown())
        return bundle
