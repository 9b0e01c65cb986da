# SPDX-License-Identifier: Apache-2.0
"""Actors as plain processes; see ``ray``. ``ray.process`` is what runs in them."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from concurrent.futures import Future
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from ray import exceptions

ACTOR_ID = "RCG_PLAIN_ACTOR_ID"
alive: list[ActorHandle] = []


class ObjectRef:
    """The result of a call."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()


class ObjectRefGenerator:
    """Only its type is used."""


class ActorClass:
    """What ``remote`` makes of a class."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self._cls, self._options = cls, options

    def options(self, **options: Any) -> ActorClass:
        return ActorClass(self._cls, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        return ActorHandle(self._cls, args, kwargs, self._options.get("env", {}))


class ActorMethod:
    """A method of a handle."""

    _num_returns = 1

    def __init__(self, handle: ActorHandle, name: str) -> None:
        self._handle, self._name = handle, name

    def options(self, **_: Any) -> ActorMethod:
        return self

    def remote(self, *args: Any, **kwargs: Any) -> ObjectRef:
        return self._handle._submit(self._name, args, kwargs)


class _Id(str):
    def hex(self) -> str:
        return str(self)


class ActorHandle:
    """A handle; the process begins with it. ``env`` among the options are variables for it."""

    def __init__(self, cls: type, args: Any, kwargs: Any, env: dict[str, str]) -> None:
        self._actor_id = _Id(uuid.uuid4().hex)
        # What rcg derives is not importable, and there are no tensors by reference here.
        cls = vars(cls).get("__rcg_derived_from__", cls)
        self._name = cls.__name__
        functions = inspect.getmembers(cls, inspect.isfunction)
        self._methods = [name for name, _ in functions]
        self._ray_method_signatures = {
            name: list(inspect.signature(function).parameters.values())[1:]
            for name, function in functions
        }
        ours, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ray.process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path])),
                ACTOR_ID: self._actor_id,
                **env,
            },
        )
        theirs.close()
        self._pipe: Connection = ours
        self._calls: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        alive.append(self)
        threading.Thread(target=self._listen, daemon=True).start()
        self._submit("__init__", (cls, *args), kwargs)

    def __getattr__(self, name: str) -> Any:
        known = ("__ray_call__", "__ray_ready__")
        if name in known or name in self.__dict__.get("_methods", ()):
            return ActorMethod(self, name)
        raise AttributeError(name)

    def __dir__(self) -> list[str]:
        return self._methods

    def __repr__(self) -> str:
        return f"Actor({self._name}, {self._actor_id})"

    def _submit(self, name: str, args: Any, kwargs: Any) -> ObjectRef:
        ref = ObjectRef()
        number = next(self._numbers)
        self._calls[number] = ref.future
        with self._sending:
            try:
                self._pipe.send_bytes(pickle.dumps((number, name, args, kwargs)))
            except OSError:
                self._fail()
        return ref

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, is_error, value = pickle.loads(self._pipe.recv_bytes())
                future = self._calls.pop(number)
                if is_error:
                    future.set_exception(exceptions.RayTaskError("", value[0], value[1]))
                else:
                    future.set_result(value)
        self._fail()

    def _fail(self) -> None:
        for number in list(self._calls):
            future = self._calls.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(exceptions.ActorDiedError(f"{self!r} has ended"))

    def _end(self) -> None:
        if self in alive:
            alive.remove(self)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
