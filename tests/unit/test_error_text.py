# SPDX-License-Identifier: Apache-2.0
"""Exceptions as text, whatever they do: see ``rcg.error_text``."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rcg.channels.shm import Failure
from rcg.error_text import describe_error, format_error, shielding, shortened, trace_of
from rcg.errors import ExecutionError, RcgError, UnpicklableError
from rcg.log import Log
from rcg.runtime.failure import (
    Origin,
    capture,
    capture_own,
    smaller_failures,
    summary_of,
    to_exception,
)
from tests.hostile import ENDS, ERRORS, MARK, SILENT, Unheard, make_error

ORIGIN = Origin("Stage", "a1", "Stage()", 1, "127.0.0.1")
SMALLEST_FRAME = 1024 - 64  # of the smallest slot


def in_thread(call: Callable[[], Any]) -> Any:
    """What ``call`` returns on a thread that nobody presses Ctrl-C on."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    assert found, "it raised"
    return found[0]


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


def test_ordinary_exceptions_are_formatted_as_python_does() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        text = format_error(error, trace_of(error))
    assert "KeyError: 'first'" in text and "direct cause" in text
    assert text.endswith("ValueError: second\n")


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


def test_a_failure_that_is_shorter_is_still_of_its_type() -> None:
    failure = capture_own(UnpicklableError("x" * 100_000, where="value[1]", execution=3))
    error = to_exception(next(smaller_failures(failure)))
    assert isinstance(error, UnpicklableError)
    assert (error.where, error.execution) == ("value[1]", 3)  # type: ignore[attr-defined]


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
