# SPDX-License-Identifier: Apache-2.0
"""The process of an actor; see ``ray``."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def _answer(act: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return False, act()
    except Exception as error:  # noqa: BLE001 - the caller has it
        return True, (traceback.format_exc(), error)


def serve(pipe: Connection) -> None:
    """Be an actor until the pipe ends."""
    instance: Any = None
    with contextlib.suppress(EOFError):
        while True:
            number, name, args, kwargs = pickle.loads(pipe.recv_bytes())
            is_error, value = False, None
            if name == "__init__":
                cls, *rest = args
                instance = cls(*rest, **kwargs)
            elif name == "__ray_call__":
                function, *rest = args
                is_error, value = _answer(lambda: function(instance, *rest, **kwargs))  # noqa: B023
            elif name != "__ray_ready__":
                is_error, value = _answer(lambda: getattr(instance, name)(*args, **kwargs))  # noqa: B023
            pipe.send_bytes(pickle.dumps((number, is_error, value)))
    os._exit(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
