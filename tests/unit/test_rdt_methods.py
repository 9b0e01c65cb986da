# SPDX-License-Identifier: Apache-2.0
"""The class that Ray makes actors of: what it adds to the user's, and what it leaves as it is."""

from __future__ import annotations

import asyncio
import functools
import inspect
import traceback
from typing import Any

import pytest

import rcg
from rcg import cluster
from rcg.rdt import methods
from rcg.rdt.actors import derive
from rcg.rdt.transports import find_transport
from rcg.runtime.actor.methods import plain_of

HIDDEN = cluster.HIDDEN_KEYWORD


class Base:
    def inherited(self, x: int) -> int:
        """Its text."""
        return x


class Worker(Base):
    """Its class."""

    constant = 3

    @rcg.method(tensor_transport="GLOO")
    def make(self, n: int = 1, *rest: int, key: int = 2, **others: int) -> Any:
        return n, rest, key, others

    @rcg.method(tensor_transport="object_store", num_returns=2)
    def two(self) -> Any:
        return 1, 2

    @staticmethod
    def without_actor(x: int) -> int:
        return x

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @property
    def size(self) -> int:
        return 1

    def stream(self) -> Any:
        yield from range(3)


def test_methods_get_a_hidden_keyword_that_names_their_transport() -> None:
    cls: Any = derive(Worker)
    names = {"make": "gloo", "two": "object_store*2", "inherited": "", "stream": ""}
    for name, transport in names.items():
        hidden = inspect.signature(getattr(cls, name)).parameters[HIDDEN]
        assert hidden.default == transport
        assert hidden.kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(cls.make).parameters) == [
        *("self", "n", "rest", "key", HIDDEN, "others")
    ]


class _Handle:
    """What Ray ships with a handle."""

    def __init__(self, cls: Any) -> None:
        parameters = inspect.signature(cls.__init__).parameters
        self._ray_method_signatures = {"__init__": list(parameters.values())[1:]}


def test_the_constructor_gets_the_secret_that_is_in_the_handles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Made:
        def __init__(self, x: int, **others: int) -> None:
            self.x = x, others

    known: list[str] = []
    monkeypatch.setattr(methods, "start_actor", lambda _, secret: known.append(secret))
    classes: list[Any] = [derive(each) for each in (Made, Made, Worker)]
    secrets = [cluster.actor_class_secret(_Handle(each)) for each in classes]
    assert len(set(secrets)) == 3 and all(len(each) == 32 for each in secrets)
    assert classes[1](1, y=2).x == (1, {"y": 2})
    classes[2]()
    assert known == secrets[1:]
    assert cluster.actor_class_secret(_Handle(Made)) == cluster.actor_class_secret(object()) == ""


def test_the_rest_of_the_class_stays_as_it_is() -> None:
    cls: Any = derive(Worker)
    assert (cls.__name__, cls.__qualname__, cls.__module__) == ("Worker", "Worker", __name__)
    assert cls.__doc__ == "Its class."
    assert cls.inherited.__doc__ == "Its text."
    assert cls.constant == 3
    assert cls.without_actor(4) == 4
    assert cls.of_class() == "Worker"
    assert issubclass(cls, Worker)
    assert derive(cls) is cls
    assert "inherited" not in vars(Worker) and not hasattr(Worker.make, "__rcg_plain__")
    assert inspect.isgeneratorfunction(cls.stream)


def test_the_user_s_own_method_is_found_behind_it() -> None:
    worker = object.__new__(derive(Worker))
    assert plain_of(worker.make).__func__ is Worker.make
    assert plain_of(worker.make)(5, key=6) == (5, (), 6, {})
    assert plain_of(len) is len


def test_methods_that_call_each_other_get_values_themselves() -> None:
    class Mixed:
        async def waits(self) -> int:
            return self.plain() + 1

        def plain(self) -> int:
            return int(self.marked()[0])

        @rcg.method(tensor_transport="gloo", num_returns=2)
        def marked(self) -> Any:
            return 2, 3

    cls: Any = derive(Mixed)
    assert inspect.iscoroutinefunction(cls.waits)
    assert not inspect.iscoroutinefunction(cls.plain)
    assert asyncio.run(object.__new__(cls).waits()) == 3


def test_transports_are_known_by_name_in_any_case() -> None:
    assert find_transport("Gloo").needs_group
    assert not find_transport("OBJECT_STORE").needs_group
    for wrong in ("smoke", "", 3, None):
        with pytest.raises(ValueError, match=r"Invalid tensor transport: .* Known are "):
            find_transport(wrong)


def test_a_method_that_another_descriptor_gives_opens_its_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Scaled:
        def scaled(self, value: Any, factor: int) -> Any:
            return value, factor

        doubled = functools.partialmethod(scaled, factor=2)

    monkeypatch.setattr(
        methods, "open_arguments", lambda args, named, *_: (tuple(map(str.upper, args)), named)
    )
    made: Any = derive(Scaled)()
    assert HIDDEN in inspect.signature(type(made).doubled).parameters
    assert made.doubled("value") == ("VALUE", 2)


class Failing:
    """Fails wherever it is asked to."""

    def __init__(self, fails: bool = False) -> None:
        if fails:
            self.fail()

    def fail(self) -> None:
        raise LookupError("no value")

    def fail_within(self) -> None:
        self.fail()

    def fail_later(self) -> Any:
        yield 1
        self.fail()

    async def fail_async(self) -> None:
        self.fail()

    async def fail_async_later(self) -> Any:
        yield 1
        self.fail()

    @staticmethod
    def fail_without() -> None:
        raise LookupError("no value")


async def last_of(items: Any) -> None:
    async for _ in items:
        pass


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda cls: cls(True), ["__init__", "fail"]),
        (lambda cls: cls().fail(), ["fail"]),
        (lambda cls: cls().fail_within(), ["fail_within", "fail"]),
        (lambda cls: list(cls().fail_later()), ["fail_later", "fail"]),
        (lambda cls: asyncio.run(cls().fail_async()), ["fail_async", "fail"]),
        (lambda cls: asyncio.run(last_of(cls().fail_async_later())), ["fail_async_later", "fail"]),
        (lambda cls: cls().fail_without(), ["fail_without"]),
        (lambda cls: methods.WithValues(Failing.fail)(cls()), ["fail"]),
    ],
)
def test_a_traceback_of_ray_s_has_frames_of_the_users_and_none_of_what_calls_them(
    call: Any, names: list[str]
) -> None:
    with pytest.raises(LookupError) as raised:
        call(derive(Failing))
    text = "".join(traceback.format_exception(raised.value))
    error = cluster.task_error("fail", text, raised.value, pid=1, ip="192.0.2.1")
    file = Failing.fail.__code__.co_filename
    lines = str(error).splitlines()
    users = [each.rpartition(" in ")[2] for each in lines if file in each]
    assert users[-len(names) :] == names
    last = next(at for at, each in enumerate(lines) if file in each and each.endswith(names[0]))
    assert all(file in each for each in lines[last:] if each.startswith("  File "))
    assert "/rdt/" not in str(error)


def awaited(function: Any, *args: Any, request: object = "") -> Any:
    async def coroutine(*args: Any) -> Any:
        return function(*args)

    return asyncio.run(methods.call_async(coroutine, *args, {}, request))


WAYS = pytest.mark.parametrize("run", [methods.call, awaited])


def frames_since_the_test(found: pytest.ExceptionInfo[Any]) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(found.tb)[1:]
    return [each for each in frames if "asyncio" not in each.filename and each.name != "awaited"]


@WAYS
def test_an_error_of_rcg_around_a_call_shows_no_frame_of_rcg(run: Any, monkeypatch: Any) -> None:
    """Ray prints the traceback to the user."""
    monkeypatch.setattr(methods, "is_reachable", lambda: True)
    with pytest.raises(Exception, match="nosuch") as found:
        run(lambda _: "one", None, (), {}, request="nosuch:KEY")
    assert frames_since_the_test(found) == []


@WAYS
def test_a_traceback_begins_at_the_user_even_if_rcg_called_him(run: Any, monkeypatch: Any) -> None:
    def unpickles(*_: Any) -> Any:
        raise KeyError("of the user")

    async def later(*_: Any) -> Any:
        return unpickles()

    monkeypatch.setattr(methods, "open_arguments", unpickles)
    monkeypatch.setattr(methods, "open_arguments_later", later)
    with pytest.raises(KeyError) as found:
        run(lambda _: "one", None, (), {})
    names = [each.name for each in frames_since_the_test(found)]
    assert names == ([] if run is methods.call else ["later"]) + ["unpickles"]
