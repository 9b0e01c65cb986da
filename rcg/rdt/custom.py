# SPDX-License-Identifier: Apache-2.0
"""Users' transports: what their managers are asked, and what happens when they fail.

A manager's code may wait for ever, because the other end is gone. So each transfer runs on a thread
that can be left behind, while the process that asked for it watches the other one; whatever ends
first ends the transfer (``abort_transport``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from rcg import cluster
from rcg.error_text import describe_error, format_error, without_frames
from rcg.errors import RcgError, TensorMismatch, Transfer, UnpicklableError
from rcg.log import Log
from rcg.rdt.connection import Connection, Lost, Watch
from rcg.rdt.envelope import Envelope, put_objects, size_of, take_objects
from rcg.rdt.parts import device_of, find_lost
from rcg.rdt.pull import Connections, Wanted, at_each_holder
from rcg.rdt.transports import Transport
from rcg.threads import start_thread
from rcg.wire.messages import TensorsComing, TensorsGone, TensorsHere

_LOOK_S: Final = 0.05
_log = Log()


class Objects:
    """A value whose tensors or arrays a user's manager moves.

    Args:
        transport: The transport.
        data: The value without them.
        references: Ray's references and handles in it.
        metadata: What the manager says of them.
        sizes: The bytes of each, as far as they are known.
        devices: The type of the device of each.
        forms: The dtype and the shape of each, as far as they are known.
        actor: Ray's handle of the actor that has them; None for another process.
    """

    __slots__ = (
        *("actor", "data", "devices", "forms", "metadata", "references", "sizes", "transport"),
    )

    def __init__(
        self,
        transport: Transport,
        data: bytes,
        references: Sequence[Any],
        metadata: Any,
        sizes: tuple[int, ...],
        devices: tuple[str, ...],
        forms: tuple[str, ...],
        actor: Any,
    ) -> None:
        self.transport = transport
        self.data = data
        self.references = references
        self.metadata = metadata
        self.sizes = sizes
        self.devices = devices
        self.forms = forms
        self.actor = actor

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the value with these tensors or arrays in it."""
        return put_objects(self.data, payloads, self.references)

    def check(self, found: Sequence[Any]) -> None:
        """Check what a manager has brought.

        Raises:
            TensorMismatch: They are not as many, or of other types, dtypes or shapes, than the
                objects that were sent, or have no numbers.
        """
        manager: Any = self.transport.manager
        brought = f"{manager.__qualname__}, the transport {self.transport.name.upper()}, brought"
        if len(found) != len(self.forms):
            text = f"{brought} {len(found)} objects, where {len(self.forms)} were sent"
            raise TensorMismatch(text, expected=len(self.forms), found=len(found))
        kind = self.transport.data_type or _tensor_type()
        for at, (each, wanted) in enumerate(zip(found, self.forms, strict=True)):
            form = _form_of(each)
            if not isinstance(each, kind):
                form = f"{type(each).__name__} {form}".strip()
                wanted = f"{kind.__name__} {wanted}".strip()
            if form != wanted:
                text = f"{brought} {form} in place {at}, where {wanted} was sent"
                raise TensorMismatch(text, expected=wanted, found=form)
            if "meta" == device_of(each) != self.devices[at]:
                text = f"{brought} {form} without numbers (on meta) in place {at}"
                raise TensorMismatch(text, expected=self.devices[at], found="meta")
            lost = find_lost(each, [each])
            if lost:
                raise TensorMismatch(f"{brought} in place {at} what is no value: {lost}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Objects, (
            *(self.transport, self.data, self.references, self.metadata),
            *(self.sizes, self.devices, self.forms, self.actor),
        )


_managers: Final[dict[type, Any]] = {}
_making: Final = threading.Lock()
_reached: Final[set[tuple[type | None, str]]] = set()
_MOST_REACHED: Final = 10_000


def _manager_of(transport: Transport) -> Any:
    """Return this process's instance of the user's class."""
    cls = transport.manager
    if cls is None:
        raise TypeError(f"{transport.name} has no manager")
    with _making:
        found = _managers.get(cls)
        if found is None:
            found = _managers[cls] = cls()
    return found


def check_reaches(transport: Transport, actor: Any) -> None:
    """Check that an actor can use a user's transport.

    Raises:
        ValueError: It cannot.
    """
    asked = transport.manager, cluster.actor_id(actor)
    if asked in _reached:
        return
    if not _manager_of(transport).actor_has_tensor_transport(actor):
        raise ValueError(
            f"{actor!r} does not have tensor transport {transport.name.upper()} available: "
            f"{transport.manager.__qualname__}.actor_has_tensor_transport says so"  # type: ignore[union-attr]
        )
    if len(_reached) >= _MOST_REACHED:
        _reached.clear()
    _reached.add(asked)


# --- the process that has them


def take_apart_objects(
    value: Any, transport: Transport, key: str, where: str
) -> tuple[Objects, list[Any], Callable[[], None]] | None:
    """Take the tensors or arrays out of a value; None if it has none.

    Returns:
        The contents of its envelope, the objects, and what cleans up after them.

    Raises:
        TensorMismatch: They are on a device that the transport does not serve, or on several.
        UnpicklableError: One has not all of its memory.
    """
    kind = transport.data_type or _tensor_type()
    data, objects, references = take_objects(value, kind)
    if not objects:
        return None
    lost = find_lost(value, objects)
    if lost:
        raise UnpicklableError(f"{where} cannot be kept: {lost}")
    devices = tuple(map(device_of, objects))
    transport.check_devices(devices, where, value)
    manager = _manager_of(transport)
    metadata = manager.extract_tensor_transport_metadata(key, objects)
    sizes = tuple(map(size_of, objects))
    actor = cluster.current_actor()
    forms = tuple(map(_form_of, objects))
    contents = Objects(transport, data, references, metadata, sizes, devices, forms, actor)
    return contents, objects, lambda: manager.garbage_collect(key, metadata, objects)


def send(
    contents: Objects, key: str, objects: Sequence[Any], communicator: Any, watch: Watch
) -> str:
    """Send objects by a two-sided transport; returns why that failed, or ''.

    Args:
        contents: Of the envelope.
        key: The object.
        objects: Its tensors or arrays.
        communicator: The ``CommunicatorMetadata`` of the manager at the other end.
        watch: Watches the process at the other end.
    """
    manager = _manager_of(contents.transport)
    try:
        Running(
            lambda: manager.send_multiple_tensors(list(objects), contents.metadata, communicator)
        ).result(watch)
    except BaseException as error:  # noqa: BLE001 - the other end tells the user
        _abort(manager, key, communicator)
        return describe_error(error)
    return ""


# --- the process that wants them


def pull_by_manager(connections: Connections, wanted: Sequence[Wanted]) -> list[Any]:
    """Return the tensors or arrays of envelopes with ``Objects``, or for each its error."""
    envelopes = [each.envelope for each in wanted]
    return at_each_holder(
        envelopes, lambda some: _pull_of_one(connections, [envelopes[at] for at in some])
    )


def _pull_of_one(connections: Connections, envelopes: Sequence[Envelope]) -> list[Any]:
    """Pull objects of one process; those of one-sided transports are all started first."""
    attempts = [_Attempt(connections, envelope) for envelope in envelopes]
    for each in attempts:
        each.begin()
    found: list[Any] = []
    for envelope, each in zip(envelopes, attempts, strict=True):
        problem = ""
        try:
            found.append(each.end())
        except Exception as error:  # noqa: BLE001 - the result of this object
            problem = str(error)
            found.append(without_frames(error))  # or it would hold this very list
        finally:
            connections.note(envelope, envelope.transport, each.times, problem)
    return found


class _Attempt:
    """One transfer, at the process that wants it."""

    def __init__(self, connections: Connections, envelope: Envelope) -> None:
        contents: Any = envelope.contents
        self._connections = connections
        self._holder = envelope.holder
        self._connection = connections.to(envelope.holder)
        self._key = envelope.key
        self._contents: Objects = contents
        self._manager = _manager_of(contents.transport)
        self._communicator: Any = None
        self._request: Any = None
        self._number = -1  # of the question
        self._errors: list[Exception] = []
        self.times: list[int] = []  # when it was begun, and when the tensors began to come
        self.is_one_sided = bool(self._manager.is_one_sided())

    def begin(self) -> None:
        """Start to fetch, if the transport is one-sided."""
        self.times.append(time.monotonic_ns())
        try:
            self._communicator = self._manager.get_communicator_metadata(
                self._contents.actor,
                cluster.current_actor(),
                self._contents.transport.name.upper(),
            )
            if self.is_one_sided:
                self.times.append(time.monotonic_ns())
                fetch = getattr(self._manager, "fetch_multiple_tensors", None)
                fetch = fetch or self._manager.recv_multiple_tensors
                self._request = self._run(
                    lambda: fetch(self._key, self._contents.metadata, self._communicator)
                )
        except Exception as error:  # noqa: BLE001 - raised by `end`
            self._errors.append(error)

    def end(self) -> Any:
        """Return the tensors or arrays.

        Raises:
            ActorDiedError: The process that has the tensors is gone.
            Transfer: The transport failed.
            TensorMismatch: It brought something else.
        """
        try:
            if self._errors:
                raise self._errors.pop()
            objects = list(self._fetch() if self.is_one_sided else self._receive())
            self._contents.check(objects)
            return objects
        except RcgError:
            raise
        except Exception as error:  # noqa: BLE001 - of the user's class
            problem = Transfer(
                f"tensors of {self._holder.label} did not arrive by "
                f"{self._contents.transport.name}: {describe_error(error)}"
            )
            # Where the user's class raised it.
            problem.add_note(format_error(error, error.__traceback__))
            self._errors.append(problem)
        raise self._errors.pop()

    def _fetch(self) -> Any:
        wait = getattr(self._manager, "wait_fetch_complete", None)
        return self._request if wait is None else self._run(lambda: wait(self._request))

    def _receive(self) -> Any:
        while True:
            connection = self._connection = self._connections.to(self._holder)
            with connection.lock:
                # Closed because another transfer has failed; or the actor runs again.
                if not connection.has_ended:
                    try:
                        return self._receive_by(connection)
                    except BaseException:
                        # Before anybody else has the lock: what comes on it now is not known.
                        self._connections.drop(connection)
                        raise
            self._connections.drop(connection)

    def _receive_by(self, connection: Connection) -> Any:
        self._number = connection.ask_to_send(self._key, cluster.dumps(self._communicator))
        with connection.next() as received:
            self.times.append(time.monotonic_ns())
            self._check_answer(received.message, TensorsComing)
        receive = Running(
            lambda: self._manager.recv_multiple_tensors(
                self._key, self._contents.metadata, self._communicator
            )
        )
        try:
            return self._end_of(receive)
        except BaseException:
            _abort(self._manager, self._key, self._communicator)
            raise

    def _end_of(self, receive: Running) -> Any:
        """Return what was received, once the other end says that it has sent it all."""
        connection, is_sent = self._connection, False
        while True:
            try:
                found = receive.result(connection.watch(may_speak=is_sent))
                break
            except Lost as lost:
                if not lost.has_spoken:
                    raise connection.gone_error() from None
            with connection.next() as received:
                self._check_answer(received.message, TensorsHere)
            is_sent = True
        if not is_sent:
            with connection.next() as received:
                self._check_answer(received.message, TensorsHere)
        return found

    def _check_answer(self, message: Any, expected: type) -> None:
        label = self._holder.label
        if getattr(message, "number", None) != self._number:
            raise Transfer(f"{label} gave the answer to another question")
        if isinstance(message, TensorsGone):
            raise Transfer(f"{label} cannot send tensors: {message.text}")
        if not isinstance(message, expected):
            raise Transfer(f"{label} gave an answer that was not expected")

    def _run(self, call: Callable[[], Any]) -> Any:
        """Return what a call of a one-sided transport returns, while the other process lives."""
        running = Running(call)
        try:
            while True:
                try:
                    return running.result(self._connection.watch(may_speak=True))
                except Lost:
                    if not self._connection.is_closed:
                        raise self._connection.gone_error() from None
                self._connection = self._connections.to(self._holder)  # the old one is not of use
        except BaseException:
            _abort(self._manager, self._key, self._communicator)
            raise


# --- both


def _abort(manager: Any, key: str, communicator: Any) -> None:
    try:
        if manager.can_abort_transport():
            manager.abort_transport(key, communicator)
    except Exception:  # noqa: BLE001 - the transfer's own error is raised
        _log.exception("rcg: abort_transport of %s failed", type(manager).__qualname__)


def _form_of(thing: Any) -> str:
    """Return the dtype and the shape of a tensor or an array, "" if it does not say them."""
    try:
        return f"{str(thing.dtype).removeprefix('torch.')} {list(thing.shape)}"
    except (AttributeError, TypeError):
        return ""


def _tensor_type() -> type:
    import torch

    found: type = torch.Tensor
    return found


class Running:
    """A call that runs on a thread of its own, which is left behind if nobody waits for it.

    Raises:
        OutOfThreads: No more threads can be started.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._values: list[Any] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="rcg-transfer", daemon=True)
        start_thread(self._thread, "to move tensors by a user's transport")

    def _run(self) -> None:
        try:
            self._values.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised by the one who waits
            self._errors.append(error)

    def result(self, watch: Watch) -> Any:
        """Return what the call returns, or raise what it raises.

        Raises:
            Lost: The process at the other end is gone, or has said something; the call goes on.
        """
        while True:
            self._thread.join(_LOOK_S)
            if self._errors:
                raise self._errors.pop()  # which holds this object
            if self._values:
                return self._values[0]
            watch.look()
