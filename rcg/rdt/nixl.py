# SPDX-License-Identifier: Apache-2.0
"""NIXL: tensors are read where they lie, also on another node, by RDMA where there is any.

The process that holds tensors registers their memory, and the envelope says how it is read. The
bytes need no Python of that process; it is asked before and afterwards whether the tensors lie
there, because NIXL reads whatever lies there. NIXL's agent (https://github.com/ai-dynamo/nixl) is
made when it is first needed; a process that only passes references needs no NIXL.

Registering costs up to half a millisecond and pins memory where there is RDMA. So a storage is
registered once, whichever tensors lie in it, until it is freed. The bytes of small tensors stand in
the envelope itself. A *pool* of the user's is memory that is registered once, into which tensors
are copied.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import json
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from rcg.error_text import describe_error, without_frames
from rcg.errors import ActorDiedError, NixlOutOfMemoryError, RcgError, Transfer, Unavailable
from rcg.rdt.connection import ASK_TIMEOUT_S, Connection, Lost
from rcg.rdt.envelope import Holder, Registered
from rcg.rdt.nixl_agent import MISSING, has_rdma, is_installed, make_agent
from rcg.rdt.parts import device_number
from rcg.rdt.places import Spans, places_of
from rcg.rdt.pull import Connections, Got, Wanted, at_each_holder, for_each
from rcg.rdt.reach import place_soon_of
from rcg.rdt.runs import fill, places_for
from rcg.rdt.store import memory_of
from rcg.rdt.transports import NIXL
from rcg.threads import LockTaken, held
from rcg.wire.messages import AskHeld

# Of an object whose bytes stand in the envelope: a call with 16 KiB took 2.6 ms, and 2.7 if they
# were read; with 64 KiB there was no difference.
_SMALL_BYTES: Final = 16 << 10
_ALIGNMENT: Final = 64
_SPIN_S: Final = 100e-6  # a read of 1 KB takes 15 us, one of 1 MB 70 us
_LONGEST_SLEEP_S: Final = 1e-3
_LOOK_S: Final = 1.0  # between two looks at whether the other process lives
_END_S: Final = 2.0  # for a read that was interrupted to end
_MOST_KNOWN: Final = 10_000  # descriptions of registered memory that are remembered of a process
_MOST_OTHERS: Final = 1000  # processes that are remembered
_NOT_JUDGED_S: Final = 10.0  # for which an actor that does not answer is not asked again
_MOST_ACTORS: Final = 1000  # of which it is known that they have NIXL


class Offered(NamedTuple):
    """Tensors that others may read.

    Attributes:
        registered: How they are read, for the envelope.
        payloads: What is read: the tensors' own bytes, or a copy.
        is_copy: Whether it is a copy.
        release: Frees the copy; None if there is nothing to free.
    """

    registered: Registered
    payloads: Sequence[Any]
    is_copy: bool = False
    release: Callable[[], None] | None = None


class Nixl:
    """What this process has registered, and how it reads what others have. Any thread.

    Args:
        key: The id of the store of this process.
        label: What profiles call this process.
        connections: To the processes that hold tensors.
        is_needed: Whether an object of this process lies in a storage, given as its address.
    """

    def __init__(
        self, key: str, label: str, connections: Connections, is_needed: Callable[[int], bool]
    ) -> None:
        self._name = f"{key}-{os.urandom(4).hex()}"
        self._label = label
        self._connections = connections
        self._is_needed = is_needed
        self._agent: Any = None
        # Where storages lie that are registered, by torch's address of each, and a weak reference
        # that notes when one is freed: in the middle of anything, so the next call ends it.
        self._registered: dict[int, tuple[_Region, weakref.ref[Any]]] = {}
        self._freed: deque[int] = deque()
        self._offered: set[int] = set()  # storages that others may know
        self._version = 0  # how often such memory has ceased to be registered
        self._seconds = 0.0
        self._pool: _Pool | None = None
        self._stream: Any = None
        self._others: OrderedDict[str, _Other] = OrderedDict()  # by the names of their agents
        self._unfinished: list[_Read] = []  # reads that were interrupted
        self._lock = threading.RLock()

    # --- the process that holds tensors

    def register(self, tensors: Sequence[Any]) -> None:
        """Register the memory of tensors; what is registered already is left as it is.

        Raises:
            Unavailable: There is no NIXL here, or it refuses the memory.
        """
        with self._lock:
            self._agent_now()
            self._end_freed()
            new: dict[int, tuple[Any, _Region]] = {}
            for tensor in tensors:
                storage, region = tensor.untyped_storage(), _region_of(tensor)
                known = self._registered.get(storage._cdata)
                if known is None or known[0] != region:
                    self._end(storage._cdata)  # it was resized
                    if region.size:
                        new[storage._cdata] = storage, region
            for kind in {region.kind for _, region in new.values()}:
                self._register({k: each for k, each in new.items() if each[1].kind == kind}, kind)

    def _register(self, regions: dict[int, tuple[Any, _Region]], kind: str) -> None:
        size = sum(region.size for _, region in regions.values())
        start_ns = time.monotonic_ns()
        problem = ""
        try:
            self._agent.register_memory(_rows([region for _, region in regions.values()]), kind)
        except Exception as error:  # noqa: BLE001 - NIXL has many
            problem = f"NIXL cannot register {size} bytes of {kind}: {describe_error(error)}"
            setting = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
            if "expandable_segments:True" in setting:
                problem += f". PYTORCH_CUDA_ALLOC_CONF={setting} makes memory that cannot be"
            raise Unavailable(f"{problem}. UCX_LOG_LEVEL=debug says more", transport=NIXL) from None
        finally:
            end_ns = time.monotonic_ns()
            self._seconds += (end_ns - start_ns) / 1e9
            about = "memory", self._label, "nixl: register", size
            self._connections.got.append(Got(*about, start_ns, end_ns - start_ns, end_ns, problem))
        for key, (storage, region) in regions.items():
            noting = functools.partial(_note_freed, self._freed, key)
            self._registered[key] = region, weakref.ref(storage, noting)

    def has_registered(self, address: int, size: int) -> bool:
        """Whether some of so many bytes are registered."""
        with self._lock:
            self._end_freed()
            regions = [region for region, _ in self._registered.values()]
        return any(
            each.address < address + size and address < each.address + each.size for each in regions
        )

    def deregister(self, tensor: Any) -> None:
        """End the registration of a tensor's memory, unless objects of this process need it."""
        with self._lock:
            self._end_freed()
            if not self._is_needed(memory_of(tensor)):
                self._end(tensor.untyped_storage()._cdata)

    def _end_freed(self) -> None:
        while self._freed:
            self._end(self._freed.popleft())
        for read in list(self._unfinished):
            if not self._goes_on(read):
                self._unfinished.remove(read)

    def _end(self, key: int) -> None:
        known = self._registered.pop(key, None)
        if known is None:
            return
        region = known[0]
        if key in self._offered:
            self._offered.discard(key)
            self._version += region.kind != "DRAM" or has_rdma()
        with contextlib.suppress(Exception):  # the memory is gone, whatever NIXL says
            self._agent.deregister_memory(self._agent.get_reg_descs(_rows([region]), region.kind))

    def add_pool(self, size: int, device: Any) -> None:
        """Have a pool into which tensors are copied; see ``register_nixl_memory_pool``."""
        import torch

        with self._lock:
            if self._pool is not None:
                raise ValueError(
                    "A memory pool is already registered. Only one memory pool is supported."
                )
            with torch.inference_mode(False):
                pool = _Pool(torch.empty(size, dtype=torch.uint8, device=device))
            self.register([pool.memory])
            self._pool = pool

    def set_stream(self, stream: Any) -> None:
        """Wait only for this CUDA stream before tensors are offered; None waits for all."""
        self._stream = stream

    def offer(self, payloads: Sequence[Any]) -> Offered:
        """Let other processes read the tensors of an object.

        Args:
            payloads: Their bytes: of uint8 [n].

        Raises:
            Unavailable: There is no NIXL here, or it refuses the memory.
            NixlOutOfMemoryError: They do not fit into the pool.
            ValueError: The stream of ``set_nixl_cuda_stream`` is of another device.
        """
        sizes = [each.numel() for each in payloads]
        if not is_installed():
            raise Unavailable(MISSING, transport=NIXL)
        if sum(sizes) <= _SMALL_BYTES and all(each.is_cpu for each in payloads):
            copies = [each.clone() for each in payloads]
            inside = tuple(each.numpy().tobytes() for each in copies)
            return Offered(Registered("", b"", 0, inside, "DRAM"), copies, is_copy=True)
        pool = self._pool
        if pool is None or not self._takes(pool, payloads):
            return Offered(self.show(payloads), payloads)
        self._synchronize(payloads)
        blocks = pool.take(sizes)
        if blocks is None:
            raise NixlOutOfMemoryError(
                f"the NIXL memory pool of {pool.memory.numel()} bytes has no room for "
                f"{sum(sizes)} more, in pieces of {_ALIGNMENT}: drop references, or register a "
                "larger pool"
            )
        try:
            copies = [pool.memory[start : start + size] for start, size in blocks]
            for copy, each in zip(copies, payloads, strict=True):
                copy.copy_(each)
            _finish_streams(copies)
            return Offered(self.show(copies), copies, True, lambda: pool.give_back(blocks))
        except BaseException:
            pool.give_back(blocks)
            raise

    def _takes(self, pool: _Pool, payloads: Sequence[Any]) -> bool:
        """Whether tensors are copied into a pool: none is registered, and it is on their device."""
        device = pool.memory.device
        with self._lock:
            self._end_freed()
            return all(
                each.untyped_storage()._cdata not in self._registered
                and (device.type == "cpu" or each.device == device)
                for each in payloads
            )

    def show(self, payloads: Sequence[Any]) -> Registered:
        """Let other processes read tensors where they lie; as ``offer``, but of any size.

        Args:
            payloads: Their bytes: of uint8 [n], all on one device.
        """
        self._synchronize(payloads)
        with self._lock:
            self.register(payloads)
            kind = _region_of(payloads[0]).kind
            keys = {each.untyped_storage()._cdata for each in payloads} & self._registered.keys()
            self._offered |= keys
            rows = _rows([self._registered[key][0] for key in keys])
            descriptors = self._agent.get_reg_descs(rows, kind)
            metadata = self._agent.get_partial_agent_metadata(descriptors, True)
            places = tuple(map(tuple, places_of(payloads).tolist()))
            return Registered(self._name, metadata, self._version, places, kind)

    def _synchronize(self, payloads: Sequence[Any]) -> None:
        """Wait until the kernels that write to tensors on GPUs are done: NIXL does not."""
        devices = {each.device for each in payloads if each.is_cuda}
        if devices and self._stream is None:
            import torch

            for each in devices:
                torch.cuda.synchronize(each)
        elif devices:
            others = sorted(str(each) for each in devices if each != self._stream.device)
            if others:
                raise ValueError(
                    "Device mismatch between the CUDA stream set via set_nixl_cuda_stream, which "
                    f"is on {self._stream.device}, and tensors on {', '.join(others)}"
                )
            self._stream.synchronize()

    def facts(self) -> tuple[int, int, float]:
        """Return how many pieces of memory are registered, their bytes, and the seconds it took."""
        with self._lock:
            self._end_freed()
            regions = [region for region, _ in self._registered.values()]
        return len(regions), sum(each.size for each in regions), self._seconds

    # --- the process that wants them

    def pull(self, wanted: Sequence[Wanted]) -> list[Any]:
        """Return the tensors of envelopes, of uint8 [n], or for each its error.

        Those of one process are read together, and several processes at the same time.
        """
        envelopes = [each.envelope for each in wanted]
        return at_each_holder(
            envelopes, lambda some: self._pull_of_one([wanted[at] for at in some])
        )

    def _pull_of_one(self, wanted: Sequence[Wanted]) -> list[Any]:
        """Pull objects of one holder; those that lie and arrive alike are read together."""
        ways: dict[tuple[str, str, str], list[int]] = {}
        for at, each in enumerate(wanted):
            how = _how(each)
            ways.setdefault((how.agent, how.kind, _device_for(each)), []).append(at)
        found: dict[int, Any] = {}
        for (_, _, device), places in ways.items():
            pulled = self._pull_alike([wanted[at] for at in places], device)
            found.update(zip(places, pulled, strict=True))
        return [found[at] for at in range(len(wanted))]

    def _pull_alike(self, wanted: Sequence[Wanted], device: str) -> list[Any]:
        """Pull objects in one read; if that fails, each by itself, so that one fails alone."""
        times, failed = [time.monotonic_ns()], list[Exception]()
        try:
            found = self._read(wanted, device, times)
        except Exception as error:  # noqa: BLE001 - the result of the objects
            failed.append(without_frames(error))
        if failed and len(wanted) > 1 and not isinstance(failed[0], ActorDiedError):
            return [one for each in wanted for one in self._pull_alike([each], device)]
        problem = str(failed[0]) or "it failed" if failed else ""
        for each in wanted:
            self._connections.note(each.envelope, NIXL, times, problem)
        return list(for_each(failed.pop(), len(wanted))) if failed else found

    def _read(self, wanted: Sequence[Wanted], device: str, times: list[int]) -> list[Any]:
        """Read the tensors of objects of one agent.

        Args:
            wanted: The objects.
            device: The type of the device on which they arrive.
            times: Gets the time at which they begin to come.

        Raises:
            ActorDiedError: The process that holds them is gone.
            Transfer: They cannot be read.
            Unavailable: There is no NIXL here.
        """
        found: list[list[Any]] = []
        wholes: list[Any] = []  # the memory of all parts: what is registered
        for each in wanted:
            parts: list[Any] = []
            for whole, some in places_for(each.envelope.contents.sizes, device, each.into):
                wholes.append(whole)
                parts += some
            found.append(parts)
        targets = [part for parts in found for part in parts]
        sources = [place for each in wanted for place in _how(each).places]
        if not _how(wanted[0]).agent:
            times.append(time.monotonic_ns())
            _fill_from(targets, sources)
        else:
            pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].numel()]
            there = np.array([source for _, source in pairs], np.int64).reshape(-1, 3)
            here = places_of([target for target, _ in pairs])
            holder, ways = wanted[0].envelope.holder, [_how(each) for each in wanted]
            envelopes = [each.envelope for each in wanted]
            self._connections.check_objects(envelopes)  # who reads freed memory may end its owner
            self.read(holder, ways, wholes, Spans(there, here), times)
            self._connections.check_objects(envelopes)
        return [
            parts if each.into is None else fill(each.into, parts)
            for each, parts in zip(wanted, found, strict=True)
        ]

    def read(
        self,
        holder: Holder,
        registered: Sequence[Registered],
        targets: Sequence[Any],
        spans: Spans,
        times: list[int],
    ) -> None:
        """Read memory of another process.

        Args:
            holder: The process.
            registered: How NIXL reads it; of one agent and one kind of memory.
            targets: The tensors here into whose memory it is read, all on one device.
            spans: What is read, and where it goes.
            times: Gets the time at which it begins to come.

        Raises:
            ActorDiedError: The process is gone.
            Transfer: It cannot be read.
            Unavailable: There is no NIXL here.
        """
        if not len(spans.here):
            return
        name = registered[0].agent
        with self._lock:
            self._agent_now()
            other = self._others.setdefault(name, _Other())
            self._others.move_to_end(name)
            self._forget_oldest()
        _finish_streams(targets)
        problem = ""
        with other.lock:
            for _ in range(2):
                try:
                    self._know(other, registered)
                    self._transfer(holder, registered[0], targets, spans, times)
                    return
                except _Failed as failed:
                    problem = str(failed)
                self._forget(name, other)  # what is known of it may be out of date
                self._connections.check_lives(holder)
        raise Transfer(
            f"tensors of {holder.label} cannot be read by NIXL: {problem}. They may have been "
            "freed, or the process has restarted"
        )

    def _know(self, other: _Other, registered: Sequence[Registered]) -> None:
        """Make known to NIXL what is registered at the other process; the caller has its lock."""
        version = max(each.version for each in registered)
        if other.version < version or len(other.known) >= _MOST_KNOWN:
            # Memory that is not registered any more may lie where other memory is now.
            self._forget(registered[0].agent, other)
            other.version = version
        for each in registered:
            if each.metadata not in other.known:
                with _failing("it is not known how to reach the process"):
                    self._agent.add_remote_agent(each.metadata)
                other.known.add(each.metadata)

    def _forget(self, name: str, other: _Other) -> None:
        with self._lock:
            self._end_freed()
            if any(read.name == name for read in self._unfinished):
                return  # NIXL would say that it is over, and go on writing
            if other.known:
                other.known.clear()
                with contextlib.suppress(Exception):  # it may be gone
                    self._agent.remove_remote_agent(name)

    def _forget_oldest(self) -> None:
        for name in list(self._others)[: len(self._others) - _MOST_OTHERS]:
            other = self._others[name]
            with contextlib.suppress(LockTaken), held(other.lock, 0):  # or it is being read from
                del self._others[name]
                self._forget(name, other)

    def _transfer(
        self,
        holder: Holder,
        registered: Registered,
        targets: Sequence[Any],
        spans: Spans,
        times: list[int],
    ) -> None:
        """Read memory of another process, which NIXL knows, into tensors of this one."""
        there, here = (each.astype(np.uint64) for each in (spans.there, spans.here))
        with self._lock, _failing("the transfer cannot be started"):
            self.register(targets)
            handle = self._agent.initialize_xfer(
                "READ",
                self._agent.get_xfer_descs(here, _region_of(targets[0]).kind),
                self._agent.get_xfer_descs(there, registered.kind),
                registered.agent,
            )
            read = _Read(handle, registered.agent, targets)
            self._unfinished.append(read)
        times.append(time.monotonic_ns())
        try:
            with _failing("the transfer failed"):
                read.state = self._agent.transfer(handle)
                self._wait(read, lambda: _check_lives(self._connections, holder))
                if read.state != "DONE":
                    raise _Failed("the transfer failed")
        except BaseException:
            # It writes to memory that may be the user's: so it ends first, if it can.
            read.state = read.state or "PROC"
            with contextlib.suppress(Exception):
                self._wait(read, bool, _END_S)
            raise
        finally:
            with self._lock:
                self._end_freed()

    def _wait(self, read: _Read, look: Callable[[], object], timeout_s: float = 1e9) -> None:
        """Wait until a read is over; ``look`` is called now and then."""
        start_s = look_s = now_s = time.monotonic()
        sleep_s = 0.0
        while read.state == "PROC" and now_s - start_s < timeout_s:
            if now_s - start_s > _SPIN_S:
                sleep_s = min(2 * sleep_s + 1e-5, _LONGEST_SLEEP_S)
            time.sleep(sleep_s)
            now_s = time.monotonic()
            if now_s - look_s > _LOOK_S:
                look_s = now_s
                look()
            read.state = self._agent.check_xfer_state(read.handle)

    def _goes_on(self, read: _Read) -> bool:
        """Whether a read that was started is not over; its handle is released if it is."""
        if not read.state:
            return True  # another thread is about to start it
        with contextlib.suppress(Exception):  # the process is gone, which ends it
            if read.state == "PROC" and self._agent.check_xfer_state(read.handle) == "PROC":
                return True
        with contextlib.suppress(Exception):
            self._agent.release_xfer_handle(read.handle)
        return False

    def _agent_now(self) -> None:
        """Have NIXL's agent of this process; the caller has the lock.

        Raises:
            Unavailable: There is none.
        """
        if self._agent is None:
            self._agent = make_agent(self._name)


class _Region(NamedTuple):
    """Memory that is registered, or is to be."""

    address: int
    size: int
    device: int
    kind: str


@dataclass(eq=False, slots=True)
class _Read:
    """A read: NIXL's handle, the agent that is read from, the memory, and the state, "" at first.

    Memory that NIXL may still write to must not be freed, so these are kept until they are over.
    """

    handle: Any
    name: str
    targets: Sequence[Any]
    state: str = ""


@dataclass(slots=True)
class _Other:
    """What is known of another process: the version of its memory, and which; and a lock."""

    version: int = 0
    known: set[bytes] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Failed(Exception):
    """NIXL has failed; the text says what."""


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Raise NIXL's own errors, which have no common class, as ``_Failed``."""
    try:
        yield
    except (RcgError, _Failed):
        raise
    except Exception as error:  # noqa: BLE001 - see above
        raise _Failed(f"{what}: {describe_error(error)}") from None


def _note_freed(freed: deque[int], key: int, _: object) -> None:
    freed.append(key)


def _how(wanted: Wanted) -> Registered:
    found = wanted.envelope.registered
    if found is None:
        raise Transfer(f"what {wanted.envelope.holder.label} made was not registered with NIXL")
    return found


def _device_for(wanted: Wanted) -> str:
    """Return the type of the device on which an object arrives: that of the user's memory."""
    devices = {each.device.type for each in wanted.into or ()}
    return devices.pop() if len(devices) == 1 else wanted.envelope.contents.devices[0]


def _fill_from(targets: Sequence[Any], contents: Sequence[bytes]) -> None:
    import torch

    for target, content in zip(targets, contents, strict=True):
        if content:
            target.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def _finish_streams(tensors: Sequence[Any]) -> None:
    """Wait for what torch has queued on GPUs for tensors that NIXL is about to read or write."""
    devices = {each.device for each in tensors if each.is_cuda}
    if devices:
        import torch

        for each in devices:
            torch.cuda.current_stream(each).synchronize()


def _check_lives(connections: Connections, holder: Holder) -> None:
    """Raise if the process that holds objects is gone."""
    connection = connections.to(holder)
    try:
        connection.watch(may_speak=True).look()
    except Lost:
        if not connection.is_closed:  # by another thread
            raise connection.gone_error() from None


class _Pool:
    """Memory from which blocks are taken; the first free one that is large enough is.

    Args:
        memory: A tensor of uint8 [n].
    """

    def __init__(self, memory: Any) -> None:
        self.memory: Final = memory
        self._free = [(0, memory.numel())]  # where, and how many bytes; in order
        self._lock = threading.Lock()

    def take(self, sizes: Sequence[int]) -> list[tuple[int, int]] | None:
        """Take blocks of these bytes; returns where each begins, and its bytes, or None."""
        taken: list[tuple[int, int]] = []
        with self._lock:
            for size in sizes:
                padded = _pad(size)
                at = next((at for at, (_, free) in enumerate(self._free) if free >= padded), None)
                if at is None:
                    break
                start, free = self._free[at]
                self._free[at : at + 1] = [(start + padded, free - padded)] * (free > padded)
                taken.append((start, size))
        if len(taken) == len(sizes):
            return taken
        self.give_back(taken)
        return None

    def give_back(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Make blocks free."""
        with self._lock:
            for start, size in blocks:
                end = start + _pad(size)
                at = bisect.bisect(self._free, (start, 0))
                last = at
                if at and sum(self._free[at - 1]) == start:
                    at -= 1
                    start = self._free[at][0]
                if last < len(self._free) and self._free[last][0] == end:
                    end = sum(self._free[last])
                    last += 1
                self._free[at:last] = [(start, end - start)]


def _pad(size: int) -> int:
    return max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT


def _region_of(tensor: Any) -> _Region:
    """Return where the storage of a tensor lies."""
    storage = tensor.untyped_storage()
    kind = "VRAM" if tensor.is_cuda else "DRAM"
    return _Region(storage.data_ptr(), storage.nbytes(), device_number(tensor), kind)


def _rows(regions: Sequence[_Region]) -> list[tuple[int, int, int, str]]:
    return [(each.address, each.size, each.device, "") for each in regions]


_have_nixl: Final[dict[str, float]] = {}  # actors, by their stores, and until when that is known


def check_has_nixl(holder: Holder) -> None:
    """Check that an actor can use NIXL, where a call with its tensors is made.

    Args:
        holder: The actor. One that does not answer soon is not judged: its method will fail.

    Raises:
        Unavailable: NIXL is not installed where it runs.
    """
    now_s = time.monotonic()
    if _have_nixl.get(holder.key, 0.0) > now_s:
        return
    if len(_have_nixl) > _MOST_ACTORS:
        _have_nixl.clear()
    _have_nixl[holder.key] = now_s + _NOT_JUDGED_S
    try:
        connection = Connection(holder, "", ASK_TIMEOUT_S, place_soon_of)
        with contextlib.closing(connection):
            found = json.loads(connection.observe(lambda number: AskHeld(number=number)))
    except (OSError, RcgError, TimeoutError):
        return
    if not found["nixl"][0]:
        del _have_nixl[holder.key]
        raise Unavailable(f"{holder.label}: {MISSING}", transport=NIXL)
    _have_nixl[holder.key] = float("inf")
