# SPDX-License-Identifier: Apache-2.0
"""Keywords of ``compile`` and the context of a process, over the environment."""

from __future__ import annotations

import re

import pytest

from rcg.dag import DAGContext
from rcg.dag.compile import CompileKeywords, options_from_user
from rcg.options import OPTIONS


@pytest.fixture(autouse=True)
def fresh_context(monkeypatch):
    """A context of this test's own, and no variables of the outer world."""
    import os

    for name in os.environ:
        if name.startswith(("RCG_", "RAY_CGRAPH_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(DAGContext, "_current", DAGContext())


@pytest.mark.parametrize(
    "keyword", [option.rays_keyword for option in OPTIONS if option.rays_keyword]
)
def test_none_under_rays_names_is_the_default(keyword):
    assert options_from_user({keyword: None}) == options_from_user({})


def test_none_as_a_timeout_of_ours_is_no_limit(monkeypatch):
    monkeypatch.setenv("RCG_GET_TIMEOUT", "9")
    assert options_from_user({}).get_timeout_s == 9
    assert options_from_user({"get_timeout": None}).get_timeout_s is None


def test_zero_is_a_timeout():
    assert options_from_user({"_submit_timeout": 0}).submit_timeout_s == 0


def test_enable_asyncio_warns_once_that_it_is_deprecated():
    with pytest.warns(DeprecationWarning, match="enable_asyncio") as warned:
        assert options_from_user({"enable_asyncio": True}) == options_from_user({})
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_an_unknown_keyword_lists_the_known():
    text = (
        "unexpected keyword argument 'max_in_flight_executions'; did you mean "
        "'max_inflight_executions'?"
    )
    with pytest.raises(TypeError, match=re.escape(text)) as caught:
        options_from_user({"max_in_flight_executions": 3})
    for keyword in CompileKeywords.__annotations__:
        if not keyword.startswith("_") and keyword != "enable_asyncio":
            assert keyword in str(caught.value)
    with pytest.raises(TypeError, match="_execution_timeout'; did you mean 'submit_timeout'"):
        options_from_user({"_execution_timeout": 3})


def test_one_option_under_two_names():
    with pytest.raises(TypeError, match="_submit_timeout"):
        options_from_user({"submit_timeout": 1, "_submit_timeout": 2})


@pytest.mark.parametrize("given", ["create", None, object()])
def test_a_communicator_is_no_option(given: object):
    """It is for lowering, which refuses what is none."""
    assert options_from_user({"_default_communicator": given}) == options_from_user({})


def test_environment_then_context_then_argument(monkeypatch):
    monkeypatch.setenv("RAY_CGRAPH_buffer_size_bytes", "2000")
    assert options_from_user({}).buffer_size_bytes == 2000
    monkeypatch.setenv("RCG_BUFFER_SIZE_BYTES", "3000")
    assert options_from_user({}).buffer_size_bytes == 3000
    DAGContext.get_current().buffer_size_bytes = 4000
    assert options_from_user({}).buffer_size_bytes == 4000
    assert options_from_user({"_buffer_size_bytes": 5000}).buffer_size_bytes == 5000


def test_a_limit_counts_as_the_users_once_it_is_set_even_to_what_it_was():
    context = DAGContext.get_current()
    assert context.max_inflight_executions == 10
    assert not options_from_user({}).is_inflight_limit_set_by_user
    context.max_inflight_executions = 10
    assert options_from_user({}).is_inflight_limit_set_by_user


class TestContext:
    def test_a_setting_of_rays_that_does_nothing_is_kept(self):
        context = DAGContext.get_current()
        assert context.read_iteration_timeout == 0.1
        context.read_iteration_timeout = 0.5
        assert context.read_iteration_timeout == 0.5

    def test_it_can_be_made_with_values(self):
        assert DAGContext(get_timeout=3).get_timeout == 3

    def test_values_are_checked_when_they_are_set(self):
        context = DAGContext.get_current()
        with pytest.raises(ValueError, match="buffer_size_bytes"):
            context.buffer_size_bytes = 0
        with pytest.raises(TypeError, match="get_timeout"):
            context.get_timeout = "soon"
        assert options_from_user({}).buffer_size_bytes == 1_000_000

    def test_a_misspelt_field_is_an_error(self):
        with pytest.raises(
            AttributeError, match=r"max_inflight_execution`.*max_inflight_executions"
        ):
            DAGContext.get_current().max_inflight_execution = 3

    def test_it_prints_its_fields(self):
        assert "get_timeout=None" in repr(DAGContext())
