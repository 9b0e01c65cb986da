# SPDX-License-Identifier: Apache-2.0
"""The log ``rcg``, whose handlers are the user's: one that raises ends nothing of ours."""

from __future__ import annotations

import logging
from typing import Final

from rcg.error_text import shielding

_CALLER: Final = 3  # frames from `Logger.log` to the caller


class Log:
    """Writes to the logger ``rcg``. Any thread."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("rcg")

    def debug(self, message: str, *args: object) -> None:
        """Log at the debug level."""
        self._write(logging.DEBUG, message, args)

    def warning(self, message: str, *args: object) -> None:
        """Log a warning."""
        self._write(logging.WARNING, message, args)

    def exception(self, message: str, *args: object) -> None:
        """Log an error with the exception that is being handled."""
        self._write(logging.ERROR, message, args, with_exception=True)

    def _write(
        self, level: int, message: str, args: tuple[object, ...], *, with_exception: bool = False
    ) -> None:
        with shielding():
            self._logger.log(level, message, *args, exc_info=with_exception, stacklevel=_CALLER)
