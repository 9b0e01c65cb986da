# SPDX-License-Identifier: Apache-2.0
"""``rcg.empty``: which arrays lie in a graph's memory, what they look like, and what it refuses."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rcg
from rcg import _native
from rcg.runtime.codec import make_codec
from rcg.runtime.node.arrays import empty_in, here
from tests.harness.board import Board, Ring, claimed, reader_of, writer_of

torch = pytest.importorskip("torch")

SMALL = _native.INLINE_BUFFER


class Pair:
    """A sender and a receiver, and values that go from one to the other."""

    def __init__(self) -> None:
        self.board = Board(2, (Ring(slots=8),), cap_bytes=1 << 26)
        self.sender, self.receiver = self.board.member(0), self.board.member(1)
        codec = make_codec()
        self._writer, self._reader = writer_of(self.sender, 0, codec), reader_of(self.receiver, 0)

    def empty(self, shape: Any, dtype: Any = float) -> Any:
        return empty_in(self.sender.loan, shape, dtype)

    def send(self, value: Any) -> Any:
        self._writer.write(value)
        return self._reader.read(0)

    def counts(self) -> tuple[int, int]:
        """How many buffers were copied, and how many were sent without."""
        found = self.sender.statistics()
        return found["copies"], found["forwards"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.board.close()


SHAPES = [
    4096,
    (4096,),
    [64, 64],
    (3, 5, 400),
    np.int64(5000),
    (np.int32(70), np.uint8(80)),
    np.array([70, 80]),
    torch.Size([70, 80]),
]
DTYPES = [
    None,
    float,
    "float32",
    np.int8,
    bool,
    complex,
    ">i4",
    "<f2",
    "datetime64[ms]",
    "timedelta64[D]",
    "U7",
    "S3",
    "V5",
    [("a", "<i4"), ("b", ">f8", (2,)), ("c", "M8[s]")],
    (float, (3,)),
    np.longdouble,
]


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_it_is_the_array_that_numpy_would_make(pair: Pair, shape: Any) -> None:
    for dtype in DTYPES:
        found, wanted = pair.empty(shape, dtype), np.empty(shape, dtype)
        assert type(found) is np.ndarray, dtype
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert found.strides == wanted.strides, dtype
        assert found.flags.writeable and found.flags.aligned and found.flags.c_contiguous, dtype
        assert type(found.base) is (_native.Loan if wanted.nbytes > SMALL else type(None)), dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_it_is_sent_without_a_copy_and_read_only_from_then_on(pair: Pair, dtype: Any) -> None:
    array = pair.empty((90, 100), dtype)
    array.reshape(-1).view(np.uint8)[:] = np.random.default_rng(1).integers(0, 2, array.nbytes)
    arrived = pair.send(array)
    assert pair.counts() == (0, 1)
    assert not array.flags.writeable and not arrived.flags.writeable
    assert arrived.dtype == array.dtype and arrived.tobytes() == array.tobytes()
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    del array
    assert claimed(pair.sender)
    del arrived
    assert not claimed(pair.sender)


VIEWS = {
    "rows": lambda a: a[10:],
    "of a view": lambda a: a[5:][5:-5],
    "transposed": lambda a: a.T,
    "flat": lambda a: a.reshape(-1),
    "as bytes": lambda a: a.view(np.uint8),
    "in a dict": lambda a: {"deep": [a, "beside"]},
    "in an object": lambda a: Holder(a[1:]),
    "twice": lambda a: (a, a[20:]),
    "memoryview": lambda a: np.asarray(memoryview(a))[3:],
}


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


class Named(np.ndarray):
    """As users' subclasses do."""


@pytest.mark.parametrize("way", VIEWS)
def test_sending_a_view_has_the_array_be_read_only(pair: Pair, way: str) -> None:
    array = pair.empty((100, 80))
    array[:] = 7
    pair.send(VIEWS[way](array))
    copies, forwards = pair.counts()
    assert not copies and forwards >= 1
    assert not array.flags.writeable


def test_what_is_copied_stays_writable(pair: Pair) -> None:
    array = pair.empty((100, 80))
    pair.send(array[:, 3])  # not contiguous
    pair.send(array[:2])  # small
    pair.send(array[0, 0])
    pair.send(array.view(Named))  # NumPy has its bytes in the pickle
    assert array.flags.writeable
    array[:] = 1


def test_what_travels_beside_it_stays_writable(pair: Pair) -> None:
    before = pair.empty(10_000)
    del before  # the next copy is made where it lay
    beside, array = np.zeros(10_000), pair.empty(20_000)
    pair.send([array, beside])
    assert pair.counts() == (1, 1)
    assert not array.flags.writeable
    beside[:] = 1


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (0, float),
        ((100, 0, 9), "i4"),
        ((), float),
        (SMALL, "u1"),
        (10_000, object),
        (10_000, [("a", object), ("b", int)]),
        (10_000, "V0"),
        ((1 << 26) + 1, "u1"),
    ],
    ids=repr,
)
def test_what_has_no_use_in_shared_memory_is_an_ordinary_array(
    pair: Pair, shape: Any, dtype: Any
) -> None:
    found = pair.empty(shape, dtype)
    assert found.base is None and found.shape == np.empty(shape, dtype).shape
    assert found.dtype == np.empty(1, dtype).dtype and not claimed(pair.sender)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (-1, float),
        ((5000, -2), float),
        ((-5000, -5000), float),
        (1.5, float),
        ("ab", float),
        ((3, "x"), float),
        ({5000}, float),
        ((n for n in (70, 80)), float),
        ((1,) * 65 + (9000,), float),
        (1 << 70, float),
        ((1 << 62, 1 << 62), float),
        ((1 << 40, 1 << 12), "u1"),
        (5000, "no such"),
        (5000, 3.5),
        (5000, [("a",)]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_it_refuses_what_numpy_refuses_in_the_same_way(pair: Pair, shape: Any, dtype: Any) -> None:
    with pytest.raises(Exception) as wanted:
        np.empty(shape, dtype)
    with pytest.raises(wanted.type):
        pair.empty(shape, dtype)
    assert not claimed(pair.sender)


def test_without_memory_it_is_an_ordinary_array(pair: Pair) -> None:
    held = []
    while (array := pair.empty(1 << 20)).base is not None:
        held.append(array)
    assert len(held) == 5  # more than half of the memory
    array[:] = 1
    assert pair.send(array)[0] == 1


# --- where it is called


def test_outside_a_graph_it_is_an_ordinary_array() -> None:
    assert rcg.empty((100, 100)).base is None
    assert rcg.empty((100, 100)).dtype == float
    assert type(rcg.empty((100, 100), torch.float16)) is torch.Tensor


def test_a_context_says_which_memory(pair: Pair) -> None:
    token = here.set(pair.sender.loan)
    found: list[Any] = []
    alone = threading.Thread(target=lambda: found.append(rcg.empty(5000)))
    copied = threading.Thread(
        target=contextvars.copy_context().run, args=(lambda: found.append(rcg.empty(5000)),)
    )
    for thread in (alone, copied):
        thread.start()
        thread.join()
    assert [type(array.base) for array in found] == [type(None), _native.Loan]
    assert type(rcg.empty(5000).base) is _native.Loan
    here.reset(token)


# --- tensors


TENSORS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", TENSORS, ids=str)
@pytest.mark.parametrize("shape", [6000, (75, 80), [75, 80], torch.Size([2, 3, 1000])], ids=repr)
def test_it_is_the_tensor_that_torch_would_make(pair: Pair, shape: Any, dtype: Any) -> None:
    found, wanted = pair.empty(shape, dtype), torch.empty(shape, dtype=dtype)
    assert (found.shape, found.dtype, found.stride()) == (
        wanted.shape,
        wanted.dtype,
        wanted.stride(),
    )
    assert bool(claimed(pair.sender)) is (wanted.nbytes > SMALL)
    bits = found.view(torch.uint8)
    bits.copy_(torch.randint(0, 2, bits.shape, dtype=torch.uint8))
    arrived = pair.send(found)
    assert torch.equal(arrived.view(torch.uint8), bits)
    arrived.view(torch.uint8)[:] = 9  # no other process sees it
    assert bits.max() <= 1


def test_parts_of_one_tensor_arrive_as_parts_of_one(pair: Pair) -> None:
    whole = pair.empty((100, 100), torch.float32)
    whole.copy_(torch.arange(10_000).view(100, 100))
    first, second, turned = pair.send([whole[10:], whole[50:, :7], whole.T])
    assert pair.counts()[0] == 0
    assert torch.equal(first, whole[10:]) and torch.equal(turned, whole.T)
    first += 1
    assert torch.equal(second, whole[50:, :7] + 1) and torch.equal(turned.T[10:], first)
    assert whole[10, 0] == 1000


def test_a_tensor_and_an_array_in_one_memory(pair: Pair) -> None:
    array = pair.empty((100, 100), np.float32)
    array[:] = 5
    tensor, same = pair.send((torch.from_numpy(array), array))
    tensor += 1
    assert same.max() == 5 and array.max() == 5
    assert not array.flags.writeable


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_quantized_tensors_are_ordinary(pair: Pair, dtype: Any) -> None:
    assert pair.empty(10_000, dtype).dtype is dtype
    assert not claimed(pair.sender)


@pytest.mark.parametrize(
    "shape", [-1, (5000, -2), 1.5, "ab", None, (3, "x"), (1 << 62, 4)], ids=repr
)
def test_it_refuses_what_torch_refuses_in_the_same_way(pair: Pair, shape: Any) -> None:
    with pytest.raises(Exception) as wanted:
        torch.empty(shape, dtype=torch.float32)
    with pytest.raises(wanted.type):
        pair.empty(shape, torch.float32)


def test_a_tensor_is_on_the_cpu_whatever_the_default(pair: Pair) -> None:
    with torch.device("meta"):
        assert pair.empty(10_000, torch.float32).is_cpu
        assert pair.empty(10, torch.float32).is_cpu
