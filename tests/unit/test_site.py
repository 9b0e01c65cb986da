# SPDX-License-Identifier: Apache-2.0
"""Places in the user's source, notebooks included."""

from __future__ import annotations

import inspect
import warnings

from rcg.dag import InputNode
from rcg.dag.records import find_site
from rcg.frames import warn_user


def test_the_line_of_the_caller():
    site = find_site()
    assert site.file == __file__
    assert site.line == inspect.currentframe().f_lineno - 2


def test_authoring_code_is_passed_over():
    inp = InputNode()
    line = inspect.currentframe().f_lineno - 1
    assert repr(inp) == f"InputNode (test_site.py:{line})"
    assert repr(inp.x) == f"InputNode['x'] (test_site.py:{line + 3})"


def test_warnings_point_there_too():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_user("look", UserWarning)
    assert caught[0].filename == __file__


def test_a_cell_of_a_notebook():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.run_cell("from rcg.dag import InputNode")
        shell.execution_count = 7
        result = shell.run_cell("1 + 1\ninp = InputNode()\nrepr(inp)", store_history=True)
    finally:
        InteractiveShell.clear_instance()
    assert result.result == "InputNode (In [7] line 2)"
