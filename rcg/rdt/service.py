# SPDX-License-Identifier: Apache-2.0
"""The service of a process: it answers those who want its tensors, also while a method runs.

It listens at the endpoint of the process (``runtime.control``). Each connection gets a thread of
its own, so a large tensor holds up no other process, and what one process pulls from
another comes in the order in which it asked. So A -> B beside B -> A cannot deadlock: they are two
connections.
"""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from rcg import cluster
from rcg.comm.registry import register_communicator
from rcg.error_text import describe_error, shortened
from rcg.errors import OutOfDescriptors, OutOfThreads, RcgError, Transfer
from rcg.log import Log
from rcg.rdt import gpu_memory
from rcg.rdt.ahead import Ahead, AheadFacts
from rcg.rdt.connection import Watch
from rcg.rdt.custom import Objects, send
from rcg.rdt.envelope import Envelope, Holder, closed
from rcg.rdt.groups import MemberGroups
from rcg.rdt.lent import Place, freeze
from rcg.rdt.nixl import Nixl
from rcg.rdt.nixl_agent import is_installed, why_not_auto
from rcg.rdt.places import places_of
from rcg.rdt.pull import Got
from rcg.rdt.runs import send_in_runs
from rcg.rdt.slices import regions_from
from rcg.rdt.store import Entry, Store
from rcg.runtime.codec import make_codec
from rcg.runtime.control import endpoint
from rcg.runtime.control.members import refuse
from rcg.runtime.control.services import Handler, Peer
from rcg.runtime.control.stores import Stores
from rcg.serialization import KIND_BYTES
from rcg.streams import of_type
from rcg.threads import start_thread
from rcg.wire import liveness, sockets
from rcg.wire.liveness import Ending, How
from rcg.wire.messages import (
    READ_BY_KERNEL,
    READ_BY_MAPPING,
    READ_BY_NIXL,
    READ_ON_GPU,
    AddValue,
    AnnounceTensors,
    AskGroups,
    AskHeld,
    AskTransfers,
    Carrying,
    CheckObjects,
    CheckTensors,
    FreeTensors,
    GetValue,
    GroupChanged,
    GroupsHere,
    HasValues,
    JoinGroup,
    KeepTensors,
    LeaveGroup,
    ListenForNodes,
    ListensForNodes,
    Message,
    NoteSlices,
    ObjectsHere,
    Observed,
    PullSlices,
    PullTensors,
    Ready,
    SendTensors,
    SetValue,
    SlicesAt,
    TensorsAt,
    TensorsComing,
    TensorsFollow,
    TensorsGone,
    TensorsHere,
    TensorsOnGpu,
    TensorsRegistered,
    UseStore,
    UseTensors,
)
from rcg.wire.packets import PacketStream
from rcg.wire.payloads import send_buffers, send_payloads
from rcg.wire.sockets import Received

_log = Log()

_Pulling = PullTensors | PullSlices | SendTensors | CheckTensors | CheckObjects

_SMALL_BYTES: Final = 24 << 10
_MOST_READ: Final = 1024  # tensors of an object whose places fit into one message
_OPEN_S: Final = 5.0  # for the thread that opens the endpoint to go on
_LOOK_S: Final = 0.01  # between two checks of thousands of tensors that are sent
_MOST_TEXT: Final = 8000  # characters of a user's error


class Service:
    """Serves the store of this process."""

    def __init__(
        self,
        store: Store,
        groups: MemberGroups,
        got: deque[Got],
        secret: str,
        address: str,
    ) -> None:
        self.service_id = store.key
        self.holder: Holder | None = None  # how others know this process
        self.nixl: Nixl | None = None  # what it has registered
        self.ahead: Ahead | None = None  # what it gets before it is asked for
        self.secret = secret
        self._store = store
        self._groups = groups
        self._got = got
        self._meetings = Stores(keeps_left=False)
        self.address = address
        self._endpoint: endpoint.Endpoint | None = None  # once it is open
        self._is_open = threading.Event()
        # What others read now, by their connections and the numbers of their questions.
        self._reading: dict[Any, dict[int, tuple[Entry, Callable[[], None], str]]] = {}
        self._slices: dict[Any, dict[int, bytes]] = {}  # by their connections

    def open(self) -> None:
        """Listen.

        Raises:
            OutOfDescriptors: There is none left.
            OSError: Another process listens at the address.
            OutOfThreads: No more threads can be started.
        """
        self._endpoint = endpoint.serve(self, self.address)
        self._is_open.set()

    def close(self) -> None:
        """Listen no more; for a service that no process knows yet."""
        endpoint.abandon(self)

    def describe(self) -> bytes:
        """Return what this process holds as JSON, for reports. Any thread."""
        refused = "none" if self._endpoint is None else str(self._endpoint.refusals())
        nixl = [is_installed(), *((0, 0, 0.0) if self.nixl is None else self.nixl.facts())]
        ahead = AheadFacts() if self.ahead is None else self.ahead.facts()
        return self._store.describe(refused=refused, nixl=nixl, ahead=ahead)

    # --- on the endpoint's thread

    handlers: ClassVar[Mapping[type[Message], Handler]]

    @property
    def is_over(self) -> bool:
        """Never: it ends with the process."""
        return False

    def look(self) -> None:
        """Do nothing."""

    def on_lost(self, peer: Peer, ending: Ending) -> None:
        """Forget a rank of a group that has met the others."""
        self._meetings.forget(peer)

    def fail(self, why: str) -> None:
        """Nothing can be done about it: the processes that pull see that the connection ended."""

    def on_released(self) -> None:
        """Do nothing."""

    def _open(self, peer: Peer, message: UseTensors) -> bool:
        connection = peer.hand_over_messages()
        thread = threading.Thread(
            target=self._serve,
            args=(connection, message.key),
            name=f"rcg-tensors-{message.pid}",
            daemon=True,
        )
        actor = self.holder.label if self.holder is not None and self.holder.actor else None
        try:
            start_thread(thread, "to answer those who want its tensors", actor)
        except OutOfThreads as error:
            peer.take_back()
            refuse(peer, error, "to answer those who want its tensors")
        return False

    def _listen_for_nodes(self, peer: Peer, message: ListenForNodes) -> bool:
        address = trouble = ""
        try:
            self._is_open.wait(_OPEN_S)  # one may ask as soon as the endpoint is there
            if self._endpoint is not None:
                address = str(self._endpoint.listen_tcp(message.host))
        except (OutOfDescriptors, OutOfThreads) as error:
            refuse(peer, error, "to be reached from other nodes")
            return False
        except (OSError, ValueError, RcgError) as error:
            trouble = shortened(describe_error(error), _MOST_TEXT)
        peer.send(ListensForNodes(address=address, trouble=trouble))
        return False

    def _meet(self, peer: Peer, message: UseStore) -> bool:
        return self._meetings.open(peer, message)

    def _ask_meeting(self, peer: Peer, message: Message) -> bool:
        return self._meetings.handle(peer, message)

    # --- on the thread of a connection

    def _serve(self, connection: Any, puller: str) -> None:
        pidfd = liveness.pidfd_of(sockets.peer_of(connection)[0])
        peer, has_left = sockets.peer_name_of(connection), False
        try:
            sockets.send(connection, Ready())
            waiter = sockets.Waiter(connection, pidfd.fd)
            while waiter.wait():
                with sockets.receive(connection) as received:
                    if received.message is None:
                        has_left = not received.is_reset
                        return
                    self._answer(connection, pidfd.fd, puller, received)
        except OSError:
            pass  # it hung up
        except ValueError as error:
            _log.warning("rcg: %s sent a wrong message: %s", peer, describe_error(error))
        except Exception:  # noqa: BLE001 - the other side learns that the connection ended
            _log.exception("rcg: the tensors of %r cannot be sent", self.holder)
        finally:
            self._slices.pop(connection, None)
            for entry, _, puller in self._reading.pop(connection, {}).values():
                entry.pullers.remove(puller)
            if has_left or liveness.how_it_ended(pidfd.fd) is How.DIED:
                self._store.keeper_ended(connection, peer)
            else:  # the connection alone has ended: it says again what it keeps
                self._store.keeper_cut(connection)
            self._groups.end_pairs(connection, "the connection of the process that pulls has ended")
            connection.close()
            pidfd.close()

    def _answer(self, connection: Any, pidfd: int, puller: str, received: Received) -> None:
        match message := received.message:
            case PullTensors() | PullSlices() | SendTensors() | CheckTensors() | CheckObjects():
                try:
                    self._send(connection, pidfd, puller, message, received)
                except Transfer as error:
                    _refuse(connection, message, str(error))
            case NoteSlices():
                noted = self._slices.setdefault(connection, {})
                noted[message.slices] = noted.get(message.slices, b"") + bytes(received.body)
            case AnnounceTensors():
                with closed(True):
                    self._announce(pickle.loads(bytes(received.body)))
            case KeepTensors():
                self._store.keep(message.keys, connection)
            case FreeTensors():
                self._store.free(message.keys)
            case AskHeld():
                self._send_answer(connection, message, self.describe())
            case AskTransfers():
                self._send_answer(connection, message, _transfers(list(self._got), message))
            case JoinGroup():
                trouble = _register(bytes(received.body)) or self._groups.join(message)
                trouble = shortened(trouble, _MOST_TEXT)
                sockets.send(connection, GroupChanged(number=message.number, trouble=trouble))
            case LeaveGroup():
                self._groups.leave(message.group, token=message.token)
                sockets.send(connection, GroupChanged(number=message.number, trouble=""))
            case AskGroups():
                found = self._groups.all()
                answer = GroupsHere(
                    number=message.number,
                    names=tuple(each.name for each in found),
                    backends=tuple(each.backend for each in found),
                    keys=tuple(each.keys for each in found),
                    secrets=tuple(each.secrets for each in found),
                )
                sockets.send(connection, answer)
            case _:
                raise ValueError("it is not expected here")

    def _send(
        self, connection: Any, pidfd: int, puller: str, message: _Pulling, received: Received
    ) -> None:
        """Send what is pulled, or say where it lies; raises Transfer if that is not possible."""
        match message:
            case PullTensors():
                self._send_tensors(connection, puller, message)
            case PullSlices():
                self._send_slices(connection, puller, message)
            case SendTensors():
                self._send_objects(connection, pidfd, puller, message, bytes(received.body))
            case CheckTensors():
                self._end_reading(connection, message)
            case CheckObjects():
                for key in message.keys:
                    self._find(key)
                sockets.send(connection, TensorsHere(number=message.number))

    def _announce(self, envelope: Envelope) -> None:
        if self.ahead is not None:
            self.ahead.announce(envelope)

    def _send_tensors(self, connection: Any, puller: str, message: PullTensors) -> None:
        entry = self._find(message.key)
        self._store.note_pulled(entry)
        if _is_readable(entry) and self._let_read(connection, puller, message, entry):
            return
        entry.pullers.append(puller)
        try:
            if message.group and not _is_small(entry):
                self._send_through_group(connection, puller, message, entry)
            else:
                self._send_on(connection, message, entry)
        finally:
            entry.pullers.remove(puller)

    def _let_read(
        self,
        connection: Any,
        puller: str,
        message: PullTensors | PullSlices,
        entry: Entry,
        table: bytes = b"",
    ) -> bool:
        """Say where the tensors of an object lie, which stay there until they were read.

        Returns whether they can be read as the other side asks for.
        """
        answer = self._places(message, entry)
        if answer is None:
            return False
        is_whole = isinstance(message, PullTensors)
        check = entry.check if is_whole else self._checking_version(entry, table)
        self._reading.setdefault(connection, {})[message.number] = entry, check, puller
        entry.pullers.append(puller)
        about, arrays, fds = answer
        packed = [(KIND_BYTES, bytes(each), None, 0) for each in arrays]
        if isinstance(about, Carrying):
            send_payloads(connection, about, packed)
        else:
            sockets.send(connection, about, fds)
        return True

    def _places(
        self, message: PullTensors | PullSlices, entry: Entry
    ) -> tuple[Message, Sequence[Any], Sequence[int]] | None:
        """Return how the tensors of an object can be read; None if they cannot be as is asked.

        Returns:
            The answer, the arrays that it carries, and the descriptors that go with it.
        """
        number, payloads = message.number, entry.payloads
        is_here = message.reads in (READ_BY_KERNEL, READ_BY_MAPPING)
        if is_here and all(each.is_cpu for each in payloads):
            try:
                there = places_of(payloads)
            except ValueError as error:  # one was freed since it was found
                raise Transfer(entry.lacks() or str(error)) from None
            if isinstance(message, PullSlices):
                return SlicesAt(number=number), (there.astype("<i8"),), ()
            places: list[Place | None] = [None] * len(payloads)
            if message.reads == READ_BY_MAPPING:
                must_stay = (lambda *_: False) if self.nixl is None else self.nixl.has_registered
                places = freeze(payloads, must_stay)
            fds = list(dict.fromkeys(each.fd for each in places if each is not None))
            answer = TensorsAt(
                number=number,
                addresses=tuple(
                    address if place is None else place.start
                    for address, place in zip(there[:, 0].tolist(), places, strict=True)
                ),
                blocks=tuple(0 if each is None else 1 + fds.index(each.fd) for each in places),
            )
            return answer, (), fds
        if message.reads.startswith(READ_ON_GPU) and isinstance(message, PullTensors):
            gpu = message.reads.removeprefix(READ_ON_GPU)
            offered = gpu_memory.shared[0].offer(gpu, payloads)
            return None if offered is None else (TensorsOnGpu(number=number), (offered,), ())
        are_alike = len({each.device for each in payloads}) == 1
        if message.reads != READ_BY_NIXL or not are_alike or self.nixl is None:
            return None
        try:
            if why_not_auto():
                return None
            found = self.nixl.show(payloads)
        except Exception as error:  # noqa: BLE001 - NIXL has many
            _log.warning("rcg: tensors go over TCP, not NIXL: %s", describe_error(error))
            return None
        about = TensorsRegistered(
            number=number, agent=found.agent, version=found.version, kind=found.kind
        )
        return about, (found.metadata, np.array(found.places, "<i8")), ()

    def _send_slices(self, connection: Any, puller: str, message: PullSlices) -> None:
        """Send slices of the tensors of an object, or let them be read."""
        entry = self._find(message.key)
        self._store.note_pulled(entry)
        sizes = [each.numel() for each in entry.payloads]
        table = self._slices.get(connection, {}).get(message.slices, b"")
        if self._let_read(connection, puller, message, entry, table):
            return
        regions = regions_from(table, sizes)
        entry.pullers.append(puller)
        try:
            with _copying():
                payloads = [each.of(entry.payloads[each.tensor]) for each in regions]
            check = self._checking_version(entry, table)
            if isinstance(connection, PacketStream):
                look = self._checking_version(entry, b"")
                self._send_after(connection, message, payloads, look, check, looks_s=_LOOK_S)
            else:
                self._send_with(connection, message, payloads, check)
        finally:
            entry.pullers.remove(puller)

    def _end_reading(self, connection: Any, message: CheckTensors) -> None:
        found = self._reading.get(connection, {}).pop(message.number, None)
        if found is None:
            raise ValueError("nothing of that number is read")
        entry, check, puller = found
        entry.pullers.remove(puller)
        _end(connection, message, check)

    def _send_on(self, connection: Any, message: PullTensors, entry: Entry) -> None:
        """Send the tensors of an object on the connection itself."""
        is_far = isinstance(connection, PacketStream) and not _is_small(entry)
        if is_far and not isinstance(entry.contents, Objects):
            self._send_after(connection, message, entry.payloads, entry.check, entry.check)
            return
        if not isinstance(entry.contents, Objects):
            self._send_with(connection, message, entry.payloads, entry.check)
            return
        with _copying():
            objects = make_codec().encode(list(entry.payloads))
            send_payloads(connection, ObjectsHere(number=message.number), [objects], entry.check)

    def _send_with(
        self,
        connection: Any,
        message: PullTensors | PullSlices,
        payloads: Sequence[Any],
        check: Callable[[], None],
    ) -> None:
        """Send tensors with the answer."""
        with _copying():
            buffers = [_buffer(each) for each in payloads]
            send_buffers(connection, TensorsHere(number=message.number), buffers, check)

    def _send_after(
        self,
        connection: Any,
        message: PullTensors | PullSlices,
        payloads: Sequence[Any],
        before: Callable[[], None],
        check: Callable[[], None],
        looks_s: float = 0.0,
    ) -> None:
        """Send tensors to another node, from where they lie.

        The bytes of one that cannot be read any more are replaced, and refused at the end.

        Args:
            connection: To the other process.
            message: The question.
            payloads: The tensors.
            before: Checks, directly before memory is read, that it is there.
            check: Checks in the end that all were there, and the same, until then.
            looks_s: For how long what ``before`` has found is believed.
        """
        problems: list[str] = []

        def send(size: int, take: Callable[[], Any]) -> None:
            try:
                content = _buffer(take())
            except (MemoryError, RuntimeError, RcgError) as error:
                problems.append(describe_error(error))
                content = memoryview(bytes(size))
            connection.send_raw(content)

        looked_s = -math.inf

        def look() -> None:
            nonlocal looked_s
            now_s = time.monotonic()
            if now_s >= looked_s + looks_s:
                looked_s = now_s
                before()

        sockets.send(connection, TensorsFollow(number=message.number))
        send_in_runs(payloads, look, send)
        if problems:
            raise Transfer(problems[0])
        _end(connection, message, check)

    def _checking_version(self, entry: Entry, table: bytes) -> Callable[[], None]:
        """Return what checks that the tensors are still as they were when they were shared.

        It raises Transfer if they were freed, moved or written to since.

        Args:
            entry: The tensors.
            table: Of which slices bytes are compared as well; see ``Sample``.
        """

        def check_version() -> None:
            if self._store.find(entry.key) is not entry:
                raise Transfer(self._store.why_gone(entry.key))
            if entry.versions.is_written:
                raise Transfer(f"{entry.name} was written to")
            entry.check()
            if entry.sample is not None and entry.sample.find_changed(table) is not None:
                raise Transfer(f"{entry.name} was written to")

        return check_version

    def _send_objects(
        self, connection: Any, pidfd: int, puller: str, message: SendTensors, metadata: bytes
    ) -> None:
        """Send an object by a user's transport."""
        entry = self._find(message.key)
        if not isinstance(entry.contents, Objects):
            raise Transfer(f"it was made for {entry.transport}")
        try:
            communicator = cluster.loads(metadata)
        except Exception as error:
            text = f"what the transport says cannot be read: {describe_error(error)}"
            raise Transfer(text) from error
        sockets.send(connection, TensorsComing(number=message.number))
        watch = Watch(connection, pidfd)
        self._store.note_pulled(entry)
        entry.pullers.append(puller)
        try:
            trouble = send(entry.contents, entry.key, entry.payloads, communicator, watch)
        finally:
            entry.pullers.remove(puller)
        if trouble:
            raise Transfer(trouble)
        _end(connection, message, entry.check)

    def _send_answer(self, connection: Any, message: AskHeld | AskTransfers, answer: bytes) -> None:
        payload = KIND_BYTES, answer, None, 0
        send_payloads(connection, Observed(number=message.number), [payload])

    def _find(self, key: str) -> Entry:
        """Return an object; raises Transfer if there is none, or it has lost its memory."""
        entry = self._store.find(key)
        if entry is None:
            raise Transfer(self._store.why_gone(key))
        entry.check()
        _finish_devices(entry.payloads)
        return entry

    def _send_through_group(
        self, connection: Any, puller: str, message: PullTensors, entry: Entry
    ) -> None:
        try:
            pair = self._groups.pair_for(
                *(message.group, self.holder, puller, connection, message.number),
                is_holder=True,
                is_across_nodes=isinstance(connection, PacketStream),
            )
        except RcgError as error:
            _refuse(connection, message, str(error), is_system_error=True)
            return
        sockets.send(connection, TensorsComing(number=message.number))
        try:
            with self._store.watching(entry.check, pair.abort):
                pair.send(entry.payloads, entry.check)
        except (RcgError, RuntimeError, ValueError, OSError) as error:
            # The process that pulls has an error of its own. This is for its text.
            why = entry.lacks() or f"sending failed: {describe_error(error)}"
            _refuse(connection, message, why)
            raise ConnectionAbortedError("its pair is of no use any more") from error
        _end(connection, message, entry.check)


Service.handlers = {
    UseTensors: Service._open,
    ListenForNodes: Service._listen_for_nodes,
    UseStore: Service._meet,
    SetValue: Service._ask_meeting,
    GetValue: Service._ask_meeting,
    HasValues: Service._ask_meeting,
    AddValue: Service._ask_meeting,
}


def _transfers(got: list[Got], message: AskTransfers) -> bytes:
    """Return what this process got in a time, or all of it for another clock, as JSON."""
    from rcg.trace.clocks import clock_identity, now_ns  # its room is large

    if message.clock == clock_identity():
        got = [each for each in got if message.start_ns <= each.start_ns < message.end_ns]
        return json.dumps([None, got]).encode()
    return json.dumps([now_ns(), got if message.start_ns < message.end_ns else []]).encode()


def _register(body: bytes) -> str:
    """Register the user's communicator of a group; returns why that is not possible, or ""."""
    try:
        if body:
            register_communicator(*cluster.loads(body))
    except Exception as error:  # noqa: BLE001 - the user's class, which this process may not have
        return f"its communicator cannot be had here: {describe_error(error)}"
    return ""


def _is_readable(entry: Entry) -> bool:
    """Whether the tensors lie where another process could read them, and are not too many."""
    return not isinstance(entry.contents, Objects) and len(entry.payloads) <= _MOST_READ


def _finish_devices(payloads: Sequence[Any]) -> None:
    """Wait until devices have done what methods have queued, on whatever streams."""
    for device in {each.device for each in payloads if not getattr(each, "is_cpu", True)}:
        finish = getattr(of_type(device.type), "synchronize", None)
        if finish is not None:
            finish(device)


def _is_small(entry: Entry) -> bool:
    """Whether the tensors come sooner in a message than through a group."""
    return entry.size_bytes <= _SMALL_BYTES and all(each.is_cpu for each in entry.payloads)


@contextlib.contextmanager
def _copying() -> Iterator[None]:
    """Raise Transfer if tensors cannot be sent."""
    try:
        yield
    except Transfer:
        raise
    except (OSError, MemoryError, RuntimeError, RcgError) as error:
        raise Transfer(f"they cannot be copied: {describe_error(error)}") from error


def _end(connection: Any, message: _Pulling, check: Callable[[], None]) -> None:
    """Say that all tensors were sent; raises Transfer if they were not there until then."""
    check()
    sockets.send(connection, TensorsHere(number=message.number))


def _refuse(
    connection: Any, message: _Pulling, text: str, *, is_system_error: bool = False
) -> None:
    answer = TensorsGone(
        number=message.number, text=shortened(text, _MOST_TEXT), is_system_error=is_system_error
    )
    sockets.send(connection, answer)


def _buffer(payload: Any) -> memoryview:
    """Return the bytes of a tensor of uint8, from whatever device.

    The owner may go on resizing the storage of its tensor, which ``Tensor.numpy`` would forbid.
    """
    flat = payload.reshape(-1)  # a copy, of a slice that is not one run
    return np.from_dlpack(flat if flat.is_cpu else flat.cpu()).data
