# SPDX-License-Identifier: Apache-2.0
"""A failed input of a rendezvous fails its execution everywhere, and no other one.

Every kind of failure meets every kind of rendezvous, in the middle of ten executions in flight.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import rcg
from rcg import collective
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import TensorMismatch, UnpicklableError
from tests.cluster.stage import GUARD_S
from tests.harness.circles import core_has, core_where, in_turn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

RANKS = 3
IN_FLIGHT = 10
# A tensor that an actor can make, but not a second one, when it is short of address space.
LARGE_BYTES = 96 << 20


class Rude(torch.Tensor):
    """A tensor whose user's code raises what no method should."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise SystemExit("a rude tensor")


class Worker:
    """Makes tensors, and failures of every kind where the input says so."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.kept: Any = None

    def make(self, spec):
        """What the input says: how many elements, which failure, and at which rank."""
        n, kind, rank = spec
        if kind is None or rank != self.rank:
            self.kept = None
            self.kept = torch.full((n,), float(self.rank + 1))  # no collective may overwrite it
            return self.kept
        match kind:
            case "exception":
                raise LookupError("no tensor today")
            case "exit":
                raise SystemExit("no tensor, and no actor")
            case "no tensor":
                return "no tensor"
            case "several":
                return [torch.ones(n), torch.ones(n)]
            case "unpicklable":
                return [torch.ones(n), threading.Lock()]
            case "other shape":
                return torch.ones(n + 1)
            case "other dtype":
                return torch.ones(n, dtype=torch.float64)
            case "not dense":
                return torch.eye(n).to_sparse()
            case "no device":
                return torch.ones(n, device="meta")
            case "rude":
                return torch.ones(n).as_subclass(Rude)
        raise AssertionError(kind)

    def large(self, spec):
        """Tensors that reducing takes more memory for than they have themselves."""
        n, dtype = spec
        return torch.ones(n, dtype=dtype)

    def total(self, *tensors):
        """The sum of all elements; it takes no memory, and is exact for small numbers."""
        flat = [each.reshape(-1) for each in tensors if each is not None]
        return sum(float(part.sum()) for each in flat for part in each.split(1 << 16))

    def limit(self, slack_bytes):
        """Leave so much address space, or all of it; returns whether it is limited now."""
        if slack_bytes is None:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return False
        status = Path("/proc/self/status").read_text()
        used = int(status.partition("VmSize:")[2].split()[0]) * 1024
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + slack_bytes, hard))
        return True


Actor = rcg.remote(num_cpus=0)(Worker)


@pytest.fixture(scope="module")
def workers(ray_session: None) -> Iterator[list[Any]]:
    made = [Actor.remote(rank) for rank in range(RANKS)]
    yield made
    for each in made:
        rcg.kill(each)


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=GUARD_S)


Dag = Callable[[list[Any], Any, dict[str, Any]], Any]


def edge(workers: list[Any], inp: Any, hints: dict[str, Any]) -> Any:
    value = workers[0].make.bind(inp).with_tensor_transport(transport="gloo", **hints)
    return MultiOutputNode([workers[1].total.bind(value)])


def fan_out(workers: list[Any], inp: Any, hints: dict[str, Any]) -> Any:
    first, *others = workers
    value = first.make.bind(inp).with_tensor_transport(transport="gloo", **hints)
    return MultiOutputNode([each.total.bind(value) for each in others])


def chain(workers: list[Any], inp: Any, hints: dict[str, Any]) -> Any:
    """A collective whose results go on over edges, to a second one of another group."""
    a, b, c = workers
    first = collective.allreduce.bind([a.make.bind(inp), b.make.bind(inp)])
    moved = [each.with_tensor_transport(transport="gloo", **hints) for each in first]
    second = collective.allgather.bind([first[0], c.make.bind(inp)])
    return MultiOutputNode(
        [a.total.bind(second[0]), c.total.bind(second[1], moved[1]), b.total.bind(moved[0])]
    )


def collective_of(kind: str) -> Dag:
    def bind(workers: list[Any], inp: Any, _: dict[str, Any]) -> Any:
        values = [each.make.bind(inp) for each in workers]
        found = getattr(collective, kind).bind(values)
        return MultiOutputNode(
            [each.total.bind(value) for each, value in zip(workers, found, strict=True)]
        )

    return bind


KINDS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather")
# Of n elements.
RIGHT: Mapping[str, Callable[[int], list[float]]] = {
    "edge": lambda n: [1.0 * n],
    "fan_out": lambda n: [1.0 * n] * 2,
    "chain": lambda n: [6.0 * n, 9.0 * n, 3.0 * n],
    "allreduce": lambda n: [6.0 * n] * 3,
    "allgather": lambda n: [6.0 * n] * 3,
    "reducescatter": lambda n: [2.0 * n] * 3,
    "broadcast": lambda n: [1.0 * n] * 3,
    "reduce": lambda n: [6.0 * n, 0.0, 0.0],
    "gather": lambda n: [6.0 * n, 0.0, 0.0],
}
DAGS: dict[str, Dag] = {"edge": edge, "fan_out": fan_out, "chain": chain}
DAGS.update({kind: collective_of(kind) for kind in KINDS})

# What fails everywhere: at the rank that makes it, and at those that wait for it.
ALWAYS = {"exception": LookupError, "exit": BaseException}
# What cannot be sent over an edge, and with which hints.
ON_EDGES: dict[str, dict[str, Any]] = {
    "": {**ALWAYS, "unpicklable": UnpicklableError, "no device": Exception},
    "static": {
        **ALWAYS,
        "unpicklable": UnpicklableError,
        "other shape": TensorMismatch,
        "other dtype": TensorMismatch,
        "several": TensorMismatch,
    },
    "direct": {
        **ALWAYS,
        "no tensor": TensorMismatch,
        "several": TensorMismatch,
        "unpicklable": TensorMismatch,
    },
    "static direct": {**ALWAYS, "no tensor": TensorMismatch, "other shape": TensorMismatch},
}
HINTS = {
    "": {},
    "static": {"_static_shape": True},
    "direct": {"_direct_return": True},
    "static direct": {"_static_shape": True, "_direct_return": True},
}
# What no collective takes; where shapes must agree only, the others.
IN_COLLECTIVES = {
    **ALWAYS,
    "no tensor": TensorMismatch,
    "several": TensorMismatch,
    "not dense": Exception,
    "no device": TensorMismatch,
    "rude": BaseException,
}
DIFFERENT = {"other shape": TensorMismatch, "other dtype": TensorMismatch}


def check(graph: Any, name: str, failures: Mapping[str, Any], rank: int, sizes: list[int]) -> None:
    """Each failure in the middle of executions in flight; the others are right."""
    right = RIGHT[name]
    for kind, error_type in failures.items():
        bad = {IN_FLIGHT // 3, IN_FLIGHT // 3 + 1, IN_FLIGHT - 3}
        refs = []
        for i in range(IN_FLIGHT):
            refs.append(graph.execute((sizes[i % len(sizes)], kind if i in bad else None, rank)))
        for i, execution in enumerate(refs):
            if i not in bad:
                assert get(execution) == right(sizes[i % len(sizes)]), (kind, i)
                continue
            for ref in execution:
                with pytest.raises(error_type):
                    get(ref)


@pytest.mark.parametrize(
    ("name", "hints"),
    # The core has the hint with which most can fail.
    core_where(
        lambda case: case[1] == "static",
        [(name, hints) for name in ("edge", "fan_out") for hints in HINTS],
    ),
)
def test_a_value_that_cannot_travel_fails_its_execution_only(workers, name, hints):
    with InputNode() as inp:
        dag = DAGS[name](workers, inp, HINTS[hints])
    sizes = [6] if "static" in hints else [6, 300, 100_000]
    with rcg.compile(dag) as graph:
        check(graph, name, ON_EDGES[hints], 0, sizes)


# To a broadcast matters what its rank 0 has, so that is the one in the core.
@pytest.mark.parametrize(("name", "rank"), in_turn([*KINDS, "chain"], [1, 0]))
def test_an_input_that_no_collective_takes_fails_its_execution_only(workers, name, rank):
    failures = {**IN_COLLECTIVES}
    if name != "broadcast":
        failures.update(DIFFERENT)
    elif rank:
        # What the others have does not matter to a broadcast.
        failures = dict(ALWAYS)
    with InputNode() as inp:
        dag = DAGS[name](workers, inp, {})
    with rcg.compile(dag) as graph:
        if name != "chain":
            check(graph, name, failures, rank, [6, 300, 99_000])
            return
        for kind in failures:  # the branch without it is right
            refs = [graph.execute((6, each, 2)) for each in (None, kind, None)]
            assert get(refs[0]) == get(refs[2]) == RIGHT[name](6)
            assert get(refs[1][2]) == RIGHT[name](6)[2]
            for ref in refs[1][:2]:
                with pytest.raises(BaseException):  # noqa: B017 - each kind has its own
                    get(ref)


# --- no memory


@pytest.fixture
def poor(workers: list[Any]) -> Iterator[Callable[..., None]]:
    """Takes away an actor's memory, and gives all of them theirs back."""

    def limit(rank: int, slack_bytes: int) -> None:
        assert rcg.get(workers[rank].limit.remote(slack_bytes))

    yield limit
    rcg.get([each.limit.remote(None) for each in workers])


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", [*KINDS, "edge", "fan_out"])
def test_a_process_without_memory_fails_the_execution_and_goes_on(workers, poor, name, rank):
    """The kernel refuses memory, for what arrives or for the result."""
    n = LARGE_BYTES // 4 // 3 * 3
    # Room for its own tensor, if it makes one, and for half of another.
    makes_one = name in KINDS or rank == 0
    slack_bytes = LARGE_BYTES // 2 * (3 if makes_one else 1)
    # Some ranks need nothing beside their own tensor.
    needs_more = {"edge": (1,), "fan_out": (1,), "gather": (0,)}
    fails = rank in needs_more.get(name, (0, 1))
    with InputNode() as inp:
        dag = DAGS[name](workers, inp, {})
    with rcg.compile(dag, memory_cap_bytes=8 << 20) as graph:
        assert get(graph.execute((6, None, 0))) == RIGHT[name](6)
        poor(rank, slack_bytes)
        refs = [graph.execute((size, None, 0)) for size in (6, n, 6)]
        assert get(refs[0]) == RIGHT[name](6)
        failed = 0
        for ref in refs[1]:
            try:
                get(ref)
            except (MemoryError, RuntimeError):
                failed += 1
        assert bool(failed) == fails
        assert get(refs[2]) == RIGHT[name](6)
        rcg.get(workers[rank].limit.remote(None))
        assert get(graph.execute((n, None, 0))) == RIGHT[name](n)


@pytest.mark.parametrize("kind", core_has("allreduce", ["allreduce", "reduce", "reducescatter"]))
def test_a_rank_without_memory_for_the_reduction_itself_hangs_nobody(workers, poor, kind):
    """Numbers of 16 bits are added in 32: the tensor and its result fit, that does not."""
    n = LARGE_BYTES // 4 // 3 * 3
    with InputNode() as inp:
        values = [each.large.bind(inp) for each in workers]
        found = getattr(collective, kind).bind(values)
        dag = MultiOutputNode(
            [each.total.bind(value) for each, value in zip(workers, found, strict=True)]
        )
    with rcg.compile(dag, memory_cap_bytes=8 << 20) as graph:
        assert get(graph.execute((6, torch.int16)))[0]
        poor(1, 5 * LARGE_BYTES // 4)
        refs = [graph.execute((size, torch.int16)) for size in (6, n, 6)]
        assert get(refs[0])[0]
        for ref in refs[1]:
            with pytest.raises((MemoryError, RuntimeError)):
                get(ref)
        assert get(refs[2])[0]
