# SPDX-License-Identifier: Apache-2.0
"""Collectives in methods, among threads: any tensors at each member, any failure at one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.errors import TensorMismatch
from rcg.rdt import collectives
from rcg.testing import LocalCommunicator, LocalStore, Membership
from tests.harness.peers import GUARD_S

torch = pytest.importorskip("torch")

COUNT = 6
FILL = 5000  # beside the tensors
_this = threading.local()


class Scarce(LocalCommunicator):
    """A communicator for which there may be no memory."""

    has_memory = True

    def reserve(self, operation: str, tensors: Sequence[Any], op: Any = None) -> None:
        if not self.has_memory:
            raise MemoryError("none is left")


class End:
    """One member's end of the group."""

    def __init__(self, communicator: Scarce) -> None:
        self.communicator = communicator

    def run(self, call: Callable[[Scarce], Any]) -> Any:
        return call(self.communicator)

    def abort(self, why: str) -> None:
        self.communicator.abort(why)


@pytest.fixture(scope="module", autouse=True)
def members() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        groups = SimpleNamespace(all_members=lambda name, make: _this.end)
        patch.setattr(collectives, "existing", lambda: SimpleNamespace(groups=groups))
        yield


def together(size: int, run: Callable[[int, Scarce], Any]) -> list[Any]:
    """Return what each of some members returns or raises."""
    store, found = LocalStore(), [None] * size

    def member(rank: int) -> None:
        membership = Membership("g", rank, tuple(map(str, range(size))), store, GUARD_S)
        _this.end = End(Scarce.open(membership))
        try:
            found[rank] = run(rank, _this.end.communicator)
        except Exception as error:  # noqa: BLE001 - checked below
            found[rank] = error

    threads = [threading.Thread(target=member, args=(rank,), daemon=True) for rank in range(size)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(GUARD_S)
        assert not each.is_alive(), "a member waits for ever"
    return found


# --- tensors of six numbers, as parts of others

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda base: base[:COUNT],
    "steps": lambda base: base[: 2 * COUNT : 2],
    "column": lambda base: base[:24].view(COUNT, 4)[:, 1],
    "transposed": lambda base: base[:COUNT].view(2, 3).t(),
    "block": lambda base: base[:24].view(4, 6)[1:, 1:5:2],
    "array": lambda base: base.numpy()[1:24:4],
    "parameter": lambda base: torch.nn.Parameter(base[:COUNT], requires_grad=False),
    "conjugate": lambda base: base[: 2 * COUNT : 2].conj(),
    "negative": lambda base: torch._neg_view(base[:COUNT]),
}


class Raising(torch.Tensor):  # type: ignore[name-defined,misc]
    """A user's tensor, of which nothing works."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise ArithmeticError("the user's")


def freed() -> Any:
    tensor = torch.ones(COUNT)
    tensor.untyped_storage().resize_(4)
    return tensor


WRONG: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "word": (lambda: "a word", TypeError),
    "sparse": (lambda: torch.eye(COUNT).to_sparse(), ValueError),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(COUNT)], layout=torch.jagged),
        ValueError,
    ),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(COUNT), 1.0, 0, torch.qint8),
        ValueError,
    ),
    "freed": (freed, ValueError),
    "meta": (lambda: torch.ones(COUNT, device="meta"), ValueError),
    "raising": (lambda: Raising(torch.ones(COUNT)), ArithmeticError),
    "frozen": (lambda: np.broadcast_to(np.ones(1, np.float32), COUNT), ValueError),
    "other size": (lambda: torch.ones(COUNT + 1), ValueError),
    "other dtype": (lambda: torch.ones(COUNT, dtype=torch.int16), ValueError),
}
LISTS = ("list raises", "short list")
BREAKS = {  # what else may be wrong, by the kind
    "allreduce": ("op", "memory"),
    "broadcast": ("rank",),
    "reduce": ("op", "rank", "memory"),
    "allgather": (*LISTS, "one buffer", "overlapping", "memory"),
    "reducescatter": (*LISTS, "op", "memory"),
}


def numbers(dtype: Any, rank: int, at: int = 0) -> Any:
    return (torch.arange(COUNT) + 10 * rank + 100 * at + 1).to(dtype)


def values_of(found: Any) -> Any:
    """Return the elements of a tensor or an array, as they are read."""
    return torch.as_tensor(found).detach().resolve_conj().resolve_neg().reshape(-1).clone()


def wanted(kind: str, dtype: Any, rank: int, size: int) -> list[Any]:
    """Return what the tensor, or each of the list, has in the end."""
    own = [numbers(dtype, each) for each in range(size)]
    if kind == "allreduce":
        return [sum(own)]
    if kind == "broadcast":
        return [own[size - 1]]
    if kind == "reduce":
        return [sum(own) if rank == size - 1 else own[rank]]
    if kind == "allgather":
        return own
    return [sum(numbers(dtype, each, rank) for each in range(size))]


@given(
    kind=st.sampled_from(list(BREAKS)),
    size=st.integers(2, 3),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.complex64]),
    as_generator=st.booleans(),
    data=st.data(),
)
def test_every_collective_gives_the_right_numbers_or_raises_at_every_member(
    kind: str, size: int, dtype: Any, as_generator: bool, data: st.DataObject
) -> None:
    broken = data.draw(st.none() | st.sampled_from([*WRONG, *BREAKS[kind]]), label="broken")
    bad = data.draw(st.integers(0, size - 1), label="the member at which it is broken")
    names = [each for each in LAYOUTS if dtype.is_complex or each != "conjugate"]
    layouts = data.draw(
        st.lists(st.sampled_from(names), min_size=size * size, max_size=size * size)
    )

    def run(rank: int, communicator: Scarce) -> Any:
        bases: list[Any] = []

        def made(layout: str, values: Any) -> Any:
            bases.append(torch.full((40,), FILL).to(dtype))
            found = LAYOUTS[layout](bases[-1])
            target = torch.as_tensor(found).detach()
            target.copy_(values.view(target.shape))
            return found

        mine = layouts[rank * size : (rank + 1) * size]
        is_bad = broken is not None and rank == bad
        tensor, parts = made(mine[0], numbers(dtype, rank)), []
        if kind == "allgather":
            parts = [made(each, numbers(dtype, -2)) for each in mine]
        elif kind == "reducescatter":
            parts = [made(each, numbers(dtype, rank, at)) for at, each in enumerate(mine)]
        results = parts if kind == "allgather" else [tensor]
        before = [each.clone() for each in bases]
        op, root, several = collectives.ReduceOp.SUM, size - 1, list(parts)
        if is_bad:
            if broken in WRONG:
                tensor = WRONG[broken][0]()
            communicator.has_memory = broken != "memory"
            op = "sum" if broken == "op" else op
            root = size if broken == "rank" else root
            if broken == "short list":
                several = several[1:]
            elif broken == "one buffer":
                several = [several[0]] * size
            elif broken == "overlapping":
                several = list(torch.zeros(COUNT + size).to(dtype).unfold(0, COUNT, 1)[:size])

        def listed() -> Iterator[Any]:
            yield from several[:1]
            if is_bad and broken == "list raises":
                raise KeyError("the user's")
            yield from several[1:]

        lazy = listed() if as_generator or (is_bad and broken == "list raises") else several
        calls: dict[str, Callable[[], None]] = {
            "allreduce": lambda: collectives.allreduce(tensor, op=op),
            "broadcast": lambda: collectives.broadcast(tensor, root),
            "reduce": lambda: collectives.reduce(tensor, root, op=op),
            "allgather": lambda: collectives.allgather(lazy, tensor),
            "reducescatter": lambda: collectives.reducescatter(tensor, lazy, op=op),
        }
        problem = None
        try:
            calls[kind]()
        except Exception as error:  # noqa: BLE001 - checked below
            problem = error
        is_same = [bool((a == b).all()) for a, b in zip(bases, before, strict=True)]
        communicator.has_memory = True
        after = torch.ones(2)
        collectives.allreduce(after)
        return problem, [values_of(each) for each in results], is_same, bases, after.tolist()

    for rank, found in enumerate(together(size, run)):
        assert not isinstance(found, Exception), found
        problem, results, is_same, bases, after = found
        assert after == [size, size]
        if broken is None:
            assert problem is None, problem
            for result, right in zip(results, wanted(kind, dtype, rank, size), strict=True):
                assert torch.equal(result, right)
            assert all(int((each == FILL).sum()) == 40 - COUNT for each in bases)
            continue
        assert all(is_same)
        others = {"list raises": KeyError, "memory": MemoryError}
        own = WRONG[broken][1] if broken in WRONG else others.get(broken, ValueError)
        assert isinstance(problem, own if rank == bad else TensorMismatch), problem
        if rank != bad and not broken.startswith("other"):
            assert f"rank {bad}: nothing, because of " in str(problem)


# --- targets that share memory

PLACES = 60  # numbers in the memory in which targets lie
DIMENSIONS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=3)


@given(st.lists(st.tuples(st.integers(0, 8), DIMENSIONS), min_size=1, max_size=3))
def test_targets_are_refused_if_an_element_has_two_results(targets) -> None:
    """The oracle lists the places of all elements. Strides that interleave may be refused."""
    base, taken = torch.zeros(PLACES), list[int]()
    tensors, is_plain = [], True
    for start, dimensions in targets:
        shape, strides = [[each[at] for each in dimensions] for at in (0, 1)]
        tensors.append(base.as_strided(shape, strides, start))
        places = [start]
        for count, step in sorted(dimensions, key=lambda each: each[1]):
            is_plain = is_plain and (count == 1 or step > max(places) - start)
            places = [place + number * step for place in places for number in range(count)]
        taken += places
    is_shared = len(set(taken)) < len(taken)
    try:
        collectives._check_apart("tensors", tensors)
    except ValueError:
        assert is_shared or not is_plain
    else:
        assert not is_shared
