# SPDX-License-Identifier: Apache-2.0
"""An actor that publishes and reads weights, with guard bytes around each of its tensors."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

import rcg
from rcg.errors import RcgError
from rcg.weights.route import Route
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")

GUARD_BYTES = 1 << 16
_MARK = 0xA5
_stops = threading.local()


class Outcome(NamedTuple):
    """What a call gave: a value, or an error."""

    value: Any = None
    error: str = ""
    is_ours: bool = True  # an error that rcg raises on purpose
    is_timeout: bool = False


class Seen(NamedTuple):
    """What a reader has after an update."""

    outcome: Outcome
    version: int | None
    values: dict[str, Any]  # those whose storage has room for them
    broken: list[str]  # whose guard bytes have changed, or what it had before a replacement


class Guarded:
    """A tensor in the middle of a larger buffer, whose other bytes never change."""

    def __init__(self, value: Any, is_turned: bool) -> None:
        self._size = value.nbytes
        self._whole = self._size + 2 * GUARD_BYTES
        self._buffer = torch.full((self._whole,), _MARK, dtype=torch.uint8)
        flat = self._buffer[GUARD_BYTES : GUARD_BYTES + self._size].view(value.dtype)
        self.is_turned = is_turned and value.dim() > 1
        self.tensor = flat.view(value.shape)
        if self.is_turned:
            self.tensor = flat.view(value.shape[::-1]).permute(*range(value.dim())[::-1])
        self.tensor.copy_(value)

    @property
    def is_short(self) -> bool:
        """Whether its storage has no room for it."""
        return self._buffer.untyped_storage().nbytes() < GUARD_BYTES + self._size

    @property
    def is_intact(self) -> bool:
        """Whether the bytes around it are as they were."""
        if self._buffer.untyped_storage().nbytes() < self._whole:
            return True  # nothing is there to be looked at
        ends = self._buffer[:GUARD_BYTES], self._buffer[GUARD_BYTES + self._size :]
        return all(bool((each == _MARK).all()) for each in ends)

    def resize(self, share: float) -> bool:
        """Give its storage another size: a share of the tensor's bytes, or all that there was.

        Torch does not let a storage that NumPy has seen be resized.
        """
        storage, is_whole = self._buffer.untyped_storage(), share == 1
        if not storage.resizable():
            return False
        # Other memory takes what was freed.
        storage.resize_(0)
        self._other = torch.full((self._whole,), 0x77, dtype=torch.uint8)
        storage.resize_(self._whole if is_whole else GUARD_BYTES + int(share * self._size))
        if is_whole:
            self._buffer[:] = _MARK
            self.tensor.zero_()
        return True


class Tensors:
    """Named tensors of a model, or of a dict."""

    def __init__(self, values: Mapping[str, Any], turned: set[str], is_module: bool) -> None:
        self.source: Any = torch.nn.Module() if is_module else {}
        self.guarded: dict[str, Guarded] = {}
        self.retired: list[tuple[Guarded, Any]] = []
        for key, value in values.items():
            self.put(key, Guarded(value, key in turned), "assign")

    def put(self, key: str, new: Guarded, how: str) -> None:
        """Give a name another tensor: ``assign`` in its place, or ``move`` it to the end."""
        old = self.guarded.get(key)
        self.guarded[key] = new
        if old is not None and not old.is_short and old not in self.guarded.values():
            self.retired.append((old, old.tensor.clone()))
        if isinstance(self.source, dict):
            if how == "move":
                self.source.pop(key, None)
            self.source[key] = new.tensor
            return
        is_parameter = new.tensor.is_floating_point()
        others = self.source._buffers if is_parameter else self.source._parameters
        if hasattr(self.source, key) and (how == "move" or key in others):
            delattr(self.source, key)
        if is_parameter:
            setattr(self.source, key, torch.nn.Parameter(new.tensor))
        else:
            self.source.register_buffer(key, new.tensor)

    def tensor(self, key: str) -> Any:
        """The tensor of a name, which an optimizer can step."""
        if isinstance(self.source, dict):
            return self.source[key]
        return getattr(self.source, key)

    def values(self) -> dict[str, Any]:
        """Copies of what is in the tensors."""
        return {
            key: each.tensor.detach().clone()
            for key, each in self.guarded.items()
            if not each.is_short
        }

    def broken(self) -> list[str]:
        """The names of tensors around which bytes have changed, and what changed after its end."""
        found = [key for key, each in self.guarded.items() if not each.is_intact]
        for old, value in self.retired:
            if not old.is_intact or (not old.is_short and not old.tensor.equal(value)):
                found.append("a tensor that was replaced")
        return found


def numbers(seed: int, like: Any) -> Any:
    """Random values of the shape and type of a tensor."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(-10_000, 10_000, like.shape, generator=generator)
    return found.to(like.dtype)


def _write(tensor: Any, how: str, seed: int) -> None:
    value = numbers(seed, tensor)
    if how.startswith(("fused", "plain")):
        kind, name = how.split()
        if not tensor.is_floating_point():
            return
        tensor.grad = value.to(tensor.dtype)
        options: dict[str, Any] = {"fused": True} if kind == "fused" else {}
        getattr(torch.optim, name)([tensor], lr=0.5, **options).step()
        tensor.grad = None
        return
    tensor = tensor.detach() if how != "in place" else tensor
    with torch.no_grad():
        if how == "in place":
            tensor.copy_(value)
        elif how == "data":
            tensor.data.copy_(value)
        elif how == "numpy":
            is_strange = tensor.dtype == torch.bfloat16  # to NumPy
            kind = torch.int16 if is_strange else tensor.dtype
            tensor.view(kind).numpy()[...] = value.view(kind).numpy()
        elif how == "inference":
            with torch.inference_mode():
                tensor.copy_(value)
        elif how == "another view":
            other = torch.empty(0, dtype=tensor.dtype).set_(
                tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )
            other.copy_(value)
        elif tensor.numel():
            tensor.data[(0,) * tensor.dim()] += 1


WRITES = (
    "in place",
    "data",
    "numpy",
    "inference",
    "another view",
    "one number",
    *(f"{kind} {name}" for kind in ("fused", "plain") for name in ("SGD", "AdamW", "Adagrad")),
)


UNUSUAL = ("qint8", "quint8", "qint32", "channels", "float8", "complex", "bool")


def _unusual(kind: str, scale: float) -> Any:
    """A tensor of an unusual kind, whose values depend on ``scale``."""
    values = torch.arange(24.0).reshape(4, 6) * scale
    if kind == "channels":
        scales = torch.full((4,), scale)
        return torch.quantize_per_channel(values, scales, torch.zeros(4), 0, torch.qint8)
    if kind.startswith("q"):
        return torch.quantize_per_tensor(values, scale, int(10 * scale), getattr(torch, kind))
    if kind == "complex":
        return torch.complex(values, -values)
    return values.to(torch.bool if kind == "bool" else torch.float8_e4m3fn)


def _plain(tensor: Any) -> Any:
    found = tensor.dequantize() if tensor.is_quantized else tensor
    return found.float() if found.dtype == torch.float8_e4m3fn else found


class Party:
    """Publishers and readers of weights in one process, by their numbers."""

    def __init__(self) -> None:
        self._clients: dict[int, tuple[Any, Tensors]] = {}
        self._updates: dict[int, tuple[threading.Event, Callable[[], Outcome]]] = {}
        if not hasattr(Route.read, "stops"):
            Route.read = _stopping(Route.read)
        for how in WRITES:  # what torch imports then takes seconds
            _write(torch.zeros(2), how, 0)

    def pid(self) -> int:
        return os.getpid()

    # --- publishers

    def publish(self, who, name, values, turned, is_module, shard, options):
        tensors = Tensors(values, turned, is_module)
        found = _attempt(lambda: rcg.weights.publish(name, tensors.source, shard, **options))
        if found.error:
            return found
        self._clients[who] = found.value, tensors
        return Outcome()

    def intrude(self, name, values):
        """Try to publish as another one does."""
        found = _attempt(lambda: rcg.weights.publish(name, values))
        if not found.error:
            found.value.close()
        return found._replace(value=None)

    def push(self, who, step, write=None):
        """Push what the tensors are; returns the outcome and copies of them."""
        client, tensors = self._clients[who]
        if write is not None:
            self.write(who, "in place", write)
        found = _attempt(lambda: client.push(step).version)
        return found, tensors.values()

    def wait(self, who, version, timeout):
        client, _ = self._clients[who]
        return _attempt(lambda: client.wait(version, timeout))

    # --- readers

    def subscribe(self, who, name, values, turned, is_module, shard, options):
        tensors = Tensors(values, turned, is_module)
        found = _attempt(lambda: rcg.weights.subscribe(name, tensors.source, shard, **options))
        if found.error:
            return found
        self._clients[who] = found.value, tensors
        return Outcome()

    def update(self, who, timeout):
        client, _ = self._clients[who]
        return self._seen(who, _attempt(lambda: client.update(timeout).version))

    def stage(self, who, timeout):
        """Get a version, and leave the tensors as they are until ``apply``."""
        client, _ = self._clients[who]
        found = _attempt(lambda: client.update(timeout, apply=False).version)
        return self._seen(who, found)

    def apply(self, who):
        client, _ = self._clients[who]
        return self._seen(who, _attempt(lambda: client.apply(GUARD_S)))

    def begin_update(self, who, timeout, stop):
        """Begin an update on a thread; returns once it stands before or after the reading."""
        client, _ = self._clients[who]
        stands, goes_on = threading.Event(), threading.Event()
        found: list[Outcome] = []

        def run() -> None:
            _stops.at = stop, stands, goes_on
            found.append(_attempt(lambda: client.update(timeout).version))
            stands.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        stands.wait(GUARD_S)

        def end() -> Outcome:
            thread.join(GUARD_S)
            return found[0] if found else Outcome(error="the update hangs", is_ours=False)

        self._updates[who] = goes_on, end
        return not found

    def end_update(self, who):
        goes_on, end = self._updates.pop(who)
        goes_on.set()
        return self._seen(who, end())

    def update_beside_passes(self, who, timeout):
        """Update with ``await`` beside forward passes; returns also what passes saw, if a mixture.

        A pass has no ``await``, so no other coroutine runs in the middle of it.
        """
        client, tensors = self._clients[who]
        passes = [tensors.values()]

        async def run() -> Any:
            updating = asyncio.ensure_future(client.update_async(timeout))
            while not updating.done():
                seen = tensors.values()
                if not _are_equal(seen, passes[-1]):
                    passes.append(seen)
                await asyncio.sleep(0)
            return (await updating).version

        found = self._seen(who, _attempt(lambda: asyncio.run(run())))
        mixed = [each for each in passes[1:] if not _are_equal(each, found.values)]
        return found, len(mixed)

    def _seen(self, who: int, outcome: Outcome) -> Seen:
        client, tensors = self._clients[who]
        return Seen(outcome, client.version, tensors.values(), tensors.broken())

    def exchange(self, name, kind):
        """Send values of an unusual kind to this process; returns whether they came as they are."""
        made, into = _unusual(kind, 0.1), _unusual(kind, 0.7)

        def exchanged() -> bool:
            with (
                rcg.weights.publish(name, {"w": made}) as publisher,
                rcg.weights.subscribe(name, {"w": into}, timeout=1) as subscriber,
            ):
                publisher.push()
                subscriber.update(GUARD_S)
            return bool(torch.equal(_plain(into), _plain(made)))

        return _attempt(exchanged)

    # --- both

    def write(self, who, how, seed, keys=None):
        _, tensors = self._clients[who]
        for at, key in enumerate(tensors.guarded if keys is None else keys):
            if not tensors.guarded[key].is_short:
                _write(tensors.tensor(key), how, seed + at)

    def replace(self, who, key, how, seed, is_turned):
        """Put another tensor in the place of one."""
        _, tensors = self._clients[who]
        old = tensors.guarded[key].tensor
        tensors.put(key, Guarded(numbers(seed, old), is_turned), how)

    def tie(self, who, key, other):
        _, tensors = self._clients[who]
        tensors.put(key, tensors.guarded[other], "assign")

    def push_misfit(self, who, key, how):
        """Push with a tensor of another shape or type, and put the right one back."""
        client, tensors = self._clients[who]
        right = tensors.guarded[key]
        wrong = right.tensor.detach().to(torch.float64) if how == "type" else torch.ones(2, 1, 3)
        tensors.put(key, Guarded(wrong, False), "assign")
        found = _attempt(lambda: client.push().version)
        tensors.put(key, right, "assign")
        tensors.retired = [each for each in tensors.retired if each[0] is not right]
        return found

    def resize(self, who, key, share):
        """Resize the storage of a tensor; returns whether torch lets it be resized."""
        _, tensors = self._clients[who]
        return tensors.guarded[key].resize(share)

    def close(self, who):
        client, tensors = self._clients.pop(who)
        client.close()
        return tensors.broken()

    def leave(self):
        """Close all; returns the bytes that are still held for others, and what is broken."""
        from rcg.rdt.process import here

        for goes_on, end in self._updates.values():
            goes_on.set()
            end()
        self._updates.clear()
        broken = [each for who in list(self._clients) for each in self.close(who)]
        return here().store.facts().held_bytes, broken


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(torch.equal(value, other[key]) for key, value in one.items())


def _attempt(call: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(call())
    except Exception as error:  # noqa: BLE001 - the model judges it
        is_ours = isinstance(error, (RcgError, ValueError, TypeError, TimeoutError))
        text = f"{type(error).__name__}: {error}"
        return Outcome(None, text, is_ours, isinstance(error, TimeoutError))


def _stopping(read: Any) -> Any:
    """Have the update of a thread that asks for it stop before or after a version is read."""

    def stopping(*args: Any) -> Any:
        at, stands, goes_on = _stops.__dict__.pop("at", ("", None, None))
        if at == "before":
            stands.set()
            goes_on.wait(GUARD_S)
        found = read(*args)
        if at == "after":
            stands.set()
            goes_on.wait(GUARD_S)
        return found

    stopping.stops = True  # type: ignore[attr-defined]
    return stopping
