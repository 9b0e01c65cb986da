# SPDX-License-Identifier: Apache-2.0
"""The data that views draw: topologies and their layout, slices, queues, figures, colours.

SVG files and widgets draw the same data. This room must not know how it is drawn.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy.typing as npt


class ViewPayload(NamedTuple):
    """The data of one view.

    Attributes:
        head: JSON data.
        columns: One-dimensional arrays of numbers, by name. Their lengths may differ.
    """

    head: dict[str, Any]
    columns: Mapping[str, npt.NDArray[Any]]
