# SPDX-License-Identifier: Apache-2.0
"""A real IPython shell for tests, which keeps nothing of one module for the next."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interactive_shell() -> Iterator[Any]:
    """Make the shell of this process; it ends with the block."""
    from IPython.core.interactiveshell import InteractiveShell

    # Doctests leave their last value there; IPython takes it for a translation and has no `_`.
    vars(builtins).pop("_", None)
    main, names = sys.modules["__main__"], dict(vars(sys.modules["__main__"]))
    made = InteractiveShell.instance(colors="nocolor")
    try:
        yield made
    finally:
        made.reset()  # also empties the module that it takes for the main one
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = main
        vars(main).update(names)
