# SPDX-License-Identifier: Apache-2.0
"""The steps of collectives: every rank is a thread, the rings are real, the communicator local."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rcg.channels.base import GraphEnded, TransferFailed
from rcg.comm import Membership
from rcg.errors import TensorMismatch
from rcg.ir.channels import ChannelSpec
from rcg.ir.ids import DRIVER
from rcg.ir.ops import COLLECTIVES
from rcg.runtime.actor import exchanges
from rcg.runtime.actor.collectives import collective_step
from rcg.runtime.failure import Origin, capture, to_exception
from rcg.runtime.node.memory import Segments
from rcg.runtime.node.node import Node
from rcg.serialization import Failure
from rcg.testing import LocalCommunicator, LocalStore
from tests.harness.board import until
from tests.harness.places import OneGroup, closing, place_of, plan_without_ops
from tests.harness.rays_style import Distorting, distorting

torch = pytest.importorskip("torch")

GUARD_S = 20
OP = 5  # the index of the collective in every program
ORIGIN = Origin("a0 (Worker)", "", "Worker()", 1, "")


class Ranks:
    """A collective: one thread, one node and one program of one op for each rank."""

    def __init__(
        self,
        kind: str,
        size: int,
        reduction: str | None,
        root: int | None,
        count: int,
        last_used: Collection[int],
        communicator: type[LocalCommunicator] = LocalCommunicator,
    ) -> None:
        names = tuple(f"a{i}" for i in range(size))
        channels = tuple(
            ChannelSpec(f"c{i}", name, tuple(n for n in names if n != name), "status", (i,), 4)
            for i, name in enumerate(names if size > 1 else ())
        )
        ring = ChannelSpec("c0", DRIVER, ("a0",), "ring", (0,), 4)
        plan = plan_without_ops(names, *(channels or (ring,)))
        self.segments = Segments(plan, cap_bytes=1 << 26)
        self.threads = ThreadPoolExecutor(size)
        store = LocalStore()
        places = [Membership("g0", rank, names, store, GUARD_S) for rank in range(size)]
        self.communicators = list(self.threads.map(communicator.open, places))
        self.nodes = []
        self.slots: list[list[Any]] = [[None] * (2 * count) for _ in names]
        self.loops = [SimpleNamespace(execution=0, origin=ORIGIN) for _ in names]
        self.steps = []
        by_id = {channel.id: channel for channel in channels}
        for rank, name in enumerate(names):
            groups = OneGroup(names, self.communicators[rank])
            node = place_of(self.segments, name, groups=groups)
            self.nodes.append(node)
            op = COLLECTIVES[kind](
                tuple(range(count)),
                reduction,
                root,
                "g0",
                (f"c{rank}",) if size > 1 else (),
                tuple(f"c{other}" for other in range(size) if other != rank),
                tuple(range(count, 2 * count)),
                rank,
            )
            self.steps.append(
                collective_step(OP, op, self.slots[rank], self.loops[rank], node, by_id, last_used)
            )
        self.count = count

    def start(self, *values: Any) -> list[Future[None]]:
        """Run the step of every rank with its value, or with its values."""
        for slots, value in zip(self.slots, values, strict=True):
            slots[: self.count] = list(value) if self.count > 1 else [value]
        return [self.threads.submit(step) for step in self.steps]

    def run(self, *values: Any) -> list[Any]:
        """Return the result of each rank, or its results."""
        for each in self.start(*values):
            each.result(GUARD_S)
        for loop in self.loops:
            loop.execution += 1
        found = [slots[self.count :] for slots in self.slots]
        return found if self.count > 1 else [each for (each,) in found]

    def run_slots(self) -> None:
        """Run the step of every rank with what its slots hold."""
        for each in [self.threads.submit(step) for step in self.steps]:
            each.result(GUARD_S)

    def close(self) -> None:
        self.nodes[0].end_closed()
        for communicator in self.communicators:
            communicator.abort("the test is over")
        self.threads.shutdown()
        self.segments.close()


Make = Callable[..., Ranks]


@pytest.fixture
def ranks() -> Iterator[Make]:
    def make(
        kind: str,
        size: int = 3,
        reduction: str | None = None,
        root: int | None = None,
        count: int = 1,
        *,
        is_last_use: bool = True,
        communicator: type[LocalCommunicator] = LocalCommunicator,
    ) -> Ranks:
        reduces = kind in ("allreduce", "reducescatter", "reduce")
        has_root = kind in ("broadcast", "reduce", "gather")
        return Ranks(
            kind,
            size,
            reduction or ("sum" if reduces else None),
            root if root is not None else (0 if has_root else None),
            count,
            range(count if is_last_use else 0),
            communicator,
        )

    yield from closing(make)


def values_of(size: int, shape: tuple[int, ...] = (6, 2), dtype: Any = None) -> list[Any]:
    dtype = dtype or torch.float32
    return [torch.randint(1, 5, shape).to(dtype) for _ in range(size)]


def error_of(failure: object) -> Exception:
    assert type(failure) is Failure
    found = to_exception(failure)
    assert isinstance(found, Exception)
    return found


KINDS = list(COLLECTIVES)
SIZES = [1, 2, 3]


def expected(kind: str, values: list[Any], root: int = 1) -> list[Any]:
    size = len(values)
    total = torch.stack(values).sum(0)
    root = min(root, size - 1)
    match kind:
        case "allreduce":
            return [total] * size
        case "allgather":
            return [torch.cat(values)] * size
        case "reducescatter":
            return list(total.split(len(total) // size))
        case "broadcast":
            return [values[root]] * size
        case "reduce":
            return [total if rank == root else None for rank in range(size)]
    return [torch.cat(values) if rank == root else None for rank in range(size)]


def assert_equal(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None), (one, other)
        assert one is None or torch.equal(one, other), (one, other)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_what_torch_gives_again_and_again(ranks, kind, size):
    root = min(1, size - 1) if kind in ("broadcast", "reduce", "gather") else None
    group = ranks(kind, size, root=root)
    for _ in range(3):
        values = values_of(size)
        copies = [value.clone() for value in values]
        found = group.run(*values)
        assert_equal(found, expected(kind, values))
        assert_equal(values, copies)  # inputs are not written to
        for result in found:
            if result is not None:
                result.fill_(-7)
        assert_equal(values, copies)  # nor are they the results


@pytest.mark.parametrize("reduction", ["sum", "product", "max", "min", "avg"])
def test_every_reduction(ranks, reduction):
    values = values_of(3)
    stacked = torch.stack(values)
    wanted = {
        "sum": stacked.sum(0),
        "product": stacked.prod(0),
        "max": stacked.amax(0),
        "min": stacked.amin(0),
        "avg": stacked.sum(0) / 3,
    }[reduction]
    for found in ranks("allreduce", 3, reduction).run(*values):
        assert torch.allclose(found, wanted)


def test_several_tensors_of_several_dtypes_in_one_allreduce(ranks):
    def tensors(k: int) -> list[Any]:
        return [
            torch.full((2, 3), float(k)),
            torch.full((4,), k, dtype=torch.int64),
            torch.full((5,), float(10 * k)),
            torch.tensor(float(k)),
        ]

    for found in ranks("allreduce", 2, count=4).run(tensors(1), tensors(2)):
        assert [each.tolist() for each in found] == [[[3.0] * 3] * 2, [3] * 4, [30.0] * 5, 3.0]


@pytest.mark.parametrize("kind", ["allgather", "gather"])
def test_numbers_are_gathered_into_a_vector(ranks, kind):
    values = [torch.tensor(float(rank)) for rank in range(3)]
    assert ranks(kind, 3).run(*values)[0].tolist() == [0.0, 1.0, 2.0]


def test_strided_and_gradient_inputs_give_plain_results(ranks):
    values = [torch.arange(6.0).reshape(2, 3).t().requires_grad_() for _ in range(2)]
    for found in ranks("allreduce", 2).run(*values):
        assert torch.equal(found, 2 * values[0].detach())
        assert not found.requires_grad


def test_a_broadcast_takes_what_the_root_has_whatever_the_others_have(ranks):
    group = ranks("broadcast", 3, root=2)
    found = group.run(torch.ones(7), torch.zeros(2, dtype=torch.int8), torch.full((2, 2), 5))
    assert [each.tolist() for each in found] == [[[5, 5], [5, 5]]] * 3


# --- inputs that nothing else can see any more

LARGE = (1 << 17,)  # numbers


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("kind", ["allreduce", "reduce", "broadcast"])
def test_a_tensor_that_only_its_slot_holds_becomes_the_result_where_it_lies(ranks, kind, who):
    group = ranks(kind, 2, root=None if kind == "allreduce" else who)
    values = values_of(2, LARGE)
    wanted = expected(kind, [each.clone() for each in values], who)
    group.slots[1 - who][0] = kept = values[1 - who]
    before = kept.clone()
    group.slots[who][0] = values[who].clone()
    address = group.slots[who][0].data_ptr()
    group.run_slots()
    found = [slots[1] for slots in group.slots]
    assert_equal(found, wanted)
    assert found[who].data_ptr() == address
    assert torch.equal(kept, before)  # at the other rank somebody holds it


@pytest.mark.parametrize("kind", ["allreduce", "reduce", "broadcast"])
def test_a_tensor_that_a_later_op_uses_is_left_as_it_is(ranks, kind):
    group = ranks(kind, 2, is_last_use=False)
    values = values_of(2, LARGE)
    for slots, value in zip(group.slots, values, strict=True):
        slots[0] = value.clone()
    group.run_slots()
    assert_equal([slots[0] for slots in group.slots], values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16], ids=str)
def test_tensors_of_inference_mode_become_ordinary_results(ranks, dtype):
    group = ranks("allreduce", 2)
    values = values_of(2, LARGE, dtype)
    wanted = values[0] + values[1]
    with torch.inference_mode():
        for slots, value in zip(group.slots, values, strict=True):
            slots[0] = value.clone()
    group.run_slots()
    for slots in group.slots:
        assert torch.equal(slots[1], wanted)
        slots[1] += 1


def test_a_tensor_without_a_shape_fails_the_execution_everywhere(ranks):
    group = ranks("broadcast", 2)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for failure in group.run(nested, torch.ones(3)):
        assert type(failure) is Failure
    assert group.run(torch.ones(3), torch.ones(3))[1].sum() == 3


def test_large_and_small_tensors_in_one_allreduce(ranks):
    group = ranks("allreduce", 2, count=4)
    shapes = [(3,), LARGE, (2, 2), LARGE]
    values = [[torch.rand(shape) for shape in shapes] for _ in range(2)]
    for slots, tensors in zip(group.slots, values, strict=True):
        slots[:4] = [each.clone() for each in tensors]
    group.slots[1][3] = kept = values[1][3]
    before = kept.clone()
    group.run_slots()
    wanted = [one + other for one, other in zip(values[0], [*values[1][:3], before], strict=True)]
    for slots in group.slots:
        assert_equal(slots[4:], wanted)
    assert torch.equal(kept, before)


# --- all enter, or none does


def failures() -> dict[str, Any]:
    try:
        raise KeyError("upstream")
    except KeyError as error:
        upstream = capture(error, ORIGIN, "method", 0)
    freed = torch.ones(6, 2)
    freed.untyped_storage().resize_(0)
    return {
        "a failure": (upstream, KeyError),
        "no tensor": ([1, 2], TensorMismatch),
        "no memory": (freed, TensorMismatch),
    }


@pytest.mark.parametrize("what", failures())
@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_one_ranks_bad_input_fails_the_execution_everywhere_and_hangs_nobody(
    ranks, kind, who, what
):
    group = ranks(kind, 3)
    bad, error_type = failures()[what]
    values: list[Any] = values_of(3)
    values[who] = bad
    found = group.run(*values)
    errors = [error_of(each) for each in found]
    assert all(isinstance(error, error_type) for error in errors)
    assert len({str(error) for error in errors}) == 1
    values = values_of(3)
    assert_equal(group.run(*values), expected(kind, values, root=0))


@pytest.mark.parametrize(
    "other", [torch.ones(3, 4), torch.ones(12), torch.ones(6, 2, dtype=torch.float64)], ids=str
)
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"broadcast"}))
def test_shapes_and_dtypes_that_differ_are_one_error_that_names_all_ranks(ranks, kind, other):
    group = ranks(kind, 3)
    one, two, _ = values_of(3)
    errors = [error_of(each) for each in group.run(one, two, other)]
    assert len({str(error) for error in errors}) == 1
    assert isinstance(errors[0], TensorMismatch)
    text = str(errors[0])
    for part in (
        "a0, rank 0, has float32 [6, 2]",
        f"a2, rank 2, has {exchanges.Described.of(other)}",
    ):
        assert part in text
    values = values_of(3)
    assert_equal(group.run(*values), expected(kind, values, root=0))


def test_a_first_dimension_that_does_not_divide_is_an_error_in_rays_words(ranks):
    for failure in ranks("reducescatter", 3).run(*values_of(3, (4,))):
        with pytest.raises(ValueError, match="first dimension of the input tensor to be divisible"):
            raise error_of(failure)


def test_a_dtype_that_cannot_be_combined_is_refused_before_anybody_enters(ranks):
    group = ranks("allreduce", 2, "max")
    values = [torch.ones(2, dtype=torch.complex64)] * 2
    for failure in group.run(*values):
        assert isinstance(error_of(failure), TensorMismatch)
    assert group.run(torch.ones(1), torch.zeros(1))[1].item() == 1


def have_no_room(monkeypatch: pytest.MonkeyPatch, without: Node) -> None:
    room = exchanges.room_for

    def room_for(node: Any, size_bytes: int, device: str) -> Any:
        if node is without:
            raise RuntimeError("not enough memory")
        return room(node, size_bytes, device)

    monkeypatch.setattr(exchanges, "room_for", room_for)


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter"])
def test_a_rank_without_memory_fails_the_execution_everywhere(ranks, monkeypatch, kind, who):
    group = ranks(kind, 2)
    have_no_room(monkeypatch, group.nodes[who])
    for failure in group.run(*values_of(2)):
        assert "not enough memory" in str(error_of(failure))
    monkeypatch.undo()
    values = values_of(2)
    assert_equal(group.run(*values), expected(kind, values))


def test_a_rank_without_memory_for_a_broadcast_fails_alone(ranks, monkeypatch):
    group = ranks("broadcast", 3, root=1)
    have_no_room(monkeypatch, group.nodes[2])
    values = values_of(3)
    found = group.run(*values)
    assert_equal(found[:2], [values[1]] * 2)
    assert "not enough memory" in str(error_of(found[2]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("distort", "what"),
    [
        (lambda result: result[:1].clone(), "returned"),
        (lambda result: result.resize_(100), "made its output"),
    ],
)
def test_what_a_users_communicator_gives_must_be_what_it_was_asked_for(
    ranks, monkeypatch, kind, distort, what
):
    monkeypatch.setattr(exchanges, "_LARGE_BYTES", 1)  # each tensor by itself
    group = ranks(kind, 2, count=2, communicator=Distorting)
    values = [values_of(2, (6, 2)) for _ in range(2)]
    distorting(distort, [1])
    good, bad = group.run(*values)
    assert not any(type(each) is Failure for each in good)
    if kind == "broadcast":  # recv of the rank that is not the root
        what = "returned"
    for each in bad:
        error = error_of(each)
        assert type(error) is TensorMismatch and " a1, where a tensor of" in str(error)
        assert f"of Distorting, the communicator of g0, {what} a tensor of" in str(error)
    columns = [expected(kind, list(column), root=0) for column in zip(*values, strict=True)]
    distorting(lambda result: result.set_(result.clone()), [1])  # elsewhere, but right
    for rank, found in enumerate(group.run(*values)):
        assert_equal(found, [column[rank] for column in columns])


def test_a_status_that_fills_no_slot_arrives_all_the_same(ranks):
    count = 300  # described in more than a slot of a status channel
    group = ranks("allreduce", 2, count=count)
    values = [
        [torch.full((1, 1, 2), float(rank + each)) for each in range(count)] for rank in (0, 1)
    ]
    for found in group.run(*values):
        assert [each[0, 0, 0].item() for each in found] == [2.0 * each + 1 for each in range(count)]


# --- ends


def test_a_rank_that_waits_for_the_others_is_ended_by_poison(ranks):
    group = ranks("allreduce", 3)
    for slots, value in zip(group.slots, values_of(3), strict=True):
        slots[0] = value
    waiting = [group.threads.submit(step) for step in group.steps[:2]]
    until(lambda: all(group.nodes[i].waiting_since_ns(f"a{i}") > 0 for i in range(2)))
    assert group.nodes[2].now("a0").op == OP
    group.nodes[0].end_broken("a2")
    for each in waiting:
        with pytest.raises(GraphEnded):
            each.result(GUARD_S)


def test_an_aborted_group_ends_the_step_and_no_value_is_blamed(ranks):
    group = ranks("allreduce", 2)
    for communicator in group.communicators:
        communicator.abort("a process of the graph is gone")
    for each in group.start(*values_of(2)):
        with pytest.raises(TransferFailed, match="gone"):
            each.result(GUARD_S)


def test_a_collective_is_one_event_with_the_bytes_of_its_tensors(ranks):
    group = ranks("allreduce", 3)
    for _ in range(3):
        group.run(*values_of(3, (1000,)))
    for rank in range(3):
        events = group.nodes[rank].newest_events(f"a{rank}")
        assert events["op"].tolist() == [OP] * 3
        assert events["execution"].tolist() == [0, 1, 2]
        assert (events["bytes"] >= 4000).all()
