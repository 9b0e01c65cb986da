# SPDX-License-Identifier: Apache-2.0
"""Whose frames are whose is written in the modules themselves."""

from __future__ import annotations

import importlib
import sys

import pytest

from rcg import frames


@pytest.mark.parametrize("module", ["loop", "steps", "start", "methods"])
def test_what_runs_users_methods_is_plumbing(module):
    assert importlib.import_module(f"rcg.runtime.actor.{module}").__rcg_plumbing__


def test_foreign_plumbing_is_where_it_is_said_to_be():
    for module in frames._FOREIGN_PLUMBING:
        assert importlib.util.find_spec(module) is not None


def _frame_of(name: str, **marks: object):
    found = []
    names = {"__name__": name, "note": lambda: found.append(sys._getframe(1)), **marks}
    exec("note()", names)
    return found[0]


@pytest.mark.parametrize(
    ("name", "marks", "expected"),
    [
        ("rcg.dag.nodes", {}, True),
        ("rcg", {}, True),
        ("rcg_widgets.base", {}, False),
        ("rcg.demo", {"__rcg_user__": True}, False),
        ("__main__", {}, False),
        (None, {}, False),
    ],
)
def test_code_of_rcg_is_ours_unless_it_uses_rcg_as_users_do(name, marks, expected):
    assert frames.is_ours(_frame_of(name, **marks)) is expected


def test_programs_of_ours_are_users():
    for module in ("rcg.demo", "rcg.bench.graphs"):
        assert importlib.import_module(module).__rcg_user__
