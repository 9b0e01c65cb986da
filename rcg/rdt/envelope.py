# SPDX-License-Identifier: Apache-2.0
"""Envelopes: what travels in a task's reply in place of a value with tensors.

An envelope has the process that holds the tensors, and the value without their bytes. A value that
is one plain tensor needs no pickle, which is most of what small values cost. Any other is a
skeleton and a table (``rcg.serialization.payloads``). The envelope's own ObjectRef is the *anchor*:
Ray counts who holds it. When nobody does, the tensors are freed (``rcg.rdt.keeper``).

A user's method never sees an envelope. It is opened where it is unpickled, by the *opener* of the
process; in a context where something else will open it (``closed``), it stays one.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol

from rcg import cluster
from rcg.rdt.nixl_agent import why_not_auto
from rcg.serialization import Codec, loads_with
from rcg.serialization.payloads import (
    LoneTable,
    Skeleton,
    Table,
    bytes_of,
    is_plain_tensor,
    put_back,
    take_out,
)
from rcg.serialization.tensors import EVERY_DEVICE
from rcg.text import bytes_text, plural, short_label
from rcg.trace import spans

_HOST: Final = frozenset({"cpu"})


def take_objects(value: Any, kind: type | tuple[()]) -> tuple[bytes, list[Any], list[Any]]:
    """Take the objects of a type out of a value.

    Returns:
        The pickle of the value without them; the objects, each once; and Ray's references and
        handles in the value. Only Ray's own serializer may pickle those: any other keeps them for
        as long as the process lives.
    """
    objects: list[Any] = []
    references: list[Any] = []
    file = io.BytesIO()
    _Pickler(file, kind, objects, references).dump(value)
    return file.getvalue(), objects, references


def put_objects(data: bytes, objects: Sequence[Any], references: Sequence[Any]) -> Any:
    """Return the value with these in the places of what was taken out."""
    return _Unpickler(io.BytesIO(data), (objects, references)).load()


def size_of(thing: Any) -> int:
    """Return the bytes of an array or a tensor; 0 if it does not say."""
    found = getattr(thing, "nbytes", 0)
    return found if isinstance(found, int) else 0


class _Pickler(cluster.by_value_pickler()):  # type: ignore[misc]
    def __init__(
        self, file: Any, kind: type | tuple[()], objects: list[Any], references: list[Any]
    ) -> None:
        super().__init__(file, 5)
        self._kind = kind
        self._opaque = cluster.opaque_types()
        self._lists = objects, references
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> tuple[int, int] | None:
        if isinstance(obj, self._kind):
            which = 0
        elif type(obj) in self._opaque:
            which = 1
        else:
            return None
        chosen = self._lists[which]
        place = self._places.setdefault(id(obj), len(chosen))
        if place == len(chosen):
            chosen.append(obj)
        return which, place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, lists: tuple[Sequence[Any], Sequence[Any]]) -> None:
        super().__init__(file)
        self._lists = lists

    def persistent_load(self, found: Any) -> Any:
        which, place = found
        return self._lists[which][place]


class Whole:
    """A value that is exactly one tensor in host memory.

    Args:
        table: Its type and shape.
    """

    __slots__ = ("sizes", "table")

    def __init__(self, table: LoneTable) -> None:
        self.table = table
        self.sizes: tuple[int, ...] = (table.size,)

    @property
    def devices(self) -> tuple[str, ...]:
        """The type of the device of each payload."""
        return (self.table.device,)

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the value over the bytes of its tensors."""
        return self.table.put_back(payloads[0])


class Parts:
    """A value without the bytes of its tensors, and where these belong.

    Args:
        skeleton: The value without them.
        table: Where they belong.
        references: Ray's references and handles in it. Only Ray's own serializer may pickle those:
            any other keeps them for as long as the process lives.
    """

    __slots__ = ("references", "skeleton", "table")

    def __init__(self, skeleton: Skeleton, table: Table, references: Sequence[Any]) -> None:
        self.skeleton = skeleton
        self.table = table
        self.references = references

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each payload."""
        return self.table.sizes

    @property
    def devices(self) -> tuple[str, ...]:
        """The type of the device of each payload."""
        return self.table.devices

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the value over the bytes of its tensors."""
        return put_back(self.skeleton, self.table, payloads, loads_with(self.references))

    def __reduce__(self) -> tuple[Any, ...]:
        data, buffers, writable = self.skeleton
        plain = bytes(data), [_copy(each) for each in buffers], writable
        return _parts, (plain, tuple(self.table), self.references)


class Contents(Protocol):
    """A value without its tensors; it pickles."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each tensor."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The type of the device of each."""

    def put_back(self, payloads: Sequence[Any]) -> Any:
        """Return the value with these tensors."""


def take_apart(value: Any, codec: Codec) -> tuple[Contents, list[Any]]:
    """Return what is left of a value without its tensors, and the bytes of these.

    Returns:
        The contents; the payloads: tensors of uint8 [n] over the memory of the value's own.
    """
    if is_plain_tensor(value, _HOST):
        return Whole(LoneTable.of(value)), [bytes_of(value)]
    references: list[Any] = []
    encoded = codec.encode(value, None, EVERY_DEVICE, references)
    skeleton, table, payloads = take_out(encoded, EVERY_DEVICE)
    return Parts(skeleton, table, references), payloads


def _parts(skeleton: tuple[Any, ...], table: tuple[Any, ...], references: Sequence[Any]) -> Parts:
    return Parts(Skeleton(*skeleton), Table(*table), references)


def _copy(buffer: Any) -> bytes:
    return bytes(buffer.raw()) if hasattr(buffer, "raw") else bytes(memoryview(buffer))


class Holder(NamedTuple):
    """The process that holds tensors.

    Attributes:
        address: Where it listens, for processes of its node.
        key: The id of its store.
        secret: The secret of its store.
        label: What errors call it: ``Actor(Worker, 05224b2e...)``.
        actor: The id of the actor that it is, in hex; "" for another process.
        node: The id of its node; "" if only Ray knows it.
    """

    address: str
    key: str
    secret: str
    label: str
    actor: str
    node: str

    def __repr__(self) -> str:
        return f"Holder({self.label})"  # the secret belongs in no log and in no error


class Registered(NamedTuple):
    """How the tensors of an object are read by NIXL.

    Attributes:
        agent: The name of NIXL's agent of the process that holds them.
        metadata: How this agent is reached, and the keys of the memory.
        version: How often memory of that process had ceased to be registered.
        places: The address, the bytes and the number of the device of each tensor; or the bytes of
            small ones themselves, if there is no agent.
        kind: The kind of this memory: ``DRAM``, ``VRAM``.
    """

    agent: str
    metadata: bytes
    version: int
    places: tuple[Any, ...]
    kind: str


class Envelope:
    """A value whose tensors are elsewhere.

    Args:
        key: The object's id, within the store of its holder.
        holder: The process that holds the tensors.
        transport: How they travel.
        contents: The value without its tensors.
        registered: How they are read by NIXL; None if they are not.
    """

    __slots__ = ("contents", "holder", "key", "registered", "transport")

    def __init__(
        self,
        key: str,
        holder: Holder,
        transport: str,
        contents: Contents,
        registered: Registered | None = None,
    ) -> None:
        self.registered = registered
        self.key = key
        self.holder = holder
        self.transport = transport
        self.contents = contents

    def __reduce__(self) -> tuple[Any, ...]:
        # What is nested costs Ray's pickler most: for each object it asks several functions.
        contents = self.contents
        packed = tuple(contents.table) if type(contents) is Whole else contents
        registered = () if self.registered is None else (tuple(self.registered),)
        return _load, (self.key, tuple(self.holder), self.transport, packed, *registered)

    def _way(self) -> str:
        """Return how the tensors would come here, and why, if the transport leaves that open."""
        if self.transport != "auto" or not (self.holder.node and cluster.is_connected()):
            return ""
        if self.holder.node == cluster.node_id():
            is_cpu = set(self.contents.devices) <= _HOST
            return (
                f": here by {'shm' if is_cpu else 'cuda_ipc on one GPU, else shm'}, from this node"
            )
        why = why_not_auto()
        if why:
            return f": here by tcp, from another node ({why})"
        return ": here by nixl, or by tcp if only this process has it, from another node"

    def __repr__(self) -> str:
        sizes = self.contents.sizes
        return (
            f"Envelope of {plural(len(sizes), 'tensor')} with {bytes_text(sum(sizes))}, held by "
            f"{short_label(self.holder.label)}, for {self.transport}{self._way()}; "
            f"{bytes_text(len(take_objects(self, ())[0]))} travel"
        )


class ToOpen:
    """An envelope that is opened wherever it is unpickled: by the actor that reads an input."""

    __slots__ = ("_envelope",)

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def __reduce__(self) -> tuple[Any, ...]:
        _, fields = self._envelope.__reduce__()
        return _load_open, fields


_opener: list[Callable[[Envelope], Any]] = []
# Whether an envelope that is unpickled now stays one.
_is_closed: Final[ContextVar[bool | None]] = ContextVar("rcg_rdt_closed", default=None)
# Whether this process opens the arguments of its methods itself, once they were unpickled.
_by_methods: Final[list[bool]] = []


def open_with(opener: Callable[[Envelope], Any]) -> None:
    """Set what opens envelopes in this process: ``rcg.rdt.values`` does, which stands above."""
    _opener[:] = [opener]


def let_methods_open() -> None:
    """Have envelopes stay closed in this process, outside of methods, which open them."""
    _by_methods[:] = [True]


class closed:  # noqa: N801 - used as a function
    """Have envelopes that are unpickled within stay closed, or not."""

    __slots__ = ("_is_closed", "_token")

    def __init__(self, is_closed: bool) -> None:
        self._is_closed = is_closed

    def __enter__(self) -> None:
        self._token = _is_closed.set(self._is_closed)

    def __exit__(self, *_: object) -> None:
        _is_closed.reset(self._token)


def _load(
    key: str, holder: tuple[str, ...], transport: str, packed: Any, registered: Any = None
) -> Any:
    contents = Whole(LoneTable(*packed)) if type(packed) is tuple else packed
    how = None if registered is None else Registered(*registered)
    envelope = Envelope(key, Holder(*holder), transport, contents, how)
    is_closed = _is_closed.get()
    if is_closed or (is_closed is None and _by_methods):
        return envelope
    return _opener[0](envelope)


def _load_open(*fields: Any) -> Any:
    envelope, writer = load_closed(*fields), spans.here.get()
    if writer is None:
        return _opener[0](envelope)
    with writer.moving(sum(envelope.contents.sizes)):
        return _opener[0](envelope)


def load_closed(*fields: Any) -> Envelope:
    """Return the envelope that has pickled to these, as it is."""
    with closed(True):
        found: Envelope = _load(*fields)
    return found
