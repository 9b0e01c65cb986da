# SPDX-License-Identifier: Apache-2.0
"""What is published and wanted of weights, and the plan of who sends what to whom."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg import cluster
from rcg.errors import ActorDiedError
from rcg.options import FOR_EVER, Deadline
from rcg.progress import Progress
from rcg.rdt.envelope import Holder
from rcg.rdt.slices import regions_from
from rcg.weights import client, owner
from rcg.weights.client import Moved
from rcg.weights.owner import Owner, Roll, Unused, Version
from rcg.weights.planning import Copy, WeightsPlan
from rcg.weights.readers import Frozen, Readers
from rcg.weights.route import Route, least_lookahead
from rcg.weights.shards import (
    Member,
    Shard,
    Slice,
    Source,
    disagreements,
    holes,
    mismatches,
    overlaps,
    shards_of,
    tensors_of,
)
from tests.unit.test_progress import Clock, Terminal

torch = pytest.importorskip("torch")


def whole(*shape: int, dtype: str = "float32") -> Shard:
    return Shard(dtype, shape, 0, 0, shape[0] if shape else 1)


def rows(start: int, stop: int, *shape: int, dim: int = 0, dtype: str = "float32") -> Shard:
    return Shard(dtype, shape, dim, start, stop)


# --- what a process has -------------------------------------------------------------------------


def test_a_model_and_its_state_have_the_same_tensors() -> None:
    model = torch.nn.Linear(3, 2)
    assert list(tensors_of(model, None)) == list(tensors_of(model.state_dict(), None))
    assert list(tensors_of(model, ["bias"])) == ["bias"]


@pytest.mark.parametrize(
    ("source", "names", "error", "text"),
    [
        ([1], None, TypeError, "a model or a dict of tensors, got list"),
        ({"a": 1, "b": torch.ones(1)}, None, TypeError, "these are not: a$"),
        ({3: torch.ones(1)}, None, TypeError, "these are not: 3"),
        ({}, None, ValueError, "no tensors"),
        ({"a": torch.ones(1)}, ["a", "b", "c"], ValueError, "not there: b, c"),
    ],
)
def test_what_are_no_weights_is_refused(source, names, error, text) -> None:
    with pytest.raises(error, match=text):
        tensors_of(source, names)


def test_what_is_more_than_its_bytes_is_refused_by_name() -> None:
    class Scaled(torch.Tensor):
        __torch_dispatch__ = classmethod(lambda cls, *_: None)

        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, (2,), dtype=torch.float32)

    freed, smaller = torch.ones(4), torch.ones(4)
    freed.untyped_storage().resize_(0)
    smaller.untyped_storage().resize_(15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most of these are deprecated, or in beta state
        tensors = {
            "scaled": Scaled(),
            "jagged": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
            "lazy": torch.nn.LazyLinear(2).weight,
            "quantized": torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint32),
            "meta": torch.empty(2, device="meta"),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "sparse": torch.eye(3).to_sparse_csr(),
            "bits": torch.empty(2, dtype=torch.bits16),
            "functional": torch._to_functional_tensor(torch.ones(2)),
            "freed": freed,
            "smaller": smaller,
        }
    fit = {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        "none": torch.empty(0, 3),
    }
    with pytest.raises(ValueError) as caught:
        shards_of(fit | tensors, None)
    problems = [each.strip().partition(": ") for each in str(caught.value).splitlines()[1:]]
    assert [name for name, _, _ in problems] == list(tensors)
    whys = {name: why for name, _, why in problems}
    assert whys["scaled"].startswith("it is a test_what_is_more_than_its_bytes_is_refused_by_name")
    assert "scales" in whys["quantized"] and "needs 16 bytes" in whys["smaller"]
    assert list(shards_of(fit, None)[0]) == list(fit)

    def refuse(tensor: Any) -> Any:
        with pytest.raises(ValueError, match="v: it has no memory of its own"):
            shards_of({"v": tensor}, None)
        return tensor.sum()

    torch.func.vmap(refuse)(torch.ones(2, 3))


def test_a_tensor_is_known_by_its_name_wherever_it_stands() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    compiled = {f"_orig_mod.0._orig_mod.{name}": each for name, each in model.state_dict().items()}
    shard = {"_orig_mod.0.1.weight": Slice(0, 0, 2, 4)}
    source = Source(compiled, shard, None)
    names = [f"0.{name}" for name in model.state_dict()]
    assert list(source.shards) == names and source.shards["0.1.weight"].shape == (4, 2)
    assert list(tensors_of(compiled, ["_orig_mod.0.1.bias"])) == ["0.1.bias"]
    assert list(tensors_of({"x_orig_mod.w": model[0].bias}, None)) == ["x_orig_mod.w"]
    with pytest.raises(ValueError, match="two tensors are called w, without"):
        tensors_of({"_orig_mod.w": model[0].bias, "w": model[0].bias}, None)

    first = next(iter(compiled))
    compiled[first] = replaced = torch.ones_like(compiled.pop(first))
    assert list(source.tensors()) == names and source.tensors()["0.0.weight"] is replaced
    replaced.untyped_storage().resize_(8)
    with pytest.raises(ValueError, match=r"0\.0\.weight: a tensor .* needs 16 bytes"):
        source.tensors()


def test_a_slice_says_which_part_of_the_whole_a_tensor_is() -> None:
    tensors = {"w": torch.zeros(2, 5), "b": torch.zeros(())}
    shards, local = shards_of(tensors, {"w": Slice(0, 4, 6, 8)})
    assert shards == {"w": rows(4, 6, 8, 5), "b": whole()}
    assert local["w"] is tensors["w"]
    assert (shards["w"].nbytes, shards["b"].nbytes) == (40, 4)


def test_all_slices_that_do_not_fit_are_listed() -> None:
    tensors = {name: torch.zeros(2, 5) for name in "abcd"}
    slices = {
        "a": Slice(2, 0, 2, 2),
        "b": Slice(0, 0, 3, 6),
        "c": Slice(1, 6, 11, 10),
        "e": Slice(0, 0, 1, 1),
    }
    with pytest.raises(ValueError, match="cannot be used") as caught:
        shards_of(tensors, slices)
    assert str(caught.value).split("\n  ")[1:] == [
        "e: there is no such tensor",
        "a: it has 2 dimensions, there is no dimension 2",
        "b: its dimension 0 has 2, but 0 to 3 are 3",
        "c: 6 to 11 of 10 is no part of it",
    ]
    with pytest.raises(TypeError, match=r"is a rcg.weights.Slice, got tuple"):
        shards_of(tensors, {"a": (0, 0, 2, 2)})


def test_everything_that_does_not_fit_is_listed() -> None:
    have = [
        Member("A", {"w": whole(4, 2), "b": whole(2)}),
        Member("B", {"n": whole(1, dtype="int64")}),
    ]
    want = {"w": whole(4, 3), "b": whole(2, dtype="float16"), "n": whole(1, dtype="int64")}
    assert mismatches(have, want) == [
        "w: it is [4, 2], here [4, 3]",
        "b: it is float32, here float16",
    ]
    assert mismatches(have, {"x": whole(1)}) == ["x: nobody publishes it"]


def test_publishers_of_one_name_must_agree() -> None:
    have = [Member("A", {"w": rows(0, 2, 4, 4)})]
    assert disagreements(have, {"w": rows(2, 4, 4, 4)}) == []
    assert disagreements(have, {"w": whole(4, 4)}) == []
    assert disagreements(have, {"w": rows(2, 4, 4, 4, dim=1)}) == [
        "w: A splits it along dimension 0, this process along 1"
    ]
    assert disagreements(have, {"w": whole(4, 5)}) == [
        "w: A has float32[4, 4], this process float32[4, 5]"
    ]
    have = [Member("A", {"v": whole(1)}), *have, Member("B", {"w": whole(4, 4)})]
    assert disagreements(have, {"w": whole(4, 5), "v": whole(2)}) == [
        "w: A has float32[4, 4], this process float32[4, 5]",
        "v: A has float32[1], this process float32[2]",
    ]
    have = [Member("A", {"w": whole(4, 4)}), Member("B", {"w": rows(0, 2, 4, 4)})]
    assert disagreements(have, {"w": rows(2, 4, 4, 4, dim=1)}) == [
        "w: B splits it along dimension 0, this process along 1"
    ]


def test_slices_of_two_publishers_are_the_same_or_disjoint() -> None:
    have = [Member("A", {"w": rows(0, 3, 6), "v": whole(6)}), Member("B", {"w": rows(3, 6, 6)})]
    for fits in (rows(0, 3, 6), rows(3, 6, 6), rows(2, 2, 6), whole(6)):
        assert overlaps(have, Member("C", {"w": fits, "v": rows(0, 2, 6)})) == []
    assert overlaps(have, Member("C", {"v": rows(0, 2, 6), "w": rows(2, 4, 6)})) == [
        "w: A has rows 0 to 3 and C 2 to 4, so both have 2 to 3. Make them the same, or disjoint"
    ]


def test_a_part_that_nobody_has_is_found() -> None:
    first = Member("first", {"w": rows(0, 2, 6), "b": whole(3)})
    last = Member("last", {"w": rows(3, 6, 6)})
    assert holes([first, last]) == ["w"]
    assert holes([first, last, Member("between", {"w": rows(1, 4, 6)})]) == []
    assert holes([Member("scalar", {"s": whole()})]) == []


# --- the plan -----------------------------------------------------------------------------------


@st.composite
def _worlds(draw):
    """Tensors, split over publishers along one dimension, with copies; and readers' wants."""
    publishers = [{} for _ in range(draw(st.integers(1, 4)))]
    readers = [{} for _ in range(draw(st.integers(1, 4)))]
    for number in range(draw(st.integers(1, 4))):
        name = f"t{number}"
        shape = tuple(draw(st.lists(st.integers(1, 9), min_size=0, max_size=3)))
        dim = draw(st.integers(0, len(shape) - 1)) if shape else 0
        size = shape[dim] if shape else 1
        cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=3))) if size > 1 else []
        for start, stop in zip([0, *cuts], [*cuts, size], strict=True):
            has = draw(st.sets(st.integers(0, len(publishers) - 1), min_size=1, max_size=2))
            for publisher in has:
                old = publishers[publisher].get(name)
                if old is not None and old.stop != start:
                    continue
                first = start if old is None else old.start
                publishers[publisher][name] = Shard("int32", shape, dim, first, stop)
        for reader in readers:
            if draw(st.booleans()):
                d = draw(st.integers(0, len(shape) - 1)) if shape else 0
                n = shape[d] if shape else 1
                start = draw(st.integers(0, n - 1))
                stop = draw(st.integers(start + 1, n))
                reader[name] = Shard("int32", shape, d, start, stop)
    return publishers, readers


@given(_worlds())
def test_every_reader_gets_each_element_once_from_one_that_has_it(world) -> None:
    publishers, readers = world
    members = [Member(f"p{at}", each) for at, each in enumerate(publishers)]
    wanting = [Member(f"r{at}", each) for at, each in enumerate(readers)]
    missing = set(holes(members))
    if any(
        name in missing or not any(name in p for p in publishers) for r in readers for name in r
    ):
        return
    plan = WeightsPlan(members, wanting)
    sent = np.zeros_like(plan.bytes)
    for number, reader in enumerate(readers):
        got = {name: np.zeros(shard.shape, np.int64) for name, shard in reader.items()}
        for name, publisher, box in plan.copies(number):
            place = tuple(slice(each.start, each.stop) for each in box)
            assert got[name][place].size > 0
            got[name][place] += 1
            sent[publisher, number] += 4 * got[name][place].size
            has = publishers[publisher][name].ranges
            assert all(
                h.start <= b.start and b.stop <= h.stop for b, h in zip(box, has, strict=True)
            )
        for name, shard in reader.items():
            expected = np.zeros(shard.shape, np.int64)
            expected[tuple(slice(each.start, each.stop) for each in shard.ranges)] = 1
            assert np.array_equal(got[name], expected)
    assert np.array_equal(sent, plan.bytes)


@pytest.mark.parametrize("readers", [1, 3, 16])
def test_what_several_publishers_have_is_spread_over_them(readers) -> None:
    # Four trainers with a copy of everything, of which one tensor is most; a fifth with a part that
    # nobody else has.
    model = {"embedding": whole(50_000, 512)} | {f"l{n}": whole(512, 512) for n in range(40)}
    copies = [Member(f"t{n}", model) for n in range(4)]
    alone = Member("alone", {"head": whole(20_000, 512)})
    wants = model | {"head": whole(20_000, 512)}
    plan = WeightsPlan([*copies, alone], [Member(f"g{n}", wants) for n in range(readers)])
    assert plan.busiest_bytes <= 1.1 * plan.least_bytes
    assert plan.total_bytes == readers * sum(each.nbytes for each in wants.values())
    out = plan.bytes.sum(axis=1)
    assert out[:4].max() <= 1.1 * out[:4].min()


def test_a_part_that_nobody_has_cannot_be_planned() -> None:
    with pytest.raises(ValueError, match="nobody has 2 to 3 of dimension 0 of 'w'"):
        WeightsPlan(
            [Member("a", {"w": rows(0, 2, 4)}), Member("b", {"w": rows(3, 4, 4)})],
            [Member("r", {"w": whole(4)})],
        )


def test_a_plan_shows_its_matrix_and_predicts_its_time() -> None:
    names = [f"Actor(Trainer, {n:032x})" for n in range(20)]
    plan = WeightsPlan(
        [Member(each, {"w": rows(n, n + 1, 20, 256)}) for n, each in enumerate(names)],
        [Member("Actor(Generator, 0a)", {"w": whole(20, 256)})],
    )
    text = str(plan)
    assert text.startswith(
        "20 publishers, 1 reader: 20.5 kB travel, at most 20.5 kB by one process"
    )
    assert "4 more" in text and "(0 % over the least possible)" in text
    assert plan.seconds(1024) == 20
    with pytest.raises(ValueError, match="more than 0 bytes per second"):
        plan.seconds(0)


@pytest.mark.full
def test_a_trillion_parameters_are_planned() -> None:
    """Each of 384 experts lies on four trainers, which share the rest of the model."""
    trainers: list[dict[str, Shard]] = [{} for _ in range(256)]
    readers: list[dict[str, Shard]] = [{} for _ in range(128)]
    for number in range(61 * 384 * 3):
        name, expert = f"expert {number}", number // 3 % 384
        for at in range(4):
            part = rows(512 * at, 512 * (at + 1), 2048, 7168, dtype="bfloat16")
            trainers[expert % 64 * 4 + at][name] = part
        readers[expert // 3][name] = whole(2048, 7168, dtype="bfloat16")
    for number in range(61 * 10):
        for at, trainer in enumerate(trainers):
            part = rows(48 * at, 48 * (at + 1), 48 * 256, 1536, dtype="bfloat16")
            trainer[f"dense {number}"] = part
        for reader in readers:
            reader[f"dense {number}"] = whole(48 * 256, 1536, dtype="bfloat16")
    plan = WeightsPlan(
        [Member(f"trainer {at}", each) for at, each in enumerate(trainers)],
        [Member(f"generator {at}", each) for at, each in enumerate(readers)],
    )
    assert plan.busiest_bytes <= 1.1 * plan.least_bytes


# --- how it is read -----------------------------------------------------------------------------


class _Publishers:
    """Stands in for the connections of a reader: sends slices of tensors, and counts them."""

    def __init__(self, tensors) -> None:
        self.tensors = tensors  # by the keys of versions, in the order of their publisher
        self.steps: list[int] = []
        self.dead = ""

    def pull_slices(self, slices, key, patience) -> int:
        if key == self.dead:
            raise ActorDiedError(f"{key} is gone")
        payloads = [each.reshape(-1).view(torch.uint8) for each in self.tensors[key]]
        regions = regions_from(slices.table, [each.numel() for each in payloads])
        for there, (_, here) in zip(regions, slices.pairs, strict=True):
            place = here.of(slices.targets[here.tensor])
            place.copy_(there.of(payloads[there.tensor]).reshape(place.shape))
        self.steps.append(sum(slices.sizes))
        return 1


def _routed(shards, boxes, whole_tensors, into, lookahead):
    """A route from publishers with these shards to tensors, and what stands in for them."""
    publishers = [
        Member(f"p{at}", each, f"p{at}", Holder._fields) for at, each in enumerate(shards)
    ]
    wants, _ = shards_of(into, None)
    targets = [
        each.view(-1).view(torch.uint8) if each.is_contiguous() else None for each in into.values()
    ]
    held = {
        each.id: [
            whole_tensors[name][tuple(slice(r.start, r.stop) for r in shard.ranges)].contiguous()
            for name, shard in each.shards.items()
        ]
        for each in publishers
    }
    return Route(publishers, boxes, wants, targets, lookahead), _Publishers(held)


MB = 1 << 20


@pytest.mark.parametrize(("lookahead", "lanes"), [(2 * MB, 1), (3 * MB, 1), (4 * MB, 2), (None, 2)])
def test_what_is_read_at_once_is_bounded(lookahead, lanes) -> None:
    rng = np.random.default_rng(3)
    shapes = {"rows": (300, 5000), "long": (900_000,), "small": (7,), "columns": (4, 100, 300)}
    full = {
        name: torch.from_numpy(rng.integers(0, 1 << 30, shape, dtype=np.int32))
        for name, shape in shapes.items()
    }
    into = {name: torch.zeros_like(each) for name, each in full.items()}
    into["columns"] = torch.zeros(300, 100, 4, dtype=torch.int32).permute(2, 1, 0)
    half = {name: shape[-1] // 2 for name, shape in shapes.items()}
    shards = [{}, {}]
    copies = []
    for name, shape in shapes.items():  # each has half of every tensor, along its last dimension
        for at, (start, stop) in enumerate([(0, half[name]), (half[name], shape[-1])]):
            shards[at][name] = Shard("int32", shape, len(shape) - 1, start, stop)
            copies.append(Copy(name, at, (*map(range, shape[:-1]), range(start, stop))))
    route, senders = _routed(shards, copies, full, into, lookahead)
    came: list[int] = []
    pulls = route.read(senders.pull_slices, {"p0": "p0", "p1": "p1"}, into, came.append, FOR_EVER)
    assert not any(each.problem for each in pulls)
    for name, each in into.items():
        assert torch.equal(each, full[name]), name
    total = sum(each.nbytes for each in full.values())
    assert sum(came) == sum(senders.steps) == total
    if lookahead is None:
        assert len(senders.steps) == 2
        return
    # Half is for what is on its way, half for what waits to be copied into a tensor.
    assert max(senders.steps) * lanes <= lookahead // 2
    assert len(senders.steps) <= 2 * -(-total // (lookahead // 2)) + 4
    assert route.staged_bytes <= lookahead // 2


def test_when_one_publisher_is_dead_no_other_step_is_begun() -> None:
    full = {"a": torch.arange(3 * MB), "b": torch.arange(3 * MB)}
    into = {name: torch.zeros_like(each) for name, each in full.items()}
    shards = [{"a": whole(3 * MB, dtype="int64")}, {"b": whole(3 * MB, dtype="int64")}]
    copies = [Copy("a", 0, (range(3 * MB),)), Copy("b", 1, (range(3 * MB),))]
    route, senders = _routed(shards, copies, full, into, 2 * MB)
    senders.dead = "p0"
    pulls = route.read(senders.pull_slices, {"p0": "p0", "p1": "p1"}, into, bool, FOR_EVER)
    assert [each.has_died for each in pulls] == [True, False]
    assert [each.got("v") is None for each in pulls] == [False, True]
    assert senders.steps == []


def test_the_least_lookahead_is_twice_what_is_copied_as_a_whole() -> None:
    assert least_lookahead(0) == 2 * MB
    assert least_lookahead(5 * MB + 1) == 10 * MB + 128


def test_progress_counts_no_byte_twice(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("RCG_PROGRESS", raising=False)
    stream, clock = Terminal(), Clock()

    def shown(total, label):
        return Progress(total, label, stream=stream, clock=clock)

    monkeypatch.setattr("rcg.weights.client.Progress", shown)

    def last() -> str:
        clock.now += 1.0
        moved.came(0)
        return stream.getvalue().rsplit("\x1b[2K", 1)[-1].strip()

    with Moved("waits", 10 * MB) as moved:
        assert last().endswith("  0 % waits")
        moved.begin("version 1")
        moved.came(4 * MB)
        assert last().endswith(" 40 % version 1")
        moved.begin("version 2")  # the first could not be read
        moved.came(3 * MB)
        assert last().endswith(" 40 % version 2")
        moved.came(7 * MB)
        assert last().endswith("100 % version 2")
    assert stream.getvalue().endswith("\r")


# --- an owner that runs again


class Local:
    """An actor in this process, with what Ray's handles have."""

    def __init__(self, actor: object) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=getattr(self._actor, name))


def member(name: str, shard: Shard | None = None) -> Member:
    is_alone = shard is not None and shard.stop - shard.start == shard.shape[0]
    shards = {} if shard is None else {"w": shard}
    return Member(name, shards, name, ("",) * 6, 1, shard is not None, is_alone, 0)


class Company:
    """Two publishers with half a tensor each, readers, and the owner, which dies now and then.

    A model beside it knows what each has, and which readers were there for which version.
    """

    def __init__(self) -> None:
        self.roll = Local(Roll())
        self.start()
        self.members = {each: member(each, rows(*at, 4)) for each, at in HALVES.items()}
        self.pushed: dict[str, tuple[int | None, str]] = dict.fromkeys(HALVES, (None, ""))
        self.taken: dict[str, tuple[int | None, frozenset[str], frozenset[str] | None]] = {}
        self.owed: dict[int, set[str]] = {}  # the readers that were there for a version

    def start(self) -> None:
        self.owner = Owner(lambda: self.roll)

    async def present(self, which: str) -> None:
        if which in HALVES:
            refused = await self.owner.publish("w", self.members[which], *self.pushed[which])
            assert refused == ""
        else:
            version, token, joined = self.taken.get(which, (None, frozenset(), None))
            joined = await self.owner.subscribe("w", member(which), version, token, "", joined)
            self.taken[which] = version, token, joined

    async def push(self, which: str) -> None:
        version = (self.pushed[which][0] or 0) + 1
        if version > min(each or 0 for each, _ in self.pushed.values()) + 1:
            return  # the other one is late
        self.pushed[which] = version, f"{which}{version}"
        while not await self.owner.push("w", which, *self.pushed[which]):
            await self.present(which)
        if len({each for each, _ in self.pushed.values()}) == 1:
            self.owed[version] = set(self.taken)

    async def update(self, which: str) -> None:
        _, token, joined = self.taken[which]
        while (found := await self.owner.next("w", which, token, frozenset(), 0.0)) is None:
            await self.present(which)
        if isinstance(found, Version):
            assert found.keys == {each: key for each, (_, key) in self.pushed.items()}
            self.taken[which] = found.number, found.token, joined
            assert await self.owner.took("w", which, *self.taken[which][:2], "")

    async def check(self, which: str) -> None:
        version, _ = self.pushed[which]
        if version is None:
            return
        while (found := await self.owner.pending("w", which, version, 0.0)) is None:
            await self.present(which)
        newest = max(each or 0 for each, _ in self.pushed.values())
        has = {each for each, (taken, *_) in self.taken.items() if taken == version}
        owed = self.owed[version] - has & self.taken.keys() if version in self.owed else set(HALVES)
        left = {each.label for each in found.left}
        is_known = len(self.known) == len(self.members)
        if version < newest:  # it is replaced, which is known when the other one is back
            assert left == set() or not is_known
        elif version in self.owed and is_known:
            unsure = {each for each, (*_, joined) in self.taken.items() if joined is None}
            assert owed & self.taken.keys() <= left <= owed | unsure
        else:
            assert left or not owed & self.taken.keys(), "done too early"

    @property
    def known(self) -> set[str]:
        found = self.owner._all.get("w")
        return set() if found is None else {*found.publishers, *found.subscribers}


HALVES = {"one": (0, 2), "other": (2, 4)}


@given(st.data())
def test_nobody_is_done_too_early_whenever_the_owner_dies(data) -> None:
    async def run() -> None:
        company = Company()
        for each in HALVES:
            await company.present(each)
        for _ in range(data.draw(st.integers(1, 25))):
            which = data.draw(st.sampled_from(sorted(company.members)))
            kinds = ["join", "die", "present", "check", "do", "do", "leave"]
            match data.draw(st.sampled_from(kinds)):
                case "join":
                    new = f"reader {len(company.members)}"
                    company.members[new] = member(new)
                    await company.present(new)
                case "die":
                    company.start()
                case "present":
                    await company.present(which)
                case "leave" if which in company.taken:
                    del company.members[which], company.taken[which]
                    for readers in company.owed.values():  # another may get its name
                        readers.discard(which)
                    await company.owner.leave("w", which)
                case "do" if which in HALVES:
                    await company.push(which)
                case "do":
                    await company.update(which)
                case "check" if which in HALVES:
                    await company.check(which)

    asyncio.run(run())


def test_who_is_absent_keeps_its_name() -> None:
    async def run() -> None:
        company = Company()
        await company.present("one")
        company.start()
        alone = member("alone", rows(0, 4, 4))
        assert [each.label for each in await company.owner.publish("w", alone)] == ["one"]
        await company.owner.leave("w", "one", has_died=True)
        found = await company.owner.next("w", "r", frozenset(), frozenset(), 0.0)
        assert found is None
        assert await company.owner.publish("w", alone) == ""

    asyncio.run(run())


def test_who_asks_for_all_is_told_of_those_who_come_back(monkeypatch) -> None:
    monkeypatch.setattr(owner, "_BACK_S", 60.0)

    async def run() -> None:
        company = Company()
        await company.present("one")
        await company.push("one")
        company.start()
        asking = asyncio.ensure_future(company.owner.members("w"))
        await asyncio.sleep(0.01)
        await company.present("one")
        assert await asking == ([company.members["one"]], [])

    asyncio.run(run())


def test_a_version_of_which_nobody_has_a_part_is_not_done() -> None:
    async def run() -> None:
        company = Company()
        await company.present("one")
        await company.owner.push("w", "one", 1, "one1")
        found = await company.owner.pending("w", "one", 1, 0.0)
        assert found.lacks == "nobody has all of w" and not found.has_died
        await company.present("other")
        await company.owner.leave("w", "other", has_died=True)
        found = await company.owner.pending("w", "one", 1, 0.0)
        assert found.lacks == "nobody has all of w since other has died" and found.has_died

    asyncio.run(run())


def test_readers_get_a_version_without_those_that_cannot_be_read() -> None:
    async def run() -> None:
        company = Company()
        company.members["copy"], company.pushed["copy"] = (
            member("copy", rows(2, 4, 4)),
            (1, "copy1"),
        )
        company.pushed |= {"one": (1, "one1"), "other": (1, "other1")}
        for each in company.pushed:
            about = company.members[each], *company.pushed[each]
            assert await company.owner.publish("w", *about) == ""
        for name, want in {"whole": rows(0, 4, 4), "first": rows(0, 2, 4)}.items():
            about = member(name)._replace(shards={"w": want})
            joined = frozenset[str]()
            await company.owner.subscribe("w", about, None, frozenset(), "", joined)

        async def keys(reader: str, *failed: str) -> set[str]:
            found = await company.owner.next("w", reader, frozenset(), frozenset(failed), 0.0)
            if not isinstance(found, Version):
                return set()
            assert found.token == {"one1", "other1", "copy1"}
            return set(found.keys.values())

        assert await keys("whole", "other1") == {"one1", "copy1"}
        assert await keys("whole", "other1", "copy1") == set()
        assert await keys("first", "other1", "copy1") == {"one1"}

        async def without(publisher: str) -> list[str]:
            return [each.label for each in await company.owner.without("w", publisher) or ()]

        assert await without("other") == [] and await without("one") == ["whole", "first"]
        assert await company.owner.without("w", "nobody") is None

    asyncio.run(run())


def test_an_owner_that_nobody_uses_takes_nobody_in() -> None:
    async def run() -> None:
        company = Company()
        await company.present("one")
        assert not await company.owner.leave("w", "one", has_died=True)
        await company.present("one")
        assert await company.owner.leave("w", "one")
        with pytest.raises(Unused):
            await company.present("other")

    asyncio.run(run())


def test_one_whose_owner_died_tries_to_register_until_it_can(monkeypatch) -> None:
    class Registers:
        def __init__(self) -> None:
            self.tries, self.is_done = 0, threading.Event()

        def register(self) -> None:
            self.tries += 1
            if self.tries < 4:
                raise ValueError("somebody has the name")
            self.is_done.set()

    one, told = Registers(), list[str]()
    log = SimpleNamespace(warning=lambda text, *facts: told.append(text % facts))
    monkeypatch.setattr(client, "_log", log)
    monkeypatch.setattr(client, "owner_handle", lambda: Local(SimpleNamespace(stay=bool)))
    monkeypatch.setattr(client, "_START_TIMEOUT_S", 0.0)
    monkeypatch.setattr(client, "_RETRY_S", 0.001)
    monkeypatch.setattr(cluster, "when_failed", lambda _, call: call(Exception("dead")))
    monkeypatch.setattr(cluster, "is_actor_death", bool)
    monkeypatch.setattr(cluster, "is_connected", lambda: True)
    monkeypatch.setattr(cluster, "node_id", lambda: "node")
    client.when_owner_dies(weakref.WeakMethod(one.register), "stay", "policy")
    assert one.is_done.wait(60)
    assert len(told) == 1 and "policy" in told[0] and "somebody has the name" in told[0]


def test_another_roll_gets_to_know_all(monkeypatch) -> None:
    class Dead(Exception):
        pass

    async def die(*_: object) -> None:
        raise Dead

    async def run() -> None:
        company = Company()
        await company.present("one")
        await company.present("reader")
        dead, company.roll = company.roll, Local(Roll())
        monkeypatch.setattr(dead._actor, "add", die)
        await company.present("other")
        found = {each.label for _, each in await company.roll.all.remote()}
        assert found == {"one", "reader", "other"}

    monkeypatch.setattr(cluster, "is_actor_death", lambda error: isinstance(error, Dead))
    asyncio.run(run())


# --- who reads, and who changes -----------------------------------------------------------------


def test_a_change_waits_for_those_who_read_and_goes_first_then() -> None:
    readers, order = Readers(), list[str]()
    is_read, may_end = threading.Event(), threading.Event()

    def read_first() -> None:
        with readers.reading(), readers.reading():
            is_read.set()
            may_end.wait()
            order.append("read")

    def change() -> None:
        readers.change(lambda: order.append("changed"), Deadline(None), "it is here")

    def read_then() -> None:
        with readers.reading():
            order.append("read then")

    threads = [threading.Thread(target=each) for each in (read_first, change, read_then)]
    threads[0].start()
    is_read.wait()
    with pytest.raises(TimeoutError, match=r"it is here, but its tensors are read: waited 0 s"):
        readers.change(bool, Deadline(0), "it is here")
    threads[1].start()
    while not readers._waiting:  # then no other thread begins
        time.sleep(0)
    threads[2].start()
    may_end.set()
    for each in threads:
        each.join()
    assert order == ["read", "changed", "read then"]
    with (
        readers.reading(),
        pytest.raises(RuntimeError, match=r"inside of `with subscriber\.frozen"),
    ):
        change()
    change()


def test_coroutines_that_read_again_and_again_do_not_stop_a_change() -> None:
    async def main() -> None:
        readers, seen = Readers(), list[int]()
        version = 0

        def change() -> None:
            nonlocal version
            version += 1

        async def read() -> None:
            while version < 3 and len(seen) < 10_000:
                with readers.reading():  # no await between two of these
                    before = version
                    await asyncio.sleep(0)
                    assert version == before
                seen.append(before)

        reading = asyncio.ensure_future(read())
        for number in range(1, 4):
            while not readers._inside:
                await asyncio.sleep(0)
            await readers.change_async(change, Deadline(None), "")
            assert version == number
        await reading
        assert (
            sorted(seen) == seen
            and len(seen) < 10_000
            and not readers._inside
            and not readers._waiting
        )

        with readers.reading():
            with pytest.raises(RuntimeError, match="inside of"):
                await readers.change_async(change, Deadline(None), "")
            with pytest.raises(RuntimeError, match="inside of"):
                readers.change(change, Deadline(None), "")
            waiting = asyncio.ensure_future(readers.change_async(change, Deadline(None), ""))
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert version == 3 and not readers._waiting

    asyncio.run(main())


def test_coroutines_that_are_inside_all_the_time_do_not_stop_a_change() -> None:
    async def main() -> None:
        readers, changes = Readers(), list[int]()
        is_over = False

        async def read() -> None:
            while not is_over:
                async with readers.reading_async(), readers.reading_async():
                    before = len(changes)
                    await asyncio.sleep(0.001)
                    assert len(changes) == before

        reading = [asyncio.ensure_future(read())]
        await asyncio.sleep(0.0005)
        reading.append(asyncio.ensure_future(read()))  # one of them is inside at any time
        for way in (1, 2):
            await readers.change_async(lambda: changes.append(1), Deadline(60), "")
            changing = readers.change, lambda: changes.append(1), Deadline(60), ""
            await asyncio.to_thread(*changing)
            assert len(changes) == 2 * way
        is_over = True
        await asyncio.gather(*reading)
        assert not readers._inside and not readers._waiting and not readers._sleeping

    asyncio.run(main())


def test_a_change_that_takes_long_stops_no_loop_and_no_deadline() -> None:
    readers, is_changing, may_end = Readers(), threading.Event(), threading.Event()

    def change() -> None:
        is_changing.set()
        assert may_end.wait(60)

    async def main() -> None:
        changing = asyncio.ensure_future(
            asyncio.to_thread(readers.change, change, Deadline(None), "")
        )
        await asyncio.to_thread(is_changing.wait)
        with pytest.raises(TimeoutError, match="it is here, but its tensors are read"):
            await asyncio.to_thread(readers.change, bool, Deadline(0.01), "it is here")
        with pytest.raises(TimeoutError, match="it is here, but its tensors are read"):
            await readers.change_async(bool, Deadline(0.01), "it is here")
        order: list[str] = []

        async def read() -> None:
            async with Frozen(readers):
                order.append("read")

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(0.01)
        assert not order
        may_end.set()
        await asyncio.gather(changing, reading)

    asyncio.run(main())


def test_a_coroutine_that_does_not_wait_its_turn_waits_for_the_change_that_is_made() -> None:
    readers, order = Readers(), list[str]()
    is_changing, may_end = threading.Event(), threading.Event()

    def change() -> None:
        is_changing.set()
        assert may_end.wait(60)
        order.append("changed")

    async def read() -> None:
        with Frozen(readers):
            order.append("read")

    changing = threading.Thread(target=readers.change, args=(change, Deadline(None), ""))
    reading = threading.Thread(target=asyncio.run, args=(read(),))
    changing.start()
    assert is_changing.wait(60)
    reading.start()
    while reading.is_alive() and not readers._news._waiters:
        time.sleep(0)
    may_end.set()
    changing.join()
    reading.join()
    assert order == ["changed", "read"]


def test_clients_come_while_all_are_ended() -> None:
    class Ending:
        def end(self) -> None:
            pass

    def add() -> None:
        while not is_over.is_set() and len(kept) < 20_000:
            kept.append(Ending())
            client._endings.add(kept[-1])

    kept: list[Any] = []
    before_s, is_over = sys.getswitchinterval(), threading.Event()
    sys.setswitchinterval(1e-6)
    adding = threading.Thread(target=add, daemon=True)
    adding.start()
    try:
        for _ in range(100):
            client._end_all()
    finally:
        sys.setswitchinterval(before_s)
        is_over.set()
        adding.join()
        client._endings.difference_update(kept)
