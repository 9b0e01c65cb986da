# SPDX-License-Identifier: Apache-2.0
"""Exceptions, and values, that raise when code inspects, pickles or unpickles them.

All are made from a name, so that an actor makes its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

MARK: Final = "the text of it"

# Exceptions that end programs, coroutines and generators, and an unknown one.
ENDS: Final[dict[str, type[BaseException]]] = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
}


class Unheard(BaseException):
    """A user's own BaseException."""


ENDS["Unheard"] = Unheard


def in_thread(call: Callable[[], Any]) -> Any:
    """What ``call`` returns or raises on a thread that gets no Ctrl-C."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def _raises(kind: type[BaseException]) -> Callable[..., Any]:
    def method(self: Any, *_: Any) -> Any:
        raise kind("hostile")

    return method


def _class(name: str, base: Any = Exception, /, **members: Any) -> type[Any]:
    """An importable exception class, so that it pickles by name."""
    made = type(base)(name, (base,), {"__module__": __name__, **members})
    globals()[name] = made
    return made


class _Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise RuntimeError("hostile")
        return super().__getattribute__(name)


class _NamelessToo(type):
    __name__ = property(_raises(RuntimeError))  # type: ignore[assignment]


class NamelessClass(Exception, metaclass=_Nameless):
    """Reading the name of its class raises."""


class NamelessClassToo(Exception, metaclass=_NamelessToo):
    """So does reading that of this one."""


class StrangeString(str):
    """What a ``__str__`` may return: text that does not pickle."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise SystemExit("hostile")

    def __str__(self) -> str:
        raise SystemExit("hostile")


_IN_CLASS: Final = {
    "__bool__ raises": _class("BoolRaises", __bool__=_raises(RuntimeError)),
    "__bool__ is false": _class("BoolFalse", __bool__=lambda self: False),
    "__len__ is 0": _class("LenZero", __len__=lambda self: 0),
    "__notes__ raises": _class("NotesRaise", __notes__=property(_raises(RuntimeError))),
    "__notes__ is 7": _class("NotesSeven", __notes__=7),
    "__getattribute__ raises": _class("AttributesRaise", __getattribute__=_raises(RuntimeError)),
    "__getattr__ raises": _class("AttributeRaises", __getattr__=_raises(RuntimeError)),
    "__setattr__ raises": _class("SettingRaises", __setattr__=_raises(RuntimeError)),
    "__class__ raises": _class("ClassRaises", __class__=property(_raises(RuntimeError))),
    "__cause__ raises": _class("CauseRaises", __cause__=property(_raises(RuntimeError))),
    "__cause__ is 7": _class("CauseSeven", __cause__=7),
    "__context__ raises": _class("ContextRaises", __context__=property(_raises(RuntimeError))),
    "__traceback__ raises": _class("TraceRaises", __traceback__=property(_raises(RuntimeError))),
    "__traceback__ is 7": _class("TraceSeven", __traceback__=7),
    "args raises": _class("ArgsRaise", args=property(_raises(RuntimeError))),
    "__eq__ and __hash__ raise": _class(
        "EqualRaises", __eq__=_raises(RuntimeError), __hash__=_raises(RuntimeError)
    ),
    "__str__ returns 7": _class("StrSeven", __str__=lambda self: 7),
    "__str__ returns a strange string": _class(
        "StrStrange", __str__=lambda self: StrangeString(MARK)
    ),
    "its class has no name": NamelessClass,
    "__name__ of its class raises": NamelessClassToo,
    **{
        f"__str__ raises {name}": _class(f"StrRaises{name}", __str__=_raises(kind))
        for name, kind in {"ValueError": ValueError, **ENDS}.items()
    },
    **{
        f"__str__ and __repr__ raise {name}": _class(
            f"TextRaises{name}", __str__=_raises(kind), __repr__=_raises(kind)
        )
        for name, kind in {"ValueError": ValueError, **ENDS}.items()
    },
    **{
        f"__reduce__ raises {name}": _class(f"ReduceRaises{name}", __reduce__=_raises(kind))
        for name, kind in {"ValueError": ValueError, **ENDS}.items()
    },
    **{
        f"__setstate__ raises {name}": _class(
            f"StateRaises{name}",
            __setstate__=_raises(kind),
            __getstate__=lambda self: {"a": 1},
            __reduce__=lambda self: (type(self), (MARK,), {"a": 1}),
        )
        for name, kind in {"ValueError": ValueError, **ENDS}.items()
    },
}  # fmt: skip


def _syntax() -> BaseException:
    return SyntaxError(MARK, ("file.py", 1, 1, 123))


def _with_cause(cause: BaseException) -> BaseException:
    error = ValueError(MARK)
    error.__cause__ = cause
    return error


def _cycle() -> BaseException:
    error = ValueError(MARK)
    error.__context__ = KeyError("other")
    error.__context__.__context__ = error
    return error


def _deep() -> BaseException:
    error = top = ValueError(MARK)
    for _ in range(5000):
        error.__cause__ = error = ValueError("deeper")
    return top


def _noted() -> BaseException:
    error = ValueError(MARK)
    error.__notes__ = 7
    return error


_MADE: Final[dict[str, Callable[[], BaseException]]] = {
    "a SyntaxError without text": _syntax,
    "notes that are a number": _noted,
    "its cause cannot be shown": lambda: _with_cause(_IN_CLASS["__bool__ raises"]("cause")),
    "its cause has no text": lambda: _with_cause(
        _IN_CLASS["__str__ and __repr__ raise SystemExit"]("cause")
    ),
    "a cycle": _cycle,
    "a long chain": _deep,
    "huge": lambda: ValueError(MARK + "x" * 5_000_000),
    "a lone surrogate": lambda: ValueError(MARK + "\udc80\ud800"),
    "a group with members that cannot be shown": lambda: ExceptionGroup(
        MARK, [_IN_CLASS["__bool__ raises"](1), _IN_CLASS["__str__ raises SystemExit"](2)]
    ),
}

ERRORS: Final = (*_IN_CLASS, *_MADE)
# Those whose text cannot be read.
SILENT: Final = frozenset(name for name in ERRORS if "__repr__" in name or name in ("args raises",))


def make_error(name: str) -> BaseException:
    """The exception of this name."""
    if name in _MADE:
        return _MADE[name]()
    return _IN_CLASS[name](MARK)  # type: ignore[no-any-return]


class RaisesWhenLoaded:
    """Unpickling it raises the exception of a name."""

    def __init__(self, name: str, here: int = 0) -> None:
        self.name, self.here = name, here

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        raise make_error(self.name)


class RaisesWhenDumped:
    """Pickling it raises what ends something."""

    def __init__(self, kind: str, by: str) -> None:
        self.kind, self.by = kind, by

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.by == "__reduce__":
            raise ENDS[self.kind](MARK)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> Any:
        if self.by == "__getstate__":
            raise ENDS[self.kind](MARK)
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.by == "__setstate__":
            raise ENDS[self.kind](MARK)


WAYS: Final = ("__reduce__", "__getstate__", "__setstate__")
