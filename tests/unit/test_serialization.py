# SPDX-License-Identifier: Apache-2.0
"""Values go through a real ring and arrive as they were: see ``rcg.serialization``."""

from __future__ import annotations

import copyreg
import gc
import pickle
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import hypothesis.extra.numpy as arrays_of
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg import _native, cluster
from rcg.channels.shm import BUFFER_TYPES
from rcg.errors import UnpicklableError
from rcg.runtime.actor.ownership import is_held_only_by
from rcg.serialization import Codec, Failure, loads, loads_to, size_of
from rcg.serialization.payloads import is_plain_tensor
from tests.harness.board import Board, Ring, claimed, reader_of, writer_of
from tests.harness.hostile import (
    ENDS,
    ERRORS,
    MARK,
    SILENT,
    WAYS,
    RaisesWhenDumped,
    in_thread,
    make_error,
)
from tests.harness.served import together

torch = pytest.importorskip("torch")

LARGE = 40_000  # elements: more than any frame holds


def make_codec(**changes: Any) -> Codec:
    return Codec(
        cluster.by_value_pickler(),
        changes.get("opaque_types", cluster.opaque_types()),
        changes.get("registered_by_value", cluster.modules_pickled_by_value),
        BUFFER_TYPES,
    )


class Channel:
    """A channel from a process to `readers` others, all of them this one."""

    def __init__(self, readers: int = 1, codec: Codec | None = None) -> None:
        numbers = tuple(range(1, readers + 1))
        self.board = Board(readers + 1, [Ring(0, numbers, slot_bytes=16 * 1024)])
        self.sender = self.board.member(0)
        self.codec = codec or make_codec()
        self._writer = writer_of(self.sender, 0, self.codec)
        self._readers = [reader_of(self.board.member(number), 0) for number in numbers]

    def send(self, value: Any) -> list[Any]:
        """Return what each reader gets."""
        self._writer.write(value)
        return [reader.read(0) for reader in self._readers]

    def through(self, value: Any) -> Any:
        """Return what the only reader gets."""
        (found,) = self.send(value)
        return found


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    made.board.close()


SHARED = Channel()


def through(value: Any) -> Any:
    return SHARED.through(value)


def same_array(found: Any, wanted: Any) -> bool:
    return (
        type(found) is type(wanted)
        and found.dtype == wanted.dtype
        and found.dtype.fields == wanted.dtype.fields  # no part of whether dtypes are equal
        and found.shape == wanted.shape
        and (found.tobytes() == wanted.tobytes() or bool(np.array_equal(found, wanted)))
    )


def same_tensor(found: Any, wanted: Any) -> bool:
    def raw(tensor: Any) -> bytes:
        if not tensor.numel():
            return b""
        plain = tensor.detach().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
        plain = plain.contiguous().as_strided((tensor.numel(),), (1,))
        return bytes(plain.view(torch.uint8).numpy())

    return (
        type(found) is type(wanted)
        and found.dtype == wanted.dtype
        and found.shape == wanted.shape
        and found.requires_grad == wanted.requires_grad
        and raw(found) == raw(wanted)
    )


# --- plain Python -------------------------------------------------------------------------------

atoms = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text()
    | st.binary() | st.binary().map(bytearray) | st.decimals() | st.datetimes() | st.just(Ellipsis)
)  # fmt: skip
keys = st.integers() | st.text() | st.binary() | st.none()
plain_values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.lists(inner).map(deque)
    ),
)


@given(plain_values)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    found = through(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)  # NaN included, and the order of dicts


def test_bytes_and_bytearrays_are_the_readers_own() -> None:
    assert type(through(b"x" * 100_000)) is bytes
    found = through(bytearray(100_000))
    found[0] = 1
    assert through([bytearray(100_000)])[0][0] == 0


def test_what_is_shared_within_a_value_stays_shared(channel: Channel) -> None:
    inner: list[Any] = [1]
    cyclic: list[Any] = [inner, inner]
    cyclic.append(cyclic)
    found = channel.through(cyclic)
    assert found[0] is found[1] and found[2] is found
    array = np.arange(LARGE)
    first, second = channel.through([array, array])
    assert first is second


def test_no_value_is_kept_by_the_codec(channel: Channel) -> None:
    class Thing:
        def __reduce__(self) -> Any:
            return str, ("thing",)

    thing = Thing()
    seen = weakref.ref(thing)
    assert channel.through([thing, [thing]]) == ["thing", ["thing"]]
    del thing
    gc.collect()
    assert seen() is None


def test_one_value_after_the_other_stands_alone(channel: Channel) -> None:
    """A pickler that is used again must not refer to what the last value contained."""
    shared = ("a", "tuple", "that", "a pickler", "remembers")
    array = np.arange(10)
    for _ in range(3):
        assert channel.through([shared, array.shape])[0] == shared
        assert same_array(channel.through([shared, array])[1], array)


def test_many_threads_encode_with_one_codec(channel: Channel) -> None:
    codec, found = channel.codec, []

    def work(seed: int) -> None:
        for i in range(200):
            value = [seed, i, np.full(50, seed), f"{seed} {i}"]
            _, data, buffers, _ = codec.encode(value)
            found.append(pickle.loads(data, buffers=buffers or ())[:2] == [seed, i])

    together(*[lambda seed=seed: work(seed) for seed in range(4)])
    assert found == [True] * 800


def test_a_value_that_encodes_while_it_is_pickled(channel: Channel) -> None:
    class Nested:
        def __reduce__(self) -> Any:
            channel.codec.encode([np.arange(3), {"inner": 1}])
            return list, ((1, 2),)

    assert channel.through([Nested(), "after", np.arange(3)])[:2] == [[1, 2], "after"]


def test_size_counts_pickle_and_buffers() -> None:
    codec = make_codec()
    assert size_of(codec.encode(b"12345")) == 5
    assert 80_000 < size_of(codec.encode([np.zeros(10_000), 1])) < 80_500


# --- arrays -------------------------------------------------------------------------------------

RECORD = np.dtype([("a", "u1"), ("b", "f8"), ("c", "U3")], align=True)
assert RECORD.itemsize > 1 + 8 + 12  # padding
NESTED = np.dtype([("p", RECORD, (2,)), ("when", "M8[us]"), ("raw", "V5")])

DTYPES = [
    *"?bBhHiIlLqQefdgFDG",
    ">i2", ">i8", ">f4", ">c16", ">U4", "<U4", "U0", "S7", "S0", "V3",
    "M8[s]", "M8[ns]", "M8[D]", "M8", "m8[ms]", "m8", ">M8[us]",
    RECORD, NESTED, np.dtype([]), np.dtype([("x", ">i4"), ("y", "<i4")]),
    np.dtype(("u4", [("r", "u1"), ("g", "u1"), ("b", "u1"), ("a", "u1")])),
    np.dtype(("c16", [("re", "f8"), ("im", "f8")])),
]  # fmt: skip


def filled(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    if dtype.kind in "US" and dtype.itemsize:
        return np.array([f"{i % 900}" for i in range(count)], dtype).reshape(shape)
    if dtype.kind in "?biufcmM":
        return (np.arange(count) % 120).astype(dtype).reshape(shape)
    raw = np.random.default_rng(1).integers(0, 100, count * dtype.itemsize, np.uint8)
    array = np.zeros(shape, dtype)
    if raw.size and dtype.kind == "V" and dtype.names is None:
        return np.frombuffer(raw, dtype).reshape(shape)
    if dtype == RECORD:
        array["a"], array["b"], array["c"] = 7, 1.5, "xyz"
    return array


SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (0, 3), (3, 0, 2), (2, 3, 4), (LARGE,), (200, 200)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arrays_of_every_dtype_and_rank(shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        array = filled(dtype, shape)
        found = through(array)
        assert same_array(found, array), dtype
        assert not found.flags.writeable, dtype
        assert found.flags.aligned, dtype
        assert same_array(through({"a": [array]})["a"][0], array), dtype


@st.composite
def strange_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = draw(
        arrays_of.scalar_dtypes() | arrays_of.unicode_string_dtypes()
        | arrays_of.byte_string_dtypes() | arrays_of.array_dtypes() | arrays_of.nested_dtypes()
    )  # fmt: skip
    shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    array: Any = draw(arrays_of.arrays(dtype, shape))
    if array.ndim:
        array = array[draw(arrays_of.basic_indices(array.shape, allow_ellipsis=False))]
    if isinstance(array, np.ndarray) and array.ndim > 1:
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    return np.asarray(array) if draw(st.booleans()) else np.asfortranarray(array)


@given(strange_arrays())
def test_strange_arrays(array: np.ndarray[Any, Any]) -> None:
    found = through(array)
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.tobytes() == array.tobytes()
    assert not found.flags.writeable


def test_objects_in_arrays() -> None:
    array = np.array([[1, "two"], [None, {"four": np.arange(3)}]], dtype=object)
    found = through(array)
    assert found.shape == (2, 2) and found[0].tolist() == [1, "two"]
    assert found[1, 1]["four"].tolist() == [0, 1, 2]
    record = np.array([(1, [2]), (3, {4})], dtype=[("n", "i4"), ("o", "O")])
    assert through(record).tolist() == [(1, [2]), (3, {4})]


def test_the_string_dtype_of_numpy_2() -> None:
    array = np.array(["a", "long enough to live elsewhere " * 10], np.dtypes.StringDType())
    assert through(array).tolist() == array.tolist()
    assert through([array])[0].dtype == array.dtype


@pytest.mark.parametrize("size", [3, 200])
def test_subclasses_of_arrays_stay_what_they_are(size: int) -> None:
    base = np.arange(size * size, dtype="f8").reshape(size, size)
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.asmatrix(base)
    assert same_array(through(matrix), matrix)
    masked = np.ma.masked_array(base, base % 3 == 0, fill_value=7)
    found = through({"m": masked})["m"]
    assert type(found) is np.ma.MaskedArray
    assert found.tolist() == masked.tolist() and found.fill_value == 7
    records = np.rec.fromarrays([base[0], base[1]], names=["x", "y"])
    found = through(records)
    assert type(found) is np.recarray and found.y.tolist() == records.y.tolist()


@pytest.mark.parametrize("dtype", ["f8", "M8[s]", RECORD], ids=str)
def test_large_arrays_share_memory_and_go_on_by_reference(boards: Any, dtype: Any) -> None:
    board = boards(2, [Ring(0, (1,)), Ring(1, (0,))])
    here, there, codec = board.member(0), board.member(1), make_codec()
    array = filled(dtype, (LARGE,))
    writer_of(here, 0, codec).write({"a": array})
    found = reader_of(there, 0).read(0)["a"]
    assert claimed(here) >= array.nbytes  # it *is* the block
    writer_of(there, 1, codec).write([found[100:-100], found[::2]])
    assert there.statistics()["forwards"] == 1
    middle, sparse = reader_of(here, 1).read(0)
    assert middle.tolist() == array[100:-100].tolist()
    assert sparse.tolist() == array[::2].tolist()
    del found, middle, sparse
    assert claimed(here) == claimed(there) == 0


@pytest.mark.parametrize("count", [63, 64, 65, 300])
def test_many_tensors(channel: Channel, count: int) -> None:
    tensors = [torch.full((i % 7 * 400,), float(i)) for i in range(count)]
    found = channel.through(tensors)
    assert all(same_tensor(a, b) for a, b in zip(found, tensors, strict=True))
    for tensor in found:
        tensor += 1
    assert all(same_tensor(a, b + 1) for a, b in zip(found, tensors, strict=True))


# --- tensors ------------------------------------------------------------------------------------

TENSOR_DTYPES = """
    float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool
    complex32 complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz
    float8_e8m0fnu
    """.split()  # noqa: SIM905 - a list of this length is for reading


def tensor_of(dtype: str, shape: tuple[int, ...]) -> Any:
    kind = getattr(torch, dtype)
    count = int(np.prod(shape))
    raw = torch.arange(count * kind.itemsize, dtype=torch.int64) % (2 if dtype == "bool" else 60)
    return raw.to(torch.uint8).view(kind).reshape(shape)


VIEWS = {
    "every second": lambda t: t[::2],
    "transposed": lambda t: t.T,
    "column": lambda t: t[:, 1],
    "expanded": lambda t: t[0].expand(5, -1),
    "channels last": lambda t: t.reshape(1, 2, -1, 6).contiguous(memory_format=torch.channels_last),
    "flipped": lambda t: t.flip(0),
    "slice of storage": lambda t: t[1:3],
    "empty slice": lambda t: t[3:3],
    "one element": lambda t: t[2, 2],
    "conjugated": lambda t: t.to(torch.complex64).mul(1j).conj(),
    "imaginary of conjugated": lambda t: t.to(torch.complex64).mul(1j).conj().imag,
    "detached": lambda t: t.clone().requires_grad_().detach(),
}


@pytest.mark.parametrize("view", VIEWS)
def test_tensors_are_on_the_cpu_whatever_the_default(view: str) -> None:
    tensor = VIEWS[view](torch.arange(36.0).reshape(6, 6))
    empty = torch.empty(0, 3)
    with torch.device("meta"):
        found, nothing = through(tensor), through(empty)
    assert same_tensor(found, tensor)
    assert same_tensor(nothing, empty) and nothing.is_cpu


def test_a_large_tensor_is_the_block_of_its_one_reader(channel: Channel) -> None:
    tensor = torch.arange(LARGE)
    found = channel.through({"t": tensor})["t"]
    assert claimed(channel.sender) >= tensor.nbytes
    found[0] = 77
    assert tensor[0] == 0
    view = found[5:10]
    del found
    assert view.tolist() == [5, 6, 7, 8, 9]
    assert claimed(channel.sender) > 0  # a view holds it
    del view
    assert claimed(channel.sender) == 0


def test_one_array_or_tensor_is_encoded_as_the_pickler_does_it(monkeypatch: Any) -> None:
    """Of the second of a dtype and shape on, neither side uses a pickler."""
    shapes = [*SHAPES[:-2], (1, 3)]  # not the large ones
    arrays = [filled(dtype, shape) for dtype in DTYPES for shape in shapes]
    arrays += [np.frombuffer(bytes(80), "f4"), np.arange(12).reshape(3, 4).T]
    arrays += [np.arange(9)[::2], np.broadcast_to(np.arange(3), (2, 3))]
    arrays += [pickle.loads(pickle.dumps(each)) for each in arrays]  # with other dtype objects
    arrays.append(np.zeros(3, np.dtype("f8", metadata={"unit": "m"})))
    tensors = [tensor_of(dtype, shape) for dtype in TENSOR_DTYPES for shape in shapes]
    tensors += [make(torch.ones(6, 6)) for make in VIEWS.values()]
    tensors += [torch.ones(3).requires_grad_(), torch.ones(2, 3, device="meta")]
    values = [*arrays, *tensors]
    quick = list(map(make_codec().encode, values))
    by_pickler = make_codec()
    monkeypatch.setattr("rcg.serialization.codec.lone_array", lambda _: None)
    monkeypatch.setattr("rcg.serialization.codec.lone_tensor", lambda *_: None)
    for value, (kind, data, buffers, writable) in zip(values, quick, strict=True):
        raw = [bytes(memoryview(each)) for each in buffers or ()]
        wanted = by_pickler.encode(value)
        assert (kind, data, writable) == (wanted[0], wanted[1], wanted[3]), value
        assert raw == [bytes(memoryview(each)) for each in wanted[2] or ()]
        for _ in range(2):
            if not buffers:
                continue
            room = [bytearray(each) for each in raw]
            found, plain = loads(data, buffers=room), pickle.loads(data, buffers=room)
            if isinstance(value, np.ndarray):
                assert same_array(found, plain) and found.flags.writeable == plain.flags.writeable
            else:
                assert same_tensor(found, plain) and found.stride() == plain.stride()


def test_values_arrive_while_another_thread_imports_torch(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    codec = make_codec()
    for value in (np.arange(7.0), [np.arange(7.0)], {"a": 1}):
        _, data, buffers, _ = codec.encode(value)
        found = loads(data, buffers=list(map(memoryview, buffers or ())))
        assert str(found) == str(value)
        assert not is_plain_tensor(value, ("cpu",)) and not is_held_only_by([value], 0)


def test_an_array_over_a_tensor_is_an_array(channel: Channel) -> None:
    tensor = torch.arange(LARGE)
    found = channel.through([tensor.numpy(), tensor])
    assert not found[0].flags.writeable
    found[1] += 1
    assert found[0].tolist() == list(range(LARGE))


# What pickle keeps of tensors: compared with pickle itself.


def place_of(tensor: Any) -> tuple[int, int]:
    """The storage of a tensor, and where in it the tensor begins, in bytes."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset() * tensor.element_size()


def sharing(tensors: list[Any]) -> list[list[int | None]]:
    """For each pair how far they are apart in their storage; None if they have not one.

    Tensors without elements are left out: where one begins, before what travels, means nothing.
    """
    places = [place_of(tensor) for tensor in tensors if tensor.numel()]
    return [[b - d if a == c else None for c, d in places] for a, b in places]


def as_pickle_has_it(found: Any, wanted: Any) -> bool:
    """Whether one is what pickle made the other to be, but for where in its storage it lies."""
    return (
        same_tensor(found, wanted)
        and found.stride() == wanted.stride()
        and found.is_leaf == wanted.is_leaf
        and (found.is_conj(), found.is_neg()) == (wanted.is_conj(), wanted.is_neg())
        and sorted(vars(found)) == sorted(vars(wanted))
        and all(repr(vars(found)[name]) == repr(value) for name, value in vars(wanted).items())
    )


# Torch pickles tensors of these dtypes and does not load them again.
NOT_LOADED = torch.storage._new_dtypes()


class Tagged(torch.Tensor):  # type: ignore[misc]
    """A subclass that keeps attributes."""


@st.composite
def views_of(draw: st.DrawFn, base: Any) -> Any:
    """A tensor in the storage of another one."""
    tensor = base.detach()
    for _ in range(draw(st.integers(0, 3))):
        match draw(
            st.sampled_from(["slice", "turn", "expand", "strides", "bytes", "axis", "flat"])
        ):
            case "slice" if tensor.ndim:
                axis = draw(st.integers(0, tensor.ndim - 1))
                start = draw(st.integers(0, tensor.shape[axis]))
                stop = draw(st.integers(start, tensor.shape[axis]))
                step = draw(st.integers(1, 3))
                tensor = tensor[(*[slice(None)] * axis, slice(start, stop, step))]
            case "turn" if tensor.ndim:
                tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
            case "expand":
                tensor = tensor.expand(draw(st.integers(1, 3)), *tensor.shape)
            case "strides":
                room = tensor.untyped_storage().nbytes() // tensor.element_size()
                start, size, step = (draw(st.integers(0, 4)) for _ in range(3))
                if start + max(size - 1, 0) * step < room:
                    tensor = tensor.as_strided((size, 1), (step, 7), start)
            case "bytes" if tensor.ndim and tensor.stride(-1) == 1 and tensor.is_contiguous():
                tensor = tensor.view(torch.uint8)
            case "axis":
                tensor = tensor.unsqueeze(draw(st.integers(0, tensor.ndim)))
            case "flat" if tensor.is_contiguous():
                tensor = tensor.reshape(-1)
    return tensor


@st.composite
def values_with_tensors(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """A container, and the tensors in it: some in one storage."""
    tensors = []
    sizes = st.sampled_from([0, 1, 2, 5, 12, 60, 3000])
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(TENSOR_DTYPES))
        base = tensor_of(dtype, (draw(sizes),))
        for _ in range(draw(st.integers(1, 3))):
            tensor = draw(views_of(base))
            can_need_grad = tensor.dtype.is_floating_point or tensor.dtype.is_complex
            needs_grad = can_need_grad and draw(st.booleans())
            if tensor.dtype is torch.complex64 and draw(st.booleans()):
                tensor = tensor.conj() if draw(st.booleans()) else tensor.conj().imag
            match draw(st.sampled_from(["plain", "plain", "parameter", "subclass", "buffer"])):
                case "parameter" if can_need_grad:
                    tensor = torch.nn.Parameter(tensor, requires_grad=needs_grad)
                case "subclass" if tensor.dtype not in NOT_LOADED:
                    tensor = tensor.as_subclass(Tagged)
                case "buffer":
                    tensor = torch.nn.Buffer(tensor)
            if needs_grad and tensor.is_leaf:
                tensor.requires_grad_()
            if draw(st.booleans()):
                tensor.tag = draw(plain_values)
            tensors.append(tensor)
    places = [draw(st.sampled_from(["list", "dict", "tuple"])) for _ in tensors]
    value: list[Any] = []
    for tensor, place in zip(tensors, places, strict=True):
        value.append({"list": [tensor], "dict": {"key": tensor}, "tuple": (1, tensor)}[place])
    return value, tensors


def as_pickled(tensor: Any) -> Any:
    """What pickle makes of it; the tensor itself if torch cannot load what it pickles of it."""
    return tensor if tensor.dtype in NOT_LOADED else pickle.loads(pickle.dumps(tensor, 5))


def inner(value: Any) -> list[Any]:
    """The tensors in what ``values_with_tensors`` made."""
    return [part["key"] if isinstance(part, dict) else part[-1] for part in value]


@given(values_with_tensors())
def test_of_tensors_everything_arrives_that_pickle_keeps(made: tuple[Any, list[Any]]) -> None:
    value, tensors = made
    pickled = pickle.dumps(value, 5)
    found, wanted = inner(through(value)), map(as_pickled, tensors)
    for tensor, other in zip(found, wanted, strict=True):
        assert as_pickle_has_it(tensor, other)
    assert sharing(found) == sharing(tensors)  # which pickle alone does not keep
    encoded = SHARED.codec.encode(value)
    assert size_of(encoded) <= len(pickled) + 100 * len(tensors)


def test_a_small_part_of_a_large_storage_travels_alone(channel: Channel) -> None:
    large = torch.zeros(1_000_000, 8)
    size = size_of(channel.codec.encode(large[77]))
    assert size < 1000
    rows = [large[77], large[80]]
    assert size_of(channel.codec.encode(rows)) < 1000
    assert channel.through(rows)[1].stride() == (1,)
    expanded = torch.ones(1).expand(50_000_000)
    assert size_of(channel.codec.encode(expanded)) < 1000
    found = channel.through([expanded])[0]
    assert found.shape == (50_000_000,) and found.stride() == (0,)


def test_an_attribute_may_be_anything_even_the_tensor(channel: Channel) -> None:
    tensor = torch.arange(10)
    tensor.tag = {"part": tensor[2:4], "self": tensor}
    found = channel.through(tensor)
    assert found.tag["self"] is found
    found[2] = 77
    assert found.tag["part"].tolist() == [77, 3]


def test_a_backward_hook_stays_here_with_a_warning_as_with_pickle(channel: Channel) -> None:
    tensor = torch.ones(3, requires_grad=True)
    tensor.register_hook(lambda grad: grad)
    with pytest.warns(UserWarning, match="hook"):
        found = channel.through(tensor)
    assert found.requires_grad and found.tolist() == [1.0] * 3


def strange_tensors() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what is experimental in torch
        rows = [torch.arange(float(n)) for n in (3, 5, 1000)]
        dense = torch.eye(50)
        return {
            "nested": torch.nested.nested_tensor(rows),
            "sparse": dense.to_sparse(),
            "compressed rows": dense.to_sparse_csr(),
            "compressed columns": dense.to_sparse_csc(),
            "quantized": torch.quantize_per_tensor(dense, 0.1, 3, torch.quint8),
            "quantized by channel": torch.quantize_per_channel(
                dense, torch.rand(50) + 1, torch.zeros(50, dtype=torch.int64), 0, torch.qint8
            ),
            "meta": torch.empty(3, 4, device="meta"),
        }


def dense_of(tensor: Any) -> Any:
    if tensor.is_meta:
        return (tensor.shape, tensor.dtype)
    if tensor.is_nested:
        return [row.tolist() for row in tensor.unbind()]
    if tensor.is_quantized:
        return tensor.int_repr().tolist(), tensor.qscheme(), tensor.dequantize().tolist()
    return tensor.to_dense().tolist()


@pytest.mark.parametrize("name", strange_tensors())
def test_tensors_of_every_kind_arrive_as_pickle_has_them(channel: Channel, name: str) -> None:
    tensor = strange_tensors()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = pickle.loads(pickle.dumps(tensor))
        found, again = channel.through([tensor, tensor])
        assert found is again
        assert type(found) is type(wanted) and found.layout == wanted.layout
        assert found.dtype == wanted.dtype
        assert dense_of(found) == dense_of(wanted)


def test_tensors_of_one_storage_share_one_on_the_device_where_they_are_moved(boards: Any) -> None:
    # The device "meta" stands for a GPU: it keeps no numbers, but storages, offsets and strides.
    board = boards(2, [Ring(0, (1,), slot_bytes=16 * 1024)])
    writer = writer_of(board.member(0), 0, make_codec())
    reader = board.member(1).reader(0, 0, loads_to("meta"), Failure)
    whole = torch.arange(12.0).reshape(3, 4)
    part = torch.ones(LARGE)
    empty = torch.zeros(0, 3)
    writer.write([whole, whole[1:, ::2], whole.t(), part[100:200], part[150:300], empty, empty[:]])
    found = reader.read(0)
    assert {each.device.type for each in found} == {"meta"}
    shapes = [(3, 4), (2, 2), (4, 3), (100,), (150,), (0, 3), (0, 3)]
    assert [tuple(each.shape) for each in found] == shapes
    storages = [each.untyped_storage()._cdata for each in found]
    assert storages[0] == storages[1] == storages[2] != storages[3] == storages[4]
    assert (found[1].storage_offset(), found[1].stride()) == (4, (4, 2))
    assert found[4].storage_offset() - found[3].storage_offset() == 50


def test_storages_are_values_too(channel: Channel) -> None:
    tensor = torch.arange(1000)
    storage, typed, found = channel.through([tensor.untyped_storage(), tensor.storage(), tensor])
    assert bytes(storage) == bytes(tensor.untyped_storage())
    assert typed.dtype == torch.int64 and typed.tolist() == tensor.tolist()
    found[0] = 7
    assert storage[0] == 7 and typed[0] == 7


# --- buffers of others --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10, 5000, 1_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, np.array])
@pytest.mark.parametrize("is_by_value", [False, True])
def test_a_buffer_that_was_received_can_be_sent_on(
    boards: Any, kind: Any, size: int, is_by_value: bool
) -> None:
    """And it goes on by reference, like an array."""
    board = boards(2, [Ring(0, (1,)), Ring(1, (0,))])
    here, there, codec = board.member(0), board.member(1), make_codec()
    raw = bytes(i % 251 for i in range(size))
    buffer = pickle.PickleBuffer(np.frombuffer(raw, np.uint8) if kind is np.array else kind(raw))
    extra = (lambda: 1) if is_by_value else 1
    writer_of(here, 0, codec).write([buffer, extra])
    found, _ = reader_of(there, 0).read(0)
    assert bytes(found) == raw
    writer, reader = writer_of(there, 1, codec), reader_of(here, 1)
    writer.write([found, extra])
    writer.write({"a": pickle.PickleBuffer(found)})
    assert bytes(reader.read(0)[0]) == raw
    assert bytes(reader.read(0)["a"]) == raw
    assert there.statistics()["forwards"] == (2 if size > 4096 else 0)
    del found, buffer
    assert claimed(here) == claimed(there) == 0


class Holder:
    """A user's class that pickles a buffer out of band."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __reduce_ex__(self, protocol: int) -> Any:
        return Holder, (pickle.PickleBuffer(self.buffer),)


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_a_users_own_out_of_band_buffers(channel: Channel, size: int) -> None:
    for buffer in (bytes(size), bytearray(size)):
        found = channel.through([Holder(buffer)])[0]
        assert bytes(found.buffer) == bytes(size)
        assert memoryview(found.buffer).readonly


# --- by value, opaque, unpicklable --------------------------------------------------------------


def test_lambdas_and_local_classes() -> None:
    amount = 3

    class Local:
        value = amount

    assert through([lambda number: number + amount])[0](4) == 7
    assert type(through(Local())) is Local
    assert through(Local) is Local


def test_a_string_that_only_looks_like_main_is_a_string() -> None:
    assert through(["__main__", "if __name__ == '__main__':"])[0] == "__main__"
    array = np.frombuffer(b"__main__" * 5000, np.uint8)
    assert same_array(through([array, "__main__"])[0], array)
    assert same_tensor(through([torch.ones(5), "__main__"])[0], torch.ones(5))


def test_buffers_stay_out_of_band_in_values_pickled_by_value(channel: Channel) -> None:
    array, tensor = np.arange(LARGE), torch.arange(LARGE)
    function, found, other = channel.through([lambda: 5, array, tensor])
    assert function() == 5 and same_array(found, array) and same_tensor(other, tensor)
    assert not found.flags.writeable
    other += 1
    assert claimed(channel.sender) >= array.nbytes + tensor.nbytes
    assert channel.sender.statistics()["copies"] == 2


class OnlyByValue:
    """Stands for what the cluster counts: it may be written by the second pickler alone."""

    def __reduce__(self) -> Any:
        return OnlyByValue, ()


def test_opaque_types_are_left_to_the_clusters_pickler() -> None:
    seen: list[str] = []

    class Counting(cluster.by_value_pickler()):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is OnlyByValue:
                seen.append("met")
            return super().reducer_override(obj)

    codec = Codec(Counting, [OnlyByValue])
    channel = Channel(codec=codec)
    assert type(channel.through([1, {"a": OnlyByValue()}])[1]["a"]) is OnlyByValue
    assert seen == ["met"]
    assert channel.through([1, 2]) == [1, 2]
    assert seen == ["met"]
    channel.board.close()


def test_modules_registered_by_value_are_written_by_value() -> None:
    registered: list[str] = []
    codec = make_codec(registered_by_value=lambda: registered)
    by_name = codec.encode([Holder, np.arange(3)])
    cloudpickle = sys.modules[cluster.by_value_pickler().__module__]
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    registered.append(__name__)
    try:
        by_value = codec.encode([Holder, np.arange(3)])
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        registered.clear()
    assert len(by_value[1]) > len(by_name[1]) + 200
    assert codec.encode([Holder, np.arange(3)])[1] == by_name[1]


class Late:
    pass


def test_reducers_that_are_registered_later_count() -> None:
    codec = make_codec()
    codec.encode([1])
    copyreg.pickle(Late, lambda _: (str, ("late",)))
    try:
        _, data, _, _ = codec.encode([Late()])
    finally:
        del copyreg.dispatch_table[Late]
    assert pickle.loads(data) == ["late"]


class Lock:
    def __init__(self) -> None:
        self.ok = 1
        self.lock = threading.Lock()


class Deep:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("I stay here")


@pytest.mark.parametrize(
    ("value", "where", "what"),
    [
        ({"a": [1, 2, 3, threading.Lock()]}, "value['a'][3]", "_thread.lock"),
        (threading.Lock(), "value", "_thread.lock"),
        ([1, (2, Lock())], "value[1][1].lock", "_thread.lock"),
        ({1: {"x": {Refuses()}}}, "value[1]['x']{...}", "I stay here"),
        ([np.arange(3), (i for i in range(3))], "value[1]", "generator"),
        ({"a": Deep(threading.Lock())}, "value['a']", "Deep"),
        ({"fine": 1, "wrong": [lambda: 1, Refuses()]}, "value['wrong'][1]", "Refuses"),
        (np.array([1, threading.Lock()], dtype=object), "value", "numpy.ndarray"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_pickle_is_named(channel: Channel, value: Any, where: str, what: str) -> None:
    with pytest.raises(UnpicklableError) as caught:
        channel.through(value)
    assert caught.value.where == where
    assert str(caught.value).startswith(f"{where} cannot be sent to another process")
    assert what in str(caught.value)
    assert caught.value.__cause__ is not None
    assert channel.through("the channel works") == "the channel works"
    assert claimed(channel.sender) == 0


def test_a_tensor_that_stands_for_numbers_does_not_pickle_and_is_named() -> None:
    """They say that they have a storage, and its address is 0."""
    made = [
        torch._efficientzerotensor(3),
        torch._efficientzerotensor(2, 3).t(),
        torch._efficientzerotensor(4)[1:],
        torch._to_functional_tensor(torch.ones(3)),
        torch._to_functional_tensor(torch.ones(3))[1:],
    ]

    def refused(tensor: Any) -> Any:
        assert not is_plain_tensor(tensor, ("cpu",))
        for value in (tensor, [tensor]):
            for staying in ((), {"cpu"}):
                with pytest.raises(UnpicklableError):
                    make_codec().encode(value, None, staying)
        return tensor

    for each in made:
        refused(each)
    torch.vmap(refused)(torch.ones(2, 3))
    torch.func.grad(lambda tensor: refused(tensor.detach()).sum())(torch.ones(3))
    torch.func.functionalize(refused)(torch.ones(3))
    assert torch.equal(through(torch.empty(0, 3)), torch.empty(0, 3))


def test_a_tensor_whose_memory_was_freed_is_named_before_it_is_read() -> None:
    made = {
        "whole": torch.ones(6),
        "transposed": torch.ones(2, 3).t(),
        "part": torch.ones(60)[6:10],
        "parameter": torch.nn.Parameter(torch.ones(6)),
        "conjugate": torch.ones(6, dtype=torch.complex64).conj(),
        "half": torch.ones(6, dtype=torch.bfloat16),
        "quantized": torch.quantize_per_tensor(torch.ones(6), 1.0, 0, torch.qint8),
        "sparse": torch.ones(6).to_sparse(),
    }
    for name, tensor in made.items():
        inner = tensor._values() if name == "sparse" else tensor
        for left in (inner.untyped_storage().nbytes() * 5 // 60, 0):
            inner.untyped_storage().resize_(left)
            for staying in ((), {"cpu"}):
                with pytest.raises(UnpicklableError, match="of its storage, which has") as caught:
                    make_codec().encode({name: [tensor]}, None, staying)
                assert caught.value.where == f"value['{name}'][0]", name
                assert f"which has {left}: it was freed, or made smaller" in str(caught.value)


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("kind", ENDS)
def test_what_ends_programs_is_why_a_value_does_not_pickle(kind: str, way: str) -> None:
    value = {"a": [1, RaisesWhenDumped(kind, way)]}
    with pytest.raises(UnpicklableError, match=f"{kind}") as caught:
        in_thread(lambda: make_codec().encode(value))
    assert caught.value.where == "value['a'][1]"


def test_ctrl_c_while_a_value_is_pickled_is_ctrl_c() -> None:
    raising = RaisesWhenDumped("KeyboardInterrupt", "__reduce__")
    for value in (raising, [lambda: 1, InterruptsOnce()]):
        with pytest.raises(KeyboardInterrupt):
            make_codec().encode(value)


class InterruptsOnce:
    """Stands for a signal that comes while it is pickled, and whose handler raises."""

    def __init__(self, kind: type[BaseException] = KeyboardInterrupt, at: int = 1) -> None:
        self.kind, self.at, self.times = kind, at, 0

    def __reduce__(self) -> Any:
        self.times += 1
        if self.times == self.at:
            raise self.kind("a signal")
        return str, ("through",)


@pytest.mark.parametrize("at", [1, 2])  # by the first pickler, and by the second
def test_a_signal_whose_handler_exits_is_no_property_of_the_value(at: int) -> None:
    codec = make_codec()
    value = [InterruptsOnce(SystemExit, at), lambda: 1]
    with pytest.raises(SystemExit, match="a signal"):
        codec.encode(value)
    assert pickle.loads(codec.encode(value)[1])[0] == "through"


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_contains_what_pickling_raised(name: str) -> None:
    class Raises:
        def __reduce__(self) -> Any:
            raise make_error(name)

    value = {1: Raises()}
    with pytest.raises(UnpicklableError) as caught:
        in_thread(lambda: make_codec().encode(value))
    assert caught.value.where == "value[1]"
    assert MARK in str(caught.value) or name in SILENT


class StrangeKey:
    def __repr__(self) -> str:
        raise SystemExit("hostile")


def test_the_way_to_a_part_is_short_and_known_whatever_its_keys() -> None:
    with pytest.raises(UnpicklableError) as caught:
        through({"k" * 1_000_000: {StrangeKey(): threading.Lock()}})
    assert caught.value.where and len(caught.value.where) < 200
    assert caught.value.where.endswith("[...]")


def test_what_was_pickled_in_vain_is_let_go_of_at_once() -> None:
    """Without the garbage collector: it may be large."""
    codec = make_codec()
    array, tensor = np.arange(LARGE), torch.arange(LARGE)
    seen = weakref.ref(array), weakref.ref(tensor)
    gc.disable()
    try:
        for value in ([array, tensor, tensor[3:]], [array, tensor[1:], lambda: 1]):
            codec.encode(value)
        with pytest.raises(UnpicklableError):
            codec.encode([array, tensor[2:], tensor, threading.Lock()])
        del array, tensor, value
        assert [reference() for reference in seen] == [None, None]
    finally:
        gc.enable()


def test_a_value_that_contains_itself_and_does_not_pickle() -> None:
    cyclic: list[Any] = [1]
    cyclic.append(cyclic)
    cyclic.append(threading.Lock())
    with pytest.raises(UnpicklableError) as caught:
        through(cyclic)
    assert caught.value.where and caught.value.where.startswith("value[")


def test_a_value_too_deep_to_pickle_is_an_error_and_no_crash() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UnpicklableError, match="recursion"):
        through(deep)


def test_nothing_is_held_after_all_of_this() -> None:
    gc.collect()
    assert claimed(SHARED.sender) == 0
    assert SHARED.sender.statistics()["used_bytes"] <= _native.MIN_BLOCK * 4096


# --- tensors in tensors


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Two devices of a group that exists in name only."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield init_device_mesh("cpu", (2,), mesh_dim_names=("rank",))
    finally:
        torch.distributed.destroy_process_group()


def test_of_a_distributed_tensor_only_the_local_one_is_moved(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    local = torch.arange(6.0).view(2, 3)
    value = {
        "weight": DTensor.from_local(local, mesh, [Shard(0)]),
        "bias": DTensor.from_local(local[0], mesh, [Shard(0)]),
    }
    described: list[Any] = []
    make_codec().encode(value, described)
    assert [shape for _, shape, *_ in described] == [(2, 3), (3,)]
    found = through(value)
    for name, each in found.items():
        assert type(each) is DTensor and each.shape == value[name].shape
        assert each.placements == (Shard(0),) and each.device_mesh == mesh
        assert each.device_mesh.mesh_dim_names == ("rank",)
        assert torch.equal(each.to_local(), value[name].to_local())
    assert found["weight"].device_mesh is found["bias"].device_mesh


def test_a_dictionary_of_tensors_keeps_its_batch_and_names() -> None:
    tensordict = pytest.importorskip("tensordict")
    value = tensordict.TensorDict(
        {"a": torch.arange(6.0), "in": {"b": torch.ones(6, 2)}}, batch_size=[6], names=["time"]
    )
    described: list[Any] = []
    make_codec().encode(value, described)
    assert [shape for _, shape, *_ in described] == [(6,), (6, 2)]
    found = through(value.lock_())
    assert type(found) is tensordict.TensorDict and found.is_locked
    assert (found.batch_size, found.names) == (value.batch_size, ["time"])
    assert (found == value).all() and torch.equal(found["in", "b"], value["in", "b"])
