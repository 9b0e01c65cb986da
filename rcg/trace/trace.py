# SPDX-License-Identifier: Apache-2.0
"""``rcg.Trace``: a recording that can be saved, loaded and exported.

This file is above analysis and export. Everything else in this room takes a plain ``Recording``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Self

from rcg.callers import at_users_line
from rcg.display import views
from rcg.trace.export.files import read, write
from rcg.trace.export.frame import to_pandas
from rcg.trace.model import Recording

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Recording):
    """A recording of what the processes of some graphs did. It can be saved and exported."""

    @at_users_line
    def save(self, path: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the trace to a file for ``load``: a zip of JSON and NumPy arrays, no pickle."""
        write(self, path)

    @at_users_line
    def to_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome trace JSON for ui.perfetto.dev, compressed if the name ends in ``.gz``."""
        views().chrome(self, path)

    @at_users_line
    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with one row per event; ``rcg.trace.export.frame`` lists the columns.

        Raises:
            ImportError: pandas is not installed.
        """
        return to_pandas(self)

    @classmethod
    @at_users_line
    def load(cls, path: str | os.PathLike[str] | bytes) -> Self:
        """Read a file that ``save`` wrote, or its bytes. Untrusted ones are safe.

        ``rcg.trace.export.files`` says what is checked.

        Raises:
            TraceError: The file is not a trace, or a later rcg wrote it.
            OSError: The file cannot be opened.
        """
        found = read(path)
        return cls(found.graphs, found.start_ns, found.end_ns, found.info, found.transfers)
