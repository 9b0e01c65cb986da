# SPDX-License-Identifier: Apache-2.0
"""NIXL: tensors are read where they lie, also on another node, by RDMA where there is any.

The process that holds tensors registers their memory, and the envelope says how it is read. From
then on reading needs no Python of that process. NIXL's agent (https://github.com/ai-dynamo/nixl) is
made when it is first needed; a process that only passes references needs no NIXL.

Registering costs up to half a millisecond and pins memory where there is RDMA. So a storage is
registered once, whichever tensors lie in it, until it is freed. Small tensors are copied into an
*arena* that is registered already; a *pool* of the user's takes tensors of any size.

The package has its agent poll for progress, which takes a whole core. Here its thread sleeps until
something comes (``_QUIET_US``): with UCX over TCP on two busy cores a read of 1 KB took 0.2 ms, and
94 ms when both ends polled.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import importlib.util
import json
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rcg.error_text import describe_error, without_frames
from rcg.errors import NixlOutOfMemoryError, RcgError, Transfer, Unavailable
from rcg.rdt.connection import Connection, Lost
from rcg.rdt.envelope import Holder, Registered
from rcg.rdt.pull import Connections, Got, Wanted, at_each_holder, for_each
from rcg.rdt.runs import fill, places_for
from rcg.rdt.store import memory_of
from rcg.rdt.transports import NIXL
from rcg.wire.messages import AskHeld

_PACKAGES: Final = ("nixl", "nixl_cu13", "nixl_cu12")
_MISSING: Final = "the tensor transport NIXL needs a package: pip install nixl"
_QUIET_US: Final = 100_000  # how long NIXL's thread sleeps if nothing comes
_SMALL_BYTES: Final = 64 << 10  # objects that are copied into the arena
_ARENA_BYTES: Final = 16 << 20
_ALIGNMENT: Final = 64
_SPIN_S: Final = 100e-6  # a read of 1 KB takes 15 us, one of 1 MB 70 us
_LONGEST_SLEEP_S: Final = 1e-3
_LOOK_S: Final = 1.0  # between two looks at whether the other process lives
_MOST_KNOWN: Final = 10_000  # descriptions of registered memory that are remembered of a process
_MOST_OTHERS: Final = 1000  # processes that are remembered


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
        # Where storages lie that are registered, by torch's address of each.
        self._registered: dict[int, _Region] = {}
        self._freed: deque[int] = deque()  # those of them that are not there any more
        self._version = 0  # how often memory has ceased to be registered
        self._seconds = 0.0
        self._arena: _Pool | None = None
        self._pool: _Pool | None = None
        self._stream: Any = None
        self._others: dict[str, _Other] = {}  # by the names of their agents
        # Reads that were interrupted, and the memory that they may still write to.
        self._unfinished: list[tuple[Any, list[Any]]] = []
        self._lock = threading.RLock()

    # --- the process that holds tensors

    def register(self, tensors: Sequence[Any]) -> None:
        """Register the memory of tensors; what is registered already is left as it is.

        Raises:
            Unavailable: There is no NIXL here, or it refuses the memory.
        """
        with self._lock:
            agent = self._agent_now()
            self._end_freed()
            regions = {}
            for tensor in tensors:
                storage = tensor.untyped_storage()
                region = _Region(
                    storage.data_ptr(), storage.nbytes(), _device(tensor), _kind(tensor)
                )
                known = self._registered.get(storage._cdata)
                if known != region and region.size:
                    if known is not None:  # it was resized
                        self._end(storage._cdata)
                    regions[storage._cdata] = storage, region
            for kind in {region.kind for _, region in regions.values()}:
                self._register(agent, kind, regions)

    def _register(self, agent: Any, kind: str, regions: dict[int, tuple[Any, _Region]]) -> None:
        chosen = {key: each for key, each in regions.items() if each[1].kind == kind}
        size = sum(region.size for _, region in chosen.values())
        start_ns = time.monotonic_ns()
        problem = ""
        try:
            agent.register_memory(_rows([region for _, region in chosen.values()]), kind)
        except Exception as error:  # noqa: BLE001 - NIXL has many
            problem = f"NIXL cannot register {size} bytes of {kind}: {describe_error(error)}"
            hint = ""
            if "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
                hint = (
                    ". Memory of PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True cannot be "
                    "registered"
                )
            raise Unavailable(f"{problem}{hint}. UCX_LOG_LEVEL=debug says more") from None
        finally:
            end_ns = time.monotonic_ns()
            self._seconds += (end_ns - start_ns) / 1e9
            about = "memory", self._label, "nixl: register", size
            self._connections.got.append(Got(*about, start_ns, end_ns - start_ns, end_ns, problem))
        for key, (storage, region) in chosen.items():
            self._registered[key] = region
            # It may be freed in the middle of anything: the next call ends the registration.
            weakref.finalize(storage, self._freed.append, key).atexit = False

    def deregister(self, tensor: Any) -> None:
        """End the registration of a tensor's memory, unless objects of this process need it."""
        with self._lock:
            self._end_freed()
            key = tensor.untyped_storage()._cdata
            if key in self._registered and not self._is_needed(memory_of(tensor)):
                self._end(key)

    def _end_freed(self) -> None:
        while self._freed:
            self._end(self._freed.popleft())
        self._unfinished = [each for each in self._unfinished if self._goes_on(each[0])]

    def _end(self, key: int) -> None:
        region = self._registered.pop(key, None)
        if region is not None:
            self._version += region.kind != "DRAM" or _has_rdma()
            descriptors = self._agent.get_reg_descs(_rows([region]), region.kind)
            with contextlib.suppress(Exception):  # the memory is gone, whatever NIXL says
                self._agent.deregister_memory(descriptors)

    def add_pool(self, size: int, device: Any) -> None:
        """Have a pool into which tensors are copied; see ``register_nixl_memory_pool``."""
        import torch

        with self._lock:
            if self._pool is not None:
                raise ValueError(
                    "A memory pool is already registered. Only one memory pool is supported."
                )
            pool = _Pool(torch.empty(size, dtype=torch.uint8, device=device))
            self.register([pool.memory])
            self._pool = pool

    def set_stream(self, stream: Any) -> None:
        """Wait only for this CUDA stream before tensors are offered; None waits for all."""
        self._stream = stream

    def offer(self, payloads: Sequence[Any]) -> tuple[Registered, Callable[[], None] | None]:
        """Let other processes read the tensors of an object.

        Args:
            payloads: Their bytes: of uint8 [n].

        Returns:
            How they are read, for its envelope; and what frees the copy, if they were copied.

        Raises:
            Unavailable: There is no NIXL here, or it refuses the memory.
            NixlOutOfMemoryError: They do not fit into the pool.
            ValueError: The stream of ``set_nixl_cuda_stream`` is of another device.
        """
        self._synchronize(payloads)
        with self._lock:
            agent = self._agent_now()
            pool, blocks = self._copy(payloads)
            offered = payloads if pool is None else [pool.at(*block) for block in blocks]
            self.register(offered)
            regions = {
                key: self._registered[key]
                for each in offered
                if (key := each.untyped_storage()._cdata) in self._registered
            }
            kind = _kind(offered[0])
            descriptors = agent.get_reg_descs(_rows([*regions.values()]), kind)
            metadata = agent.get_partial_agent_metadata(descriptors, True)
            places = tuple((each.data_ptr(), each.numel(), _device(each)) for each in offered)
            release = None if pool is None else lambda: pool.give_back(blocks)
            return Registered(self._name, metadata, self._version, places, kind), release

    def _copy(self, payloads: Sequence[Any]) -> tuple[_Pool | None, list[tuple[int, int]]]:
        """Copy tensors into the pool or the arena; returns which, or None, and where."""
        sizes = [each.numel() for each in payloads]
        pool, is_users = self._pool, True
        is_known = any(each.untyped_storage()._cdata in self._registered for each in payloads)
        device = None if pool is None else pool.memory.device
        if is_known or (device is not None and not _fits(device, payloads)):
            return None, []
        if pool is None:
            is_users = False
            if sum(sizes) > _SMALL_BYTES or not all(each.is_cpu for each in payloads):
                return None, []
            pool = self._arena_now()
        blocks = pool.take(sizes)
        if blocks is None:
            if is_users:
                raise NixlOutOfMemoryError(
                    f"the NIXL memory pool of {pool.memory.numel()} bytes has no room for "
                    f"{sum(sizes)} more: drop references, or register a larger pool"
                )
            return None, []
        for block, each in zip(blocks, payloads, strict=True):
            pool.at(*block).copy_(each)
        return pool, blocks

    def _arena_now(self) -> _Pool:
        if self._arena is None:
            import torch

            self._arena = _Pool(torch.empty(_ARENA_BYTES, dtype=torch.uint8))
        return self._arena

    def _synchronize(self, payloads: Sequence[Any]) -> None:
        """Wait until the kernels that write to tensors on GPUs are done: NIXL does not."""
        devices = {each.device for each in payloads if each.is_cuda}
        if not devices:
            return
        import torch

        if self._stream is None:
            for each in devices:
                torch.cuda.synchronize(each)
            return
        others = sorted(str(each) for each in devices if each != self._stream.device)
        if others:
            raise ValueError(
                "Device mismatch between the CUDA stream set via set_nixl_cuda_stream, which is on "
                f"{self._stream.device}, and tensors on {', '.join(others)}"
            )
        self._stream.synchronize()

    def facts(self) -> tuple[int, int, float]:
        """Return how many pieces of memory are registered, their bytes, and the seconds it took."""
        regions = list(self._registered.values())
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
        times = [time.monotonic_ns()]
        problem = ""
        found: list[Any] = []
        try:
            found = self._read(wanted, times)
        except Exception as error:  # noqa: BLE001 - the result of the objects
            if len(wanted) > 1:  # one of them failed, or they lie on several kinds of devices
                return [each for one in wanted for each in self._pull_of_one([one])]
            problem = str(error)
            found = for_each(without_frames(error), 1)
        for each in wanted:
            self._connections.note(each.envelope, NIXL, times, problem)
        return found

    def _read(self, wanted: Sequence[Wanted], times: list[int]) -> list[Any]:
        """Read the tensors of objects of one process.

        Raises:
            ActorDiedError: It is gone.
            Transfer: They cannot be read.
            Unavailable: There is no NIXL here.
        """
        holder = wanted[0].envelope.holder
        name = _how(wanted[0]).agent
        with self._lock:
            agent = self._agent_now()
            other = self._others.setdefault(name, _Other())
            self._forget_oldest(agent)
        found: list[list[Any]] = []
        targets: list[Any] = []
        for each in wanted:
            contents = each.envelope.contents
            parts: list[Any] = []
            for _, some in places_for(contents.sizes, contents.devices[0], each.into):
                parts += some
            found.append(parts)
            targets += parts
        if len({_how(each).kind for each in wanted}) > 1:
            raise _Failed("they lie on several kinds of devices")
        sources = [place for each in wanted for place in _how(each).places]
        with other.lock:
            for is_last in (False, True):
                try:
                    self._know(agent, other, wanted)
                    self._transfer(agent, wanted, targets, sources, times)
                    break
                except _Failed as failed:
                    self._forget(agent, name, other)  # what is known may be out of date
                    self._connections.check_lives(holder)
                    problem = str(failed)
                if is_last:
                    raise Transfer(
                        f"tensors of {holder.label} cannot be read by NIXL: {problem}. They may "
                        "have been freed, or the process has restarted"
                    )
        return [
            parts if each.into is None else fill(each.into, parts)
            for each, parts in zip(wanted, found, strict=True)
        ]

    def _know(self, agent: Any, other: _Other, wanted: Sequence[Wanted]) -> None:
        """Make known to NIXL what is registered at the other process; the caller has its lock."""
        for each in wanted:
            registered = _how(each)
            if other.version < registered.version or len(other.known) >= _MOST_KNOWN:
                # Memory that is not registered any more may lie where other memory is now.
                self._forget(agent, registered.agent, other)
                other.version = registered.version
            if registered.metadata not in other.known:
                with _failing("it is not known how to reach the process"):
                    agent.add_remote_agent(registered.metadata)
                other.known.add(registered.metadata)

    def _forget(self, agent: Any, name: str, other: _Other) -> None:
        if other.known:
            other.known.clear()
            with contextlib.suppress(Exception):  # it may be gone
                agent.remove_remote_agent(name)

    def _forget_oldest(self, agent: Any) -> None:
        while len(self._others) > _MOST_OTHERS:
            name = next(iter(self._others))
            other = self._others.pop(name)
            if other.lock.acquire(blocking=False):  # or it is being read from: it stays in NIXL
                self._forget(agent, name, other)
                other.lock.release()

    def _transfer(
        self,
        agent: Any,
        wanted: Sequence[Wanted],
        targets: Sequence[Any],
        sources: Sequence[tuple[int, int, int]],
        times: list[int],
    ) -> None:
        """Read memory of another process into tensors of this one."""
        pairs = [each for each in zip(targets, sources, strict=True) if each[0].numel()]
        if not pairs:
            return
        registered = _how(wanted[0])
        into = [(each.data_ptr(), each.numel(), _device(each)) for each, _ in pairs]
        with self._lock, _failing("the transfer cannot be started"):
            self.register([each for each, _ in pairs])
            here = agent.get_xfer_descs(np.array(into, np.uint64), _kind(pairs[0][0]))
            there = agent.get_xfer_descs(
                np.array([each for _, each in pairs], np.uint64), registered.kind
            )
            handle = agent.initialize_xfer("READ", here, there, registered.agent)
        times.append(time.monotonic_ns())
        try:
            with _failing("the transfer failed"):
                state = self._wait(agent, handle, wanted)
                if state != "DONE":
                    raise _Failed("the transfer failed")
        finally:
            with self._lock:
                self._unfinished.append((handle, [each for each, _ in pairs]))
                self._end_freed()

    def _wait(self, agent: Any, handle: Any, wanted: Sequence[Wanted]) -> str:
        """Start a transfer, and wait for it; returns its state."""
        state: str = agent.transfer(handle)
        start_s = look_s = time.monotonic()
        sleep_s = 0.0
        while state == "PROC":
            now_s = time.monotonic()
            if now_s - start_s > _SPIN_S:
                sleep_s = min(2 * sleep_s + 1e-5, _LONGEST_SLEEP_S)
            time.sleep(sleep_s)
            if now_s - look_s > _LOOK_S:
                look_s = now_s
                _check_lives(self._connections, wanted)
            state = agent.check_xfer_state(handle)
        return state

    def _goes_on(self, handle: Any) -> bool:
        """Whether a read that was started is not over; its handle is released if it is."""
        try:
            if self._agent.check_xfer_state(handle) == "PROC":
                return True
        except Exception:  # noqa: BLE001 - the process is gone
            pass
        with contextlib.suppress(Exception):
            self._agent.release_xfer_handle(handle)
        return False

    # --- both

    def _agent_now(self) -> Any:
        """Return NIXL's agent of this process; the caller has the lock.

        Raises:
            Unavailable: There is none.
        """
        if self._agent is None:
            self._agent = make_agent(self._name)
        return self._agent


class _Region(NamedTuple):
    """Memory that is registered."""

    address: int
    size: int
    device: int
    kind: str


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
    except (Unavailable, _Failed, Transfer):
        raise
    except Exception as error:  # noqa: BLE001 - see above
        raise _Failed(f"{what}: {describe_error(error)}") from None


def _how(wanted: Wanted) -> Registered:
    found = wanted.envelope.registered
    if found is None:
        raise Transfer(f"what {wanted.envelope.holder.label} made was not registered with NIXL")
    return found


def _check_lives(connections: Connections, wanted: Sequence[Wanted]) -> None:
    """Raise if the process that holds objects is gone."""
    connection = connections.to(wanted[0].envelope.holder)
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

    def at(self, start: int, size: int) -> Any:
        """Return a block as a tensor."""
        return self.memory[start : start + size]

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
            merged: list[tuple[int, int]] = []
            for start, size in sorted([*self._free, *((s, _pad(n)) for s, n in blocks)]):
                if merged and sum(merged[-1]) == start:
                    merged[-1] = merged[-1][0], merged[-1][1] + size
                else:
                    merged.append((start, size))
            self._free = merged


def _pad(size: int) -> int:
    return max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT


def _fits(device: Any, payloads: Sequence[Any]) -> bool:
    """Whether a pool on a device takes tensors: one in host memory takes all."""
    return device.type == "cpu" or all(each.device == device for each in payloads)


def _kind(tensor: Any) -> str:
    return "VRAM" if tensor.is_cuda else "DRAM"


def _device(tensor: Any) -> int:
    return int(max(tensor.get_device(), 0))


def _rows(regions: Sequence[_Region]) -> list[tuple[int, int, int, str]]:
    return [(each.address, each.size, each.device, "") for each in regions]


@functools.cache
def is_installed() -> bool:
    """Whether NIXL's Python package is there; it is not imported, which takes a second."""
    return any(importlib.util.find_spec(name) for name in _PACKAGES)


def check_has_nixl(holder: Holder) -> None:
    """Check that an actor can use NIXL, where a call with its tensors is made.

    Args:
        holder: The actor. One that does not answer is not judged: its method will fail.

    Raises:
        Unavailable: NIXL is not installed where it runs.
    """
    if holder.key in _have_nixl:
        return
    try:
        with contextlib.closing(Connection(holder, "")) as connection:
            found = json.loads(connection.observe(lambda number: AskHeld(number=number)))
    except (OSError, RcgError, TimeoutError):
        return
    if not found["nixl"][0]:
        raise Unavailable(f"{holder.label}: {_MISSING}", transport=NIXL)
    _have_nixl.add(holder.key)
    if len(_have_nixl) > _MOST_OTHERS:
        _have_nixl.clear()


_have_nixl: Final[set[str]] = set()


def make_agent(name: str) -> Any:
    """Return a new agent of NIXL.

    Raises:
        Unavailable: NIXL is not installed, or does not start.
    """
    if not is_installed():
        raise Unavailable(_MISSING, transport=NIXL)
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # it prints two lines for each agent
    package = next(name for name in _PACKAGES if importlib.util.find_spec(name))
    try:
        api = importlib.import_module(f"{package}._api")
    except ImportError as error:
        raise Unavailable(
            f"the package {package} cannot be imported: {error}", transport=NIXL
        ) from None

    original: Any = api.nixlBind.nixlAgentConfig

    class Quiet(original):
        """A configuration with which the agent's thread sleeps until something comes."""

        def __setattr__(self, field: str, value: Any) -> None:
            super().__setattr__(field, _QUIET_US if field == "pthrDelay" else value)

    backend = _backend()
    try:
        api.nixlBind.nixlAgentConfig = Quiet  # the package sets 0, and has no option for it
        strict = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT  # any thread may use it
        return api.nixl_agent(name, api.nixl_agent_config(backends=[backend], sync_mode=strict))
    except Exception as error:  # noqa: BLE001 - NIXL has many
        ways = os.environ.get("UCX_TLS")
        hint = f" UCX_TLS={ways} may leave out what it needs;" if ways else ""
        raise Unavailable(
            f"NIXL cannot start with its backend {backend}: {describe_error(error)}.{hint} "
            "`rcg doctor` says what this machine has",
            transport=NIXL,
        ) from None
    finally:
        api.nixlBind.nixlAgentConfig = original


def _has_rdma() -> bool:
    """Whether memory has keys that end with its registration; with UCX's other ways it has none."""
    return bool(glob.glob("/sys/class/infiniband/*"))


def _backend() -> str:
    """Return NIXL's backend: LIBFABRIC on AWS's EFA, UCX elsewhere.

    In a container the network devices may be hidden, and other RDMA devices stand beside EFA's: the
    driver tells.
    """
    is_efa = bool(glob.glob("/sys/class/net/efa*")) or any(
        Path(each, "device", "driver").resolve().name == "efa"
        for each in glob.glob("/sys/class/infiniband/*")
    )
    return "LIBFABRIC" if is_efa else "UCX"
