# SPDX-License-Identifier: Apache-2.0
"""Remote functions, which plain processes do not run; see ``ray``."""

from __future__ import annotations

from typing import Any, NoReturn


class RemoteFunction:
    """What ``remote`` makes of a function."""

    def __init__(self, function: Any) -> None:
        self._function_name = function.__name__

    def options(self, **_: Any) -> RemoteFunction:
        return self

    def remote(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("plain processes run no tasks")
