# SPDX-License-Identifier: Apache-2.0
"""Tensors that are read by NIXL: what is registered, and what happens to who holds or reads them.

What every transport must do is in ``test_rdt_transports``. On a CPU, NIXL reads through shared
memory, or TCP between nodes; with RDMA the calls are the same.
"""

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest

import rcg
from rcg.errors import ActorDiedError, NixlOutOfMemoryError, Transfer, Unavailable
from rcg.experimental import (
    deregister_nixl_memory,
    register_nixl_memory,
    register_nixl_memory_pool,
    set_nixl_cuda_stream,
)
from rcg.weights import Slice
from tests.cluster.nodes import on_node
from tests.cluster.stage import GUARD_S
from tests.cluster.trainers import SHAPES, Member
from tests.harness.peers import until

torch = pytest.importorskip("torch")
pytest.importorskip("nixl_cu12")
pytestmark = pytest.mark.usefixtures("ray_session")

LARGE = 100_000  # numbers: more than what stands in an envelope


def get(refs, **options):
    return rcg.get(refs, timeout=GUARD_S, **options)


@rcg.remote(num_cpus=0)
class Worker:
    def __init__(self):
        self.kept = []

    @rcg.method(tensor_transport="nixl")
    def make(self, number, size=LARGE):
        return torch.full((size,), float(number))

    @rcg.method(tensor_transport="nixl")
    def rows(self, number):
        """Views of one storage, which stays."""
        if not self.kept:
            self.kept.append(torch.zeros(10, LARGE))
        self.kept[0].fill_(number)
        return list(self.kept[0])

    @rcg.method(tensor_transport="auto")
    def otherwise(self):
        return torch.ones(LARGE)

    def total(self, *values):
        return sum(float(each.sum()) for value in values for each in self.tensors(value))

    @staticmethod
    def tensors(value):
        return value if isinstance(value, list) else [value]

    @rcg.method(tensor_transport="nixl")
    def two_types(self):
        numbers = torch.arange(8.0)
        return [numbers, numbers.view(torch.float64)]

    def sum_of_ref(self, refs, way):
        return float(rcg.get(refs[0], _tensor_transport=way).sum())

    def put_rows(self):
        self.kept = [torch.ones(10, LARGE)]
        register_nixl_memory(self.kept[0])
        found = [self.registered()]
        ref = rcg.put(list(self.kept[0]), _tensor_transport="nixl")
        found.append(self.registered())
        deregister_nixl_memory(self.kept[0])  # a reference needs it
        found.append(self.registered())
        del ref
        gc.collect()
        until(lambda: not self.held())
        deregister_nixl_memory(self.kept[0])
        return [*found, self.registered()]

    def registered(self):
        from rcg.rdt.process import here

        ours = here().nixl
        with ours._lock:
            ours._end_freed()
        return ours.facts()[0]

    def held(self):
        from rcg.rdt.process import here

        return here().store.facts().held

    def have_pool(self, size):
        register_nixl_memory_pool(size, "cpu")

    def get_into(self, refs, times):
        """Get the same reference into the same memory again and again."""
        out = torch.empty(LARGE)
        for _ in range(times):
            assert rcg.get(refs[0], out=out) is out
        return float(out.sum())

    @rcg.method(tensor_transport="nixl")
    def ones(self):
        """A tensor that stays."""
        self.kept = [torch.ones(LARGE)]
        return self.kept[0]

    def move(self, how):
        """Have the storage of this tensor lie where it did, or elsewhere, with other numbers."""
        if how == "in C++":
            self.kept[0].resize_(2 * LARGE)
        else:
            storage = self.kept[0].untyped_storage()
            size = storage.nbytes()
            storage.resize_(0)
            storage.resize_(size)
            self.kept[0].fill_(2)

    def forget_nixl(self):
        from rcg.rdt import nixl_agent, service

        service.is_installed = nixl_agent.is_installed = lambda: False

    def choose_nixl(self, choice="1"):
        os.environ["RCG_NIXL"] = choice

    @rcg.method(tensor_transport="auto")
    def mixed(self, number):
        """Large and small, one of them a view that is not contiguous."""
        large = torch.full((1000, 700), float(number))
        return {"large": large, "turned": large.t(), "small": torch.ones(3), "other": large + 1}

    def ways_of(self, value):
        """How the newest value came, and what it is."""
        from rcg.rdt.process import here

        assert value["turned"].stride() == (1, 700)
        ways = [each.transport for each in here().got if "register" not in each.transport]
        return ways[-1], [float(value[key].mean()) for key in ("turned", "small", "other")]

    def fail_reading(self):
        """Have NIXL fail as soon as it has read."""
        from rcg.rdt.nixl import Nixl, _Failed

        original = Nixl._transfer

        def transfer(*args):
            original(*args)
            raise _Failed("it must not work")

        Nixl._transfer = transfer

    def before_reading(self, path):
        """Wait, when the next read is about to start, until a file is removed."""
        from rcg.rdt.nixl import Nixl

        original = Nixl._know

        def know(*args):
            Nixl._know = original
            original(*args)
            open(path, "w").close()
            until(lambda: not os.path.exists(path))

        Nixl._know = know

    def pid(self):
        return os.getpid()

    def costs(self):
        return len(os.listdir("/proc/self/fd")) + threading.active_count()


@pytest.fixture(scope="module")
def actors(ray_session):
    """A maker and a taker; tests that spoil one make their own."""
    made = [Worker.remote(), Worker.remote()]
    yield made
    for each in made:
        rcg.kill(each)


@pytest.mark.full
def test_memory_is_registered_once_until_it_is_freed(actors):
    a, b = actors
    before = get(a.registered.remote())
    for number in range(3):
        rows = a.rows.remote(number)
        assert get(b.total.remote(rows)) == 10 * LARGE * number
        assert get(a.registered.remote()) == before + 1
    refs = [a.make.remote(number) for number in range(5)]
    assert get(b.total.remote(*refs)) == 10 * LARGE
    assert get(a.registered.remote()) == before + 6
    del refs, rows
    until(lambda: get(a.registered.remote()) == before + 1)


@pytest.mark.full
def test_users_say_what_is_registered(actors):
    a, _ = actors
    none, *rest = get(a.put_rows.remote())
    assert [each - none for each in rest] == [0, 0, -1]


@pytest.mark.full
def test_small_tensors_and_those_of_a_pool_are_copies(actors):
    a, b = actors
    before = get(a.registered.remote())
    small = [a.make.remote(number, 100) for number in range(50)]
    assert get(b.total.remote(*small)) == sum(range(50)) * 100
    assert get(a.registered.remote()) == before
    c = Worker.remote()
    get(c.have_pool.remote(LARGE * 4 * 3))
    refs = [c.make.remote(number) for number in range(3)]
    assert get(b.total.remote(*refs)) == 3 * LARGE
    assert get(c.registered.remote()) == 1
    with pytest.raises(
        NixlOutOfMemoryError, match="pool of 1200000 bytes has no room for 400000 more"
    ):
        get(b.total.remote(c.make.remote(1)))
    refs.pop()
    until(lambda: get(c.held.remote()) == 2)
    assert get(b.total.remote(c.make.remote(7))) == 7 * LARGE
    with pytest.raises(ValueError, match="Only one memory pool is supported"):
        get(c.have_pool.remote(100))
    rcg.kill(c)


@pytest.mark.parametrize("how", ["by FSDP", "in C++"])
def test_a_storage_that_was_resized_is_read_by_nobody(actors, how):
    """NIXL would read what lies there now."""
    a, b = actors
    ref = a.ones.remote()
    assert get(b.total.remote(ref, a.make.remote(1))) == 2 * LARGE
    get(a.move.remote(how))
    with pytest.raises(Transfer, match=r"Worker.ones.*storage of a tensor was resized since"):
        get(b.total.remote(ref))
    with pytest.raises(Transfer, match="was resized since"):
        get(ref)
    assert get(b.total.remote(a.make.remote(3))) == 3 * LARGE


@pytest.mark.full
def test_memory_of_the_reader_is_used_again(actors):
    a, b = actors
    before = get(b.registered.remote())
    assert get(b.get_into.remote([a.make.remote(3)], 20)) == 3 * LARGE
    until(lambda: get(b.registered.remote()) <= before + 1)
    out = torch.empty(LARGE)
    assert get(a.make.remote(4), out=out) is out and float(out.sum()) == 4 * LARGE


@pytest.mark.full
def test_two_hundred_reads_leave_nothing_behind(actors):
    a, b = actors
    costs = []
    for number in range(200):
        assert get(b.total.remote(a.make.remote(number), a.make.remote(1, 10))) == (
            LARGE * number + 10
        )
        if number in (20, 199):
            costs.append([get(each.costs.remote()) for each in actors])
    assert all(later <= early + 2 for early, later in zip(costs[0], costs[1], strict=True))
    until(lambda: max(get([each.registered.remote() for each in actors])) <= 5)
    until(lambda: not any(get([each.held.remote() for each in actors])))


@pytest.mark.full
def test_profiles_and_reports_show_what_was_registered(actors):
    a, b = actors
    with rcg.profile() as profile:
        ref = a.make.remote(1)
        get(b.total.remote(ref))
    ways = {each.transport for each in profile.trace.transfers}
    assert ways == {"nixl", "nixl: register"}
    text = str(rcg.report().tensors)
    assert "registered in" in text and "NIXL has" in text


@pytest.mark.full
def test_a_holder_that_dies_raises_at_once_and_the_next_one_works(actors, tmp_path):
    _, b = actors
    holder = Worker.remote()
    ref = holder.make.remote(1)
    assert get(b.total.remote(ref)) == LARGE
    mark = tmp_path / "mark"
    get(b.before_reading.remote(str(mark)))
    waiting = b.total.remote(ref)
    until(mark.exists)
    os.kill(get(holder.pid.remote()), signal.SIGKILL)
    until(lambda: not _lives(holder))
    mark.unlink()
    with pytest.raises(ActorDiedError, match="Worker"):
        get(waiting)
    with pytest.raises(ActorDiedError, match="Worker"):
        get(b.total.remote(ref))
    other = Worker.remote()
    assert get(b.total.remote(other.make.remote(2))) == 2 * LARGE
    rcg.kill(other)


def _lives(actor) -> bool:
    try:
        get(actor.pid.remote())
    except rcg.exceptions.RayActorError:
        return False
    return True


@pytest.mark.full
def test_an_actor_that_runs_again_is_read_from_again(actors):
    _, b = actors
    holder = Worker.options(max_restarts=1).remote()
    lost = holder.make.remote(1)
    assert get(b.total.remote(lost)) == LARGE
    pid = get(holder.pid.remote())
    os.kill(pid, signal.SIGKILL)
    until(lambda: _lives(holder))
    with pytest.raises((ActorDiedError, Transfer), match="Worker"):
        get(b.total.remote(lost))
    assert get(b.total.remote(holder.make.remote(2))) == 2 * LARGE
    rcg.kill(holder)


@pytest.mark.full
def test_an_actor_without_nixl_is_named_where_it_is_called(actors):
    a, _ = actors
    without = Worker.remote()
    get(without.forget_nixl.remote())
    with pytest.raises(Unavailable, match=r"Actor\(Worker, .*NIXL needs a package: pip install"):
        without.make.remote(1)
    with pytest.raises(Unavailable, match=r"Actor\(Worker, .*NIXL needs a package: pip install"):
        without.total.remote(a.make.remote(1))
    rcg.kill(without)


def test_what_was_made_for_another_transport_is_not_registered(actors):
    a, _ = actors
    with pytest.raises(ValueError, match="made for the tensor transport AUTO cannot be got by"):
        get(a.otherwise.remote(), _tensor_transport="nixl")
    assert float(get(a.make.remote(2), _use_object_store=True).sum()) == 2 * LARGE


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: register_nixl_memory([1]), "NIXL registers tensors of torch, got list"),
        (lambda: register_nixl_memory(torch.eye(2).to_sparse()), "NIXL registers dense tensors"),
        (lambda: register_nixl_memory_pool("1", "cpu"), "a number of bytes, got '1'"),
        (lambda: set_nixl_cuda_stream(3), "takes a torch.cuda.Stream or None, got 3"),
    ],
)
def test_what_cannot_be_registered_is_refused(call, error):
    with pytest.raises(TypeError, match=error):
        call()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The value has a tensor")
@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_written_later_reaches_readers_or_does_not(actors, size):
    """Small tensors are copied when they are made, larger ones are read where they lie."""
    _, b = actors
    tensor = torch.ones(size)
    ref = rcg.put(tensor, _tensor_transport="nixl")
    if size == LARGE:
        register_nixl_memory(tensor)
    tensor.fill_(2)
    expected = 2 * size if size == LARGE else size
    for way in ("nixl", "auto"):
        found = get(b.sum_of_ref.remote([ref], way))
        assert found == expected, way


@pytest.mark.full
def test_views_of_other_types_in_memory_of_the_user(actors):
    a, _ = actors
    out = torch.zeros(9)
    found = get(a.two_types.remote(), out=[out[1:9]])
    assert torch.equal(found[0], torch.arange(8.0))
    assert torch.equal(found[1], torch.arange(8.0).view(torch.float64))
    assert float(out[0]) == 0


# --- between nodes, where the transport is left to rcg


@pytest.fixture
def far(request, ray_session):
    """An actor on each of two nodes, which take NIXL though there is no RDMA."""
    if request.config.getoption("--nodes") < 2:
        pytest.skip("Ray has one node here: run the tests with --nodes 2")
    made = [on_node(Worker, number).remote() for number in (0, 1)]
    get([each.choose_nixl.remote() for each in made])
    yield made
    for each in made:
        rcg.kill(each)


def test_auto_takes_nixl_between_nodes_if_both_have_it(far):
    a, b = far
    for number in range(3):
        way, found = get(b.ways_of.remote(a.mixed.remote(number)))
        assert (way, found) == ("nixl", [number, 1, number + 1])
    assert get(a.registered.remote()) <= 3  # what is freed is registered no more
    for each, choice in ((a, "0"), (b, "0"), (b, "")):  # by default, only where there is RDMA
        get(each.choose_nixl.remote(choice))
        other = on_node(Worker, 1 if each is a else 0).remote()
        get(other.choose_nixl.remote())
        one, two = (a, other) if each is a else (other, b)
        assert get(two.ways_of.remote(one.mixed.remote(5))) == ("tcp", [5, 1, 6])
        rcg.kill(other)


def test_where_nixl_is_missing_or_fails_tensors_come_over_tcp(far):
    a, b = far
    get(b.fail_reading.remote())
    for number in range(3):
        way, found = get(b.ways_of.remote(a.mixed.remote(number)))
        assert (way, found) == ("tcp", [number, 1, number + 1])
    other = on_node(Worker, 1).remote()
    get(other.choose_nixl.remote())
    for spoil in (a.choose_nixl.remote("perhaps"), a.forget_nixl.remote()):
        get(spoil)
        for number in range(2):
            assert get(other.ways_of.remote(a.mixed.remote(number)))[0] == "tcp"
    rcg.kill(other)


def test_a_holder_on_another_node_that_dies_in_a_read(far, tmp_path):
    a, b = far
    ref = a.mixed.remote(1)
    assert get(b.ways_of.remote(ref))[0] == "nixl"
    mark = tmp_path / "mark"
    get(b.before_reading.remote(str(mark)))
    waiting = b.ways_of.remote(ref)
    until(mark.exists)
    os.kill(get(a.pid.remote()), signal.SIGKILL)
    until(lambda: not _lives(a))
    mark.unlink()
    with pytest.raises(ActorDiedError, match="Worker"):
        get(waiting)


class Trainer(Member):
    """A publisher or reader of weights that takes NIXL, and counts what it reads by that."""

    def __init__(self):
        super().__init__()
        os.environ["RCG_NIXL"] = "1"
        from rcg.rdt.nixl import Nixl

        self.reads, original = 0, Nixl.read

        def read(*args):
            original(*args)
            self.reads += 1

        Nixl.read = read

    def figures(self):
        from rcg.rdt.process import here

        return self.reads, here().nixl.facts()[0]


def test_weights_come_by_nixl_between_nodes(far):
    """Rows from one node, columns to another; the second time nothing is registered."""
    cls = rcg.remote(num_cpus=0)(Trainer)
    publishers = [on_node(cls, 0).remote() for _ in range(2)]
    reader = on_node(cls, 1).remote()
    shapes = SHAPES | {"columns": (600, 700)}
    for rank, each in enumerate(publishers):
        rows = {"columns": Slice(0, 300 * rank, 300 * (rank + 1), 600)}
        get(each.publish.remote("by-nixl", shapes, rows))
    shard = {"columns": Slice(1, 100, 450, 700)}
    get(reader.subscribe.remote("by-nixl", shapes, shard))
    figures = []
    for version in (1, 2, 3):
        get([each.push.remote(version) for each in publishers])
        assert get(reader.update.remote())[0] == version
        assert get(reader.differs.remote(version)) == []
        figures.append(get([each.figures.remote() for each in (reader, *publishers)]))
    assert [reads for (reads, _), *_ in figures] == [2, 4, 6]  # one from each publisher
    registered = [[count for _, count in each] for each in figures]
    assert registered[0] == registered[1] == registered[2]
    for each in (*publishers, reader):
        rcg.kill(each)
