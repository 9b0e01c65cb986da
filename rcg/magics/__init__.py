# SPDX-License-Identifier: Apache-2.0
"""Magics of notebooks: what ``%load_ext rcg`` adds.

* ``magics``: the magics;
* ``parser``: the options in a line of a magic;
* ``showing``: displaying pictures and widgets.
"""

from rcg.magics.magics import RcgMagics, load

__all__ = ["RcgMagics", "load"]
