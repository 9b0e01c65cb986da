# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import typing
from fractions import Fraction

import numpy as np
import pytest

import rcg
from rcg import options
from rcg.dag import DAGContext, InputNode, constants
from rcg.dag.compile import CompileKeywords, options_from_user
from rcg.dag.nodes import DAGNode
from rcg.options import IGNORED, OPTIONS, Deadline, Options, timeout_from_user
from tests.harness.readme import OPTIONS_PAGE


@pytest.fixture(autouse=True)
def fresh_context(monkeypatch):
    """A context of this test's own, and no variables of the outer world."""
    for name in os.environ:
        if name.startswith(("RCG_", "RAY_CGRAPH_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(DAGContext, "_current", DAGContext())


class Clock:
    def __init__(self) -> None:
        self.now_ns = 5_000_000_000

    def __call__(self) -> int:
        return self.now_ns


def test_a_deadline_counts_down_and_expires():
    clock = Clock()
    deadline = Deadline(1.5, clock_ns=clock)
    assert (deadline.remaining_s(), deadline.expired) == (1.5, False)
    clock.now_ns += 1_499_999_999
    assert deadline.remaining_s() == pytest.approx(1e-9)
    assert not deadline.expired
    clock.now_ns += 1
    assert deadline.expired
    clock.now_ns += 10**9
    assert deadline.remaining_s() == 0
    assert Deadline(0).expired


@pytest.mark.parametrize("never", [None, 1.1e9, 1e300, sys.float_info.max, math.inf])
def test_a_deadline_may_be_never(never):
    deadline = Deadline(never)
    assert (deadline.remaining_s(), deadline.expired) == (None, False)


@pytest.mark.parametrize("wrong", [-1, -0.5, math.nan])
def test_a_deadline_takes_no_minus_one(wrong):
    with pytest.raises(ValueError, match="at least 0 seconds"):
        Deadline(wrong)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, None),
        (0, 0.0),
        (2, 2.0),
        (np.float32(0.5), 0.5),
        (np.float64(3), 3.0),
        (Fraction(1, 2), 0.5),
        (1e9, 1e9),
        (1.1e9, None),
        (1e300, None),
        (sys.float_info.max, None),
        (10**400, None),
        (Fraction(10**400), None),
        (math.inf, None),
    ],
)
def test_timeouts_as_users_give_them(given, meant):
    assert timeout_from_user(given, "timeout") == meant


def test_minus_one_is_no_limit_with_a_warning_at_the_caller():
    with pytest.warns(DeprecationWarning, match="`get_timeout` = -1") as caught:
        assert timeout_from_user(-1, "get_timeout") is None
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("given", "error"),
    [(-2, ValueError), (math.nan, ValueError), ("3", TypeError), (True, TypeError)],
)
def test_wrong_timeouts_are_named(given, error):
    with pytest.raises(error, match="`_submit_timeout` must be"):
        timeout_from_user(given, "_submit_timeout")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", True, None])
@pytest.mark.parametrize(
    "field", ["buffer_size_bytes", "max_inflight_executions", "max_buffered_results"]
)
def test_counts_must_be_positive_integers(field, wrong):
    with pytest.raises(ValueError, match=f"`{field}` must be a positive integer, found"):
        Options().replace(**{field: wrong})


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"memory_cap_bytes": 0}, ValueError, "`memory_cap_bytes` must be a positive integer or"),
        ({"wait": "sleep"}, ValueError, "`wait` must be one of 'auto', 'futex'"),
        ({"thread": "any"}, ValueError, "`thread` must be one of 'own', 'main'"),
        ({"record": 1}, TypeError, "`record` must be True or False"),
        ({"get_timeout_s": -3}, ValueError, "`get_timeout_s` must be at least 0"),
        ({"get_timeout_s": "3"}, TypeError, "`get_timeout_s` must be a number"),
        ({"tiemout": 3}, TypeError, "no option 'tiemout': the options are wait, "),
    ],
)
def test_other_wrong_values_are_named(change, error, text):
    with pytest.raises(error, match=text):
        Options().replace(**change)


def test_numpy_integers_become_plain():
    changed = Options().replace(buffer_size_bytes=np.int64(4096))
    assert type(changed.buffer_size_bytes) is int


def test_setting_the_window_counts_as_the_users_limit():
    assert not Options().replace(record=False).is_inflight_limit_set_by_user
    assert Options().replace(max_inflight_executions=10).is_inflight_limit_set_by_user
    assert not (
        Options()
        .replace(max_inflight_executions=5, is_inflight_limit_set_by_user=False)
        .is_inflight_limit_set_by_user
    )
    assert not Options().replace(max_inflight_executions=5).is_buffered_limit_set_by_user
    assert Options().replace(max_buffered_results=5).is_buffered_limit_set_by_user


def test_the_environment_is_read_as_people_write_and_rcg_wins():
    assert Options.from_environment({"UNRELATED": "x"}) == Options()
    options = Options.from_environment(
        {
            "RCG_SUBMIT_TIMEOUT": "2.5",
            "RAY_CGRAPH_submit_timeout": "99",
            "RCG_TEARDOWN_TIMEOUT": "none",
            "RCG_COMPILE_TIMEOUT": " 4 ",
            "RAY_CGRAPH_buffer_size_bytes": "1e6",
            "RCG_MAX_BUFFERED_RESULTS": "",
            "RAY_CGRAPH_max_buffered_results": "8",
            "RAY_CGRAPH_overlap_gpu_communication": "Yes",
            "RCG_WAIT": "Futex",
            "RCG_MEMORY_CAP_BYTES": "1_000_000",
            "RCG_RECORD": "0",
        }
    )
    assert options == Options(
        submit_timeout_s=2.5,
        teardown_timeout_s=None,
        compile_timeout_s=4.0,
        buffer_size_bytes=1_000_000,
        max_buffered_results=8,
        is_buffered_limit_set_by_user=True,
        overlap=True,
        wait="futex",
        memory_cap_bytes=1_000_000,
        record=False,
    )


class Nameless:
    """What users may pass by mistake: every method of it raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    __repr__ = __str__ = __bool__ = __hash__ = __eq__  # type: ignore[assignment]


@pytest.mark.parametrize("name", ["overlap", "wait", "thread"])
@pytest.mark.parametrize(
    "wrong", [np.array([1, 2]), np.array(["auto"]), Nameless(), 0.5, b"auto", "a" * 100_000]
)
def test_a_wrong_option_is_named_whatever_it_is(name, wrong):
    with pytest.raises((TypeError, ValueError), match=f"`{name}` must be") as raised:
        options_from_user({name: wrong})
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("RCG_SUBMIT_TIMEOUT", "soon"),
        ("RAY_CGRAPH_get_timeout", "-2"),
        ("RAY_CGRAPH_buffer_size_bytes", "1.5"),
        ("RAY_CGRAPH_buffer_size_bytes", "inf"),
        ("RCG_MAX_BUFFERED_RESULTS", "0"),
        ("RCG_WAIT", "sleep"),
        ("RCG_RECORD", "perhaps"),
        ("RCG_THREAD", "other"),
    ],
)
def test_a_wrong_variable_is_named(variable, text):
    with pytest.raises(ValueError, match=f"`{variable}` must be"):
        Options.from_environment({variable: text})


def test_the_old_minus_one_is_read_from_the_environment():
    with pytest.warns(DeprecationWarning, match="`RAY_CGRAPH_submit_timeout` = -1"):
        assert (
            Options.from_environment({"RAY_CGRAPH_submit_timeout": "-1"}).submit_timeout_s is None
        )


# --- keywords of compile, and the context of a process, over the environment


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


@pytest.mark.parametrize(
    ("called", "call"),
    [
        ("compile", InputNode.compile),
        ("experimental_compile", InputNode.experimental_compile),
        ("compile", rcg.compile),
        ("plan", rcg.plan),
    ],
)
def test_an_unknown_keyword_is_one_of_the_function_that_was_called(called, call):
    with pytest.raises(TypeError, match=rf"^{called}\(\) got an unexpected .* 'max_inflight'; did"):
        call(InputNode(), max_inflight=3)
    both = {"submit_timeout": 1, "_submit_timeout": 1}
    with pytest.raises(TypeError, match=rf"^{called}\(\) got both"):
        call(InputNode(), **both)


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


# --- one record for each option

HINTS = typing.get_type_hints(Options)


def test_every_field_has_a_record():
    fields = [field.name for field in dataclasses.fields(Options)]
    assert fields == [
        *(option.field for option in OPTIONS),
        *("is_inflight_limit_set_by_user", "is_buffered_limit_set_by_user"),
    ]
    for option in OPTIONS:
        assert getattr(Options(), option.field) == option.default


def test_no_name_stands_for_two_things():
    for names in (
        [keyword for option in OPTIONS for keyword in option.keywords]
        + [setting.keyword for setting in IGNORED if setting.keyword],
        [variable for option in OPTIONS for variable in option.variables]
        + [setting.variable for setting in IGNORED if setting.variable],
        [known.context for known in (*OPTIONS, *IGNORED) if known.context],
    ):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "method", [DAGNode.compile, DAGNode.experimental_compile, rcg.compile, rcg.plan]
)
def test_the_keywords_that_type_checkers_see_are_those_of_the_records(method):
    names = {"CompileKeywords": CompileKeywords, "CompiledDAG": rcg.CompiledDAG}
    shown = typing.get_type_hints(method, localns=names)["options"]
    assert typing.get_origin(shown) is typing.Unpack
    (keywords,) = typing.get_args(shown)
    expected = {
        keyword: HINTS[option.field] | None for option in OPTIONS for keyword in option.keywords
    }
    ignored = {"enable_asyncio": bool}
    assert {setting.keyword for setting in IGNORED if setting.keyword} == ignored.keys()
    others = {"_default_communicator": object, "costs": object, "name": str | None}
    assert typing.get_type_hints(keywords) == expected | ignored | others
    assert not keywords.__required_keys__


def test_the_attributes_that_type_checkers_see_on_the_context_are_those_of_the_records():
    hints = typing.get_type_hints(DAGContext)
    del hints["_current"], hints["_changes"]
    expected = {option.context: HINTS[option.field] for option in OPTIONS if option.context}
    assert hints == expected | {"read_iteration_timeout": float}
    assert {setting.context for setting in IGNORED if setting.context} == {"read_iteration_timeout"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.field)
def test_every_name_of_an_option_sets_it(option):
    value = {"wait": "spin", "thread": "main"}.get(
        option.field, not option.default if type(option.default) is bool else 7
    )
    assert value != option.default
    for keyword in option.keywords:
        assert getattr(options_from_user({keyword: value}), option.field) == value
    for variable in option.variables:
        text = str(int(value)) if type(value) is bool else str(value)
        assert getattr(Options.from_environment({variable: text}), option.field) == value
    if option.context:
        setattr(DAGContext.get_current(), option.context, value)
        assert getattr(DAGContext.get_current(), option.context) == value
        assert getattr(options_from_user({}), option.field) == value


@pytest.mark.parametrize("documented", [Options, CompileKeywords, DAGContext])
def test_docstrings_list_every_option(documented):
    names = {
        Options: [option.field for option in OPTIONS],
        CompileKeywords: [keyword for option in OPTIONS for keyword in option.keywords],
        DAGContext: [option.context for option in OPTIONS if option.context],
    }[documented]
    for name in names:
        assert re.search(rf"^        {name}: [A-Z]", documented.__doc__, re.MULTILINE), name


def test_the_table_of_the_documentation_is_made_from_the_records():
    """A failure prints the right table."""
    lines = ["| keyword | variable | default | what it sets |", "|---|---|---|---|"]
    for option in OPTIONS:
        match option.default:
            case bool():
                default = "yes" if option.default else "no"
            case str() | None:
                default = f"`{option.default}`"
            case _:
                default = f"{option.default:.10g}"
        lines.append(f"| `{option.keyword}` | `{option.variable}` | {default} | {option.text} |")
    text = OPTIONS_PAGE.read_text(encoding="utf-8")
    table, _, others = text.partition("Variables that are not options")
    assert [line for line in table.splitlines() if line.startswith("|")] == lines
    rows = [line.split(" | ") for line in others.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"| `{name}`" for name in options._OTHERS]
    numbers = [int(row[1]) for row in rows if row[1].isdigit()]
    assert numbers == [options.peer_timeout_s({}), options.prefetch_bytes({})]


def test_the_documentation_names_every_keyword_of_rays_that_is_accepted():
    text = OPTIONS_PAGE.read_text(encoding="utf-8")
    for keyword in (
        *(option.rays_keyword for option in OPTIONS if option.rays_keyword),
        *(setting.keyword for setting in IGNORED if setting.keyword),
    ):
        assert f"`{keyword}`" in text


def test_a_switch_of_rays_that_is_set_names_its_replacement(monkeypatch):
    for name, instead in (
        ("RAY_CGRAPH_ENABLE_PROFILING", r"cdag\.profile\(\)"),
        ("RAY_CGRAPH_ENABLE_NVTX_PROFILING", "compile with nvtx=True"),
        ("RAY_CGRAPH_VISUALIZE_SCHEDULE", r"print\(cdag\.plan\)"),
    ):
        with pytest.warns(UserWarning, match=f"{name} has no effect here: .*{instead}") as caught:
            monkeypatch.setattr(constants, name, True)
        assert len(caught) == 1
    monkeypatch.setattr(constants, "RAY_CGRAPH_ENABLE_TORCH_PROFILING", False)
