# SPDX-License-Identifier: Apache-2.0
"""Exceptions as text, whatever they do: see ``rcg.error_text``."""

from __future__ import annotations

import inspect
import json
import logging
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rcg.callers import end_at_caller
from rcg.channels.shm import Failure
from rcg.error_text import describe_error, format_error, shielded, shielding, shortened, trace_of
from rcg.errors import ExecutionError, InternalError, RcgError, UnpicklableError
from rcg.log import Log
from rcg.runtime.failure import (
    Origin,
    capture,
    capture_own,
    error_of_unpickling,
    smaller_failures,
    summary_of,
    to_exception,
)
from tests.harness.hostile import ENDS, ERRORS, MARK, SILENT, Unheard, in_thread, make_error
from tests.harness.shell import interactive_shell

ORIGIN = Origin("Stage", "a1", "Stage()", 1, "127.0.0.1", "a2")
SMALLEST_FRAME = 1024 - 64  # of the smallest slot


def captured(name: str) -> Failure:
    """The failure of a method that raised the exception of this name."""
    try:
        raise make_error(name)
    except BaseException as error:  # noqa: BLE001 - it is what the test is about
        return capture(error, ORIGIN, "method", 3)


@pytest.mark.parametrize("name", ERRORS)
def test_every_exception_has_a_text(name: str) -> None:
    def texts() -> tuple[str, str]:
        error = make_error(name)
        return describe_error(error), format_error(error, trace_of(error))

    described, formatted = in_thread(texts)
    for text in (described, formatted):
        assert type(text) is str
        assert MARK in text or name in SILENT
    assert pickle.loads(pickle.dumps(formatted)) == formatted


def test_one_bad_member_of_a_chain_does_not_hide_the_others() -> None:
    try:
        try:
            raise make_error("__bool__ raises")
        except BaseException as error:
            raise make_error("__notes__ raises") from error
    except BaseException as error:  # noqa: BLE001 - it is what the test is about
        text = format_error(error, trace_of(error))
    assert text.count("Traceback (most recent call last)") == 2
    assert text.index("BoolRaises") < text.index("direct cause") < text.index("NotesRaise")
    assert text.count(__file__) == 2


@pytest.mark.parametrize("name", ERRORS)
def test_every_exception_becomes_a_failure_and_one_of_rays_again(name: str) -> None:
    import ray

    def there_and_back() -> tuple[str, BaseException, str]:
        failure = captured(name)
        error = to_exception(failure)
        return summary_of(failure), error, "".join(error._render_traceback_())

    described, error, rendered = in_thread(there_and_back)
    assert isinstance(error, ray.exceptions.RayTaskError)
    assert isinstance(error, Exception)
    for text in (str(error), rendered):
        assert "in captured" in text  # where it was raised
    for text in (described, str(error), rendered):
        assert MARK in text or name in SILENT


@pytest.mark.parametrize("name", ERRORS)
def test_on_the_main_thread_too_where_actors_may_have_their_loop(name: str) -> None:
    assert type(captured(name)) is Failure


def test_a_false_exception_is_raised_in_its_own_type() -> None:
    with pytest.raises(type(make_error("__bool__ is false"))):
        raise to_exception(captured("__bool__ is false"))


@pytest.mark.parametrize("length", [10, 5_000, 200_000])
def test_a_failure_gets_smaller_until_it_fits_anywhere(length: int) -> None:
    text = "begin " + "\udc80" * length + " end"
    for failure in (
        capture(ValueError(text), ORIGIN, "method", 3),
        capture_own(UnpicklableError(text, where=text, actor="a", execution=3)),
    ):
        sizes = [len(smaller.data) for smaller in smaller_failures(failure)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] < SMALLEST_FRAME
        first = next(smaller_failures(failure))
        assert len(first.data) < 100_000
        error = to_exception(first)
        assert "begin" in str(error) and "end" in str(error)
        last = list(smaller_failures(failure))[-1]
        assert isinstance(to_exception(last), ExecutionError)


def there_and_back(error: Exception) -> Any:
    """What a method raises, as the driver raises it."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - as in the actor
        return to_exception(capture(caught, ORIGIN, "method", 3))


def test_a_failure_names_the_execution_and_leaves_the_users_facts() -> None:
    class WithExecution(ValueError):
        execution = "of the user's own"

    plain = there_and_back(ValueError("x"))
    assert plain.execution == 3
    line = inspect.getsourcelines(there_and_back)[1] + 3
    assert plain.__notes__ == [
        f"in `Stage.method` of a2, execution 3, test_error_text.py:{line}: raise error"
    ]
    assert there_and_back(WithExecution("x")).execution == "of the user's own"


def test_a_failure_that_does_not_pickle_arrives_as_its_text() -> None:
    error: Any = ValueError("the text")
    error.lock = threading.Lock()
    found = there_and_back(error)
    assert not isinstance(found, ValueError)
    assert str(found.cause) == "ValueError: the text"


# --- exceptions of unpickling a result


def of_unpickling(first: BaseException, again: Callable[[], object]) -> Exception:
    try:
        raise first
    except BaseException as error:  # noqa: BLE001 - as in the output buffer
        return error_of_unpickling(error, again)


def never() -> None:
    raise AssertionError("it is not asked again")


def raising(error: BaseException) -> Callable[[], object]:
    def raise_it() -> object:
        raise error

    return raise_it


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit])
def test_what_would_end_the_program_is_the_result_if_unpickling_raises_it_again(
    kind: type[BaseException],
) -> None:
    error = kind("bad")
    found = of_unpickling(error, raising(kind("bad")))
    assert type(found) is ExecutionError and "bad" in str(found)
    assert found.__cause__ is error


def test_what_a_signal_handler_raised_while_unpickling_goes_on() -> None:
    with pytest.raises(SystemExit):
        of_unpickling(SystemExit(), lambda: "a value")
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C comes during the second look
        of_unpickling(SystemExit(), raising(KeyboardInterrupt()))


def test_ctrl_c_is_ctrl_c_on_the_main_thread_alone() -> None:
    with pytest.raises(KeyboardInterrupt):
        of_unpickling(KeyboardInterrupt(), never)
    again = raising(KeyboardInterrupt("bad"))
    found = in_thread(lambda: of_unpickling(KeyboardInterrupt("bad"), again))
    assert type(found) is ExecutionError


# --- pieces


class NoText(ValueError):
    """``traceback`` can do nothing with it, so the chain is formatted by hand."""

    def __str__(self) -> str:
        raise RuntimeError


def test_each_member_of_a_chain_is_shown_once_also_in_a_cycle() -> None:
    first, second = NoText("one"), ValueError("two")
    first.__cause__, second.__cause__ = second, first
    assert format_error(first, None).count("Traceback") == 2


def test_a_context_that_was_suppressed_is_not_shown() -> None:
    error = NoText("one")
    error.__context__ = ValueError("two")
    assert "two" in format_error(error, None)
    error.__suppress_context__ = True
    assert "two" not in format_error(error, None)


@pytest.mark.parametrize("most", [0, 1, 7, 100])
@pytest.mark.parametrize("length", [0, 1, 7, 100, 1000])
def test_a_text_is_shortened_in_its_middle(length: int, most: int) -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(length))
    found = shortened(text, most)
    assert found == text if length <= most else len(found) <= most + 40
    if most >= 2:
        assert found[: most // 2] == text[: most // 2]
        assert not text or found[-1] == text[-1]


@pytest.mark.parametrize("kind", ENDS.values(), ids=ENDS)
def test_what_is_shielded_ends_only_the_block(kind: type[BaseException]) -> None:
    def run() -> str:
        with shielding():
            raise kind
        return "went on"

    assert in_thread(run) == "went on"
    if kind is not KeyboardInterrupt:
        assert run() == "went on"


def test_ctrl_c_on_the_main_thread_is_not_shielded() -> None:
    with pytest.raises(KeyboardInterrupt):
        shielded(raising(KeyboardInterrupt()), otherwise=None)
    with pytest.raises(KeyboardInterrupt), shielding():
        raise KeyboardInterrupt


class Raising(logging.Handler):
    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.kind = kind
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)
        raise self.kind("the handler raises")


@pytest.fixture(params=[RuntimeError, SystemExit, Unheard])
def handler(request: pytest.FixtureRequest) -> Iterator[Raising]:
    made = Raising(request.param)
    logging.getLogger("rcg").addHandler(made)
    yield made
    logging.getLogger("rcg").removeHandler(made)


def test_a_log_handler_that_raises_ends_nothing(handler: Raising) -> None:
    log = Log()
    try:
        raise RcgError("something")
    except RcgError:
        log.exception("it happened in %s", "here")
    log.warning("a warning")
    first, second = handler.seen
    assert (first.getMessage(), first.levelname) == ("it happened in here", "ERROR")
    assert first.exc_info is not None and first.exc_info[0] is RcgError
    assert second.exc_info is None or second.exc_info is False
    assert (first.funcName, first.filename) == (
        "test_a_log_handler_that_raises_ends_nothing",
        "test_error_text.py",
    )


def test_a_failure_is_placed_at_the_users_line_and_not_in_a_library() -> None:
    try:
        traceback.extract_tb("wrong")  # type: ignore[arg-type]
    except AttributeError as error:
        found = to_exception(capture(error, ORIGIN, "method", 3))
    assert found.__notes__[0].endswith(': traceback.extract_tb("wrong")  # type: ignore[arg-type]')


def test_a_failure_in_a_cell_has_its_number_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    with interactive_shell() as shell:
        shell.execution_count = 7
        shell.run_cell("def work(x):\n    return 1 / x", store_history=True)
        try:
            shell.user_ns["work"](0)
        except ZeroDivisionError as error:
            with monkeypatch.context() as in_actor:  # it does not know the driver's cells
                in_actor.setattr("rcg.runtime.failure.source_of", lambda *_: "")
                failure = capture(error, ORIGIN, "work", 3)
        found = to_exception(failure)
        shown = "".join(found._render_traceback_())
    where = "in `Stage.work` of a2, execution 3, In [7] line 2: return 1 / x"
    assert found.__notes__ == [where]
    assert shown.startswith(where)
    assert "  In [7] line 2, in work\n    return 1 / x\nZeroDivisionError" in shown
    assert "  In [7] line 2, in work\n    return 1 / x\nZeroDivisionError" in str(found)


# --- whose frames a traceback shows


def raise_from_ours(
    error: BaseException | None, *, inside: Callable[[], object] | None = None
) -> None:
    """What a function of rcg does: here it is called from a module that says so."""
    names = {"__name__": "rcg.made_up", "error": error, "inside": inside, "end": end_at_caller}
    source = (
        "def deep():\n"
        "    if inside: inside()\n"
        "    if error is not None: raise error\n"
        "    {}['a bug']\n"
        "def call():\n"
        "    try:\n"
        "        deep()\n"
        "    except BaseException as caught:\n"
        "        end(caught)\n"
        "        raise\n"
    )
    exec(source, names)
    names["call"]()  # type: ignore[operator]


def frames_of(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - it is what the test is about
        return [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RcgError("x"), []),
        (KeyboardInterrupt(), []),
        (to_exception(captured(ERRORS[0])), []),
        (TypeError("of an argument"), []),
        (InternalError("x"), ["call", "deep"]),
        (None, ["call", "deep"]),
    ],
)
def test_what_is_meant_for_users_ends_at_their_line(
    error: BaseException | None, shown: list[str]
) -> None:
    found = frames_of(lambda: raise_from_ours(error))
    assert found == ["<lambda>", "raise_from_ours", *shown]


def test_a_bug_that_a_library_raises_keeps_our_frames() -> None:
    name = {"__name__": "rcg.made_up", "loads": json.loads}
    exec("def inside(): loads('{')", name)
    inside = name["inside"]
    found = frames_of(lambda: raise_from_ours(KeyError(), inside=inside))  # type: ignore[arg-type]
    assert found[2:5] == ["call", "deep", "inside"] and found[-1] == "raw_decode"


def test_the_users_own_code_inside_stays() -> None:
    def users() -> None:
        raise KeyError("of the user's")

    found = frames_of(lambda: raise_from_ours(RcgError("x"), inside=users))
    assert found == ["<lambda>", "raise_from_ours", "users"]
