# SPDX-License-Identifier: Apache-2.0
"""Tensors by reference as inputs and outputs of compiled graphs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelTimeout, GraphError
from rcg.experimental.collective import create_collective_group, destroy_all_collective_groups
from rcg.rdt import store
from rcg.rdt.held import keep_result
from rcg.rdt.process import existing
from tests.cluster.stage import GUARD_S, eventually
from tests.harness.rdt_managers import FileTransport

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    # A value that goes to its maker and to others is what these tests are about.
    pytest.mark.filterwarnings("ignore:RDT ObjectRef"),
]

rcg.register_tensor_transport("files", ["cpu"], FileTransport, np.ndarray)
SIZE = 300_000  # numbers: 1.2 MB, read where they lie


@rcg.remote(num_cpus=0)
class Worker:
    """Makes, takes and keeps tensors, and says what it holds."""

    count = 0

    @rcg.method(tensor_transport="auto")
    def make(self, n, size=SIZE):
        self.made = torch.full((size,), float(n))
        self.count += 1
        return {"made": self.made, "n": n}

    @rcg.method(tensor_transport="auto")
    def make_later(self, gate, n):
        gate.pass_through()
        return self.make(n)

    @rcg.method(tensor_transport="auto")
    def fail(self):
        raise KeyError("it does not want to")

    def step(self, n):
        return self.make(n)

    def add(self, value, n):
        self.made = value["made"] + n
        return {"made": self.made, "n": value["n"] + n}

    def numbers(self, n):
        return {"made": np.full(SIZE, n, np.float32), "n": n}

    def fail_in_time(self):
        raise TimeoutError("it took too long")

    def shorten_the_timer(self, seconds):
        """Have what nobody keeps be freed soon; returns what it was."""
        before, store._UNKEPT_S = store._UNKEPT_S, seconds
        return before

    def pair(self, n):
        return torch.full((10,), float(n)), torch.full((20,), float(n))

    def grow(self, n):
        return torch.full((4,), float(n))

    def first(self, value):
        return float(value["made"][0]), len(value["made"]), value["n"]

    def first_at_gate(self, gate, value):
        gate.pass_through()
        return self.first(value)

    def is_same(self, value):
        return value["made"].data_ptr() == self.made.data_ptr()

    def plain(self, n):
        return n

    def counted(self):
        return self.count

    def pid(self):
        return os.getpid()

    def held(self):
        found = existing()
        return 0 if found is None else found.store.facts().held

    def pulls(self):
        found = existing()
        return 0 if found is None else found.store.facts().pulls

    def unkept(self):
        return existing().store.facts().unkept

    def keep_unwanted(self):
        """Keep what nobody asks for."""
        keep_result(torch.ones(3), "auto", "a value")


@pytest.fixture(scope="module")
def pair(ray_session: None) -> Any:
    return Worker.remote(), Worker.remote()


def get(refs: Any) -> Any:
    return rcg.get(refs, timeout=GUARD_S)


def held_by(actor: Any) -> int:
    gc.collect()
    return int(get(actor.held.remote()))


def compiled(method: Any, **options: Any) -> Any:
    with InputNode() as inp:
        return method.bind(inp).compile(**options)


def kept(method: Any, transport: str = "auto") -> Any:
    with InputNode() as inp:
        return method.bind(inp).with_tensor_transport(transport, keep=True).compile()


# --- inputs


def test_an_actor_gets_the_value_of_an_input_from_its_maker(pair: Any) -> None:
    maker, reader = pair
    before = get(maker.pulls.remote())
    with compiled(reader.first) as graph:
        assert get(graph.execute(maker.make.remote(7))) == (7.0, SIZE, 7)
        assert get(graph.execute({"made": torch.ones(2), "n": 1})) == (1.0, 2, 1)
        assert get(maker.pulls.remote()) == before + 1  # the reader, and not the driver
        graph.execute(maker.make.remote(8))  # and nobody gets the result
        eventually(lambda: held_by(maker) == 0)


def test_an_input_is_held_until_it_was_read(pair: Any, gates: Any) -> None:
    maker, reader = pair
    gate = gates()
    with InputNode() as inp:
        dag = reader.first_at_gate.bind(gate, inp)
    with dag.compile() as graph:
        plain = graph.execute({"made": torch.ones(2), "n": 1})
        gate.wait_for(1)  # the reader is busy
        late = graph.execute(maker.make.remote(8))
        other = maker.make.remote(9)
        other.envelope(GUARD_S)
        assert held_by(maker) == 2
        del other
        eventually(lambda: held_by(maker) == 1)  # what nobody holds has been freed
        assert rcg.wait([plain], timeout=0)[0] == []
        gate.open()
        assert get([plain, late]) == [(1.0, 2, 1), (8.0, SIZE, 8)]
        eventually(lambda: held_by(maker) == 0)


@pytest.mark.full
def test_several_inputs_and_readers(pair: Any) -> None:
    maker, reader = pair
    with InputNode() as inp:
        dag = MultiOutputNode(
            [maker.is_same.bind(inp[0]), reader.first.bind(inp[0]), reader.first.bind(inp.other)]
        )
    one, other = maker.make.remote(1), reader.make.remote(2)
    get([one, other])
    with dag.compile() as graph:
        assert get(graph.execute(one, other=other)) == [True, (1.0, SIZE, 1), (2.0, SIZE, 2)]
        value = {"made": torch.ones(2), "n": 3}
        mine = rcg.put(value, _tensor_transport="object_store")
        assert get(graph.execute(mine, other=mine))[1:] == [(1.0, 2, 3)] * 2

        async def run() -> Any:
            return [await ref for ref in await graph.execute_async(one, other=value)]

        assert asyncio.run(run()) == [True, (1.0, SIZE, 1), (1.0, 2, 3)]


def test_a_method_that_fails_fails_the_execute(pair: Any) -> None:
    maker, reader = pair
    with compiled(reader.first) as graph:
        with pytest.raises(KeyError, match="it does not want to"):
            graph.execute(maker.fail.remote())
        with pytest.raises(TimeoutError, match="it took too long"):
            graph.execute(maker.fail_in_time.options(tensor_transport="auto").remote())
        assert get(graph.execute(maker.make.remote(7))) == (7.0, SIZE, 7)


@pytest.mark.full
def test_what_is_awaited_holds_up_no_thread_of_the_loop(pair: Any, gates: Any) -> None:
    maker, reader = pair
    gate = gates()

    async def run(graph: Any) -> Any:
        refs = [maker.make_later.remote(gate, n) for n in range(40)]
        calls = [asyncio.ensure_future(graph.execute_async(ref)) for ref in refs]
        await asyncio.sleep(0)  # they begin
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(graph.execute_async(refs[-1]), 0.1)
        await asyncio.to_thread(gate.open)
        return [await (await call) for call in calls]

    with compiled(reader.first) as graph:
        assert [n for _, _, n in asyncio.run(run(graph))] == list(range(40))


@pytest.mark.full
def test_execute_waits_for_a_value_as_long_as_for_room(pair: Any, gates: Any) -> None:
    maker, reader = pair
    gate = gates()
    ref = maker.make_later.remote(gate, 5)
    with compiled(reader.first, submit_timeout=0.2) as graph:
        with pytest.raises(
            ChannelTimeout, match=r"was not made within 0.2 s\. Nothing was submitted"
        ):
            graph.execute(ref)
        with pytest.raises(ChannelTimeout, match="was not made"):
            asyncio.run(graph.execute_async(ref))
        assert graph.statistics().executions == 0
        gate.open()
        rcg.wait([ref], timeout=GUARD_S)
        assert get(graph.execute(ref)) == (5.0, SIZE, 5)


@pytest.mark.full
def test_the_death_of_a_maker_fails_one_execution(ray_session: None, pair: Any) -> None:
    _, reader = pair
    maker = Worker.remote()
    ref = maker.make.remote(5)
    ref.envelope(GUARD_S)  # it was made
    with compiled(reader.first) as graph:
        pid = get(maker.pid.remote())
        rcg.kill(maker)
        eventually(lambda: not Path(f"/proc/{pid}").exists())  # Ray says so earlier
        with pytest.raises(ActorDiedError, match="Worker"):
            get(graph.execute(ref))
        assert get(graph.execute({"made": torch.ones(2), "n": 1})) == (1.0, 2, 1)


@pytest.mark.full
def test_a_reader_without_a_group_is_refused_before_anything_is_sent(pair: Any) -> None:
    maker, reader = pair
    create_collective_group([maker, Worker.remote()], backend="torch_gloo")
    ref = maker.make.options(tensor_transport="gloo").remote(5)
    try:
        with compiled(reader.first) as graph:
            with pytest.raises(ValueError, match="No communicators found for actors"):
                graph.execute(ref)
            assert graph.statistics().executions == 0
    finally:
        del ref
        eventually(lambda: held_by(maker) == 0)
        destroy_all_collective_groups()


@pytest.mark.full
def test_getting_a_value_counts_as_communication(pair: Any) -> None:
    maker, reader = pair
    ref = maker.make.remote(7)
    with compiled(reader.first) as graph:
        with graph.profile() as profiler:
            get(graph.execute(ref))
        (recorded,) = profiler.trace.graphs
        (read,) = [each for each in recorded.lane("a0").events if each["bytes"]][:1]
        assert read["bytes"] > 4 * SIZE
        took_ns = read["end_ns"] - read["start_ns"]
        moved_ns = took_ns - read["waited_ns"] - read["coded_ns"]
        assert moved_ns > 0.5 * (moved_ns + read["coded_ns"])


# --- outputs


def test_a_kept_output_stays_with_its_actor(pair: Any) -> None:
    maker, reader = pair
    with kept(maker.step) as graph:
        result = graph.execute(4)
        ref = get(result)
        assert type(ref) is rcg.TensorRef
        assert get(result) is ref
        assert get(maker.is_same.remote(ref))
        assert get(reader.first.remote(ref)) == (4.0, SIZE, 4)
        assert get(ref)["made"][0] == 4.0
        assert held_by(maker) == 1
        found = [each for each in rcg.report().tensors.refs if each.state == "held"]
        assert [each.bytes for each in found] == [4 * SIZE]
        assert repr(ref) == f"TensorRef({found[0].ref}, auto)"
        del found, result
    assert get(ref)["n"] == 4  # it outlives the graph
    del ref
    eventually(lambda: held_by(maker) == 0)


def test_a_kept_output_is_the_input_of_the_next_execution(pair: Any) -> None:
    maker, _ = pair
    with InputNode() as inp:
        dag = maker.add.bind(inp[0], inp[1]).with_tensor_transport("auto", keep=True)
    with dag.compile() as graph:
        value: Any = {"made": torch.zeros(SIZE), "n": 0}
        for n in range(1, 301):
            value = get(graph.execute(value, n))
        assert get(value)["n"] == get(value)["made"][0] == 300 * 301 / 2
        del value
    eventually(lambda: held_by(maker) == 0)
    assert get(maker.unkept.remote()) == 0


@pytest.mark.full
@pytest.mark.parametrize("is_got", [True, False])
def test_results_that_are_dropped_are_freed(pair: Any, is_got: bool) -> None:
    """Though the graph is not used any more."""
    maker, _ = pair
    before = get(maker.counted.remote())
    with kept(maker.step) as graph:
        for n in range(20):
            ref = graph.execute(n)
            if is_got:
                get(ref)
        del ref
        eventually(lambda: get(maker.counted.remote()) == before + 20)
        eventually(lambda: held_by(maker) == 0)


@pytest.mark.full
def test_a_kept_output_goes_elsewhere(pair: Any) -> None:
    maker, reader = pair

    @rcg.remote(num_cpus=0)
    class User:
        def run(self, graph, n):
            graph.execute(n + 1)  # dropped
            ref = rcg.get(graph.execute(n))
            assert rcg.get(ref)["n"] == n
            return ref, rcg.get(graph.execute(n + 2))

        def take(self, refs):
            return [rcg.get(ref)["n"] for ref in refs]

    user = User.remote()
    with kept(maker.step) as graph:
        refs = get(user.run.remote(graph, 3))
        assert get(user.take.remote(list(refs))) == [3, 5]
        assert get(reader.first.remote(refs[0])) == (3.0, SIZE, 3)
        mine = get(graph.execute(6))
        assert get(user.take.remote([mine])) == [6]
        with compiled(reader.first) as other:
            assert get(other.execute(mine)) == (6.0, SIZE, 6)
        del refs, mine
        eventually(lambda: held_by(maker) == 0)


@pytest.mark.full
@pytest.mark.parametrize("transport", ["auto", "nixl", "object_store", "files"])
def test_transports_of_kept_outputs(pair: Any, transport: str) -> None:
    maker, reader = pair
    method = maker.numbers if transport == "files" else maker.step
    dag = method.bind(InputNode()).with_tensor_transport(transport, keep=True)
    with dag.compile() as graph:
        ref, uncompiled = get(graph.execute(4)), get(dag.execute(4))
        assert ref.transport == uncompiled.transport == transport
        assert (
            get([reader.first.remote(each) for each in (ref, uncompiled)]) == [(4.0, SIZE, 4)] * 2
        )


def test_several_outputs_of_which_some_are_kept(pair: Any) -> None:
    maker, reader = pair
    with InputNode() as inp:
        one, two = maker.pair.options(num_returns=2).bind(inp)
        one.with_tensor_transport("auto", keep=True)
        sums = rcg.collective.allreduce.bind([maker.grow.bind(inp), reader.grow.bind(inp)])
        sums[1].with_tensor_transport("auto", keep=True)
        dag = MultiOutputNode([one, two, *sums, reader.plain.bind(one), one])
    with dag.compile() as graph:
        found = get(graph.execute(3))
        assert [type(each) is rcg.TensorRef for each in found] == [1, 0, 0, 1, 0, 1]
        assert found[5] is found[0]
        assert get(found[0]).tolist() == found[4].tolist() == [3.0] * 10
        assert get(found[3]).tolist() == found[2].tolist() == [6.0] * 4
    uncompiled = get(dag.execute(3))
    assert get(uncompiled[0]).tolist() == [3.0] * 10
    assert get(uncompiled[3]).tolist() == [6.0] * 4
    assert uncompiled[1].tolist() == [3.0] * 20


@pytest.mark.full
@pytest.mark.parametrize("at_handle", [False, True])
def test_a_result_that_was_not_got_yet_is_kept(pair: Any, at_handle: bool) -> None:
    maker, _ = pair
    before = get(maker.shorten_the_timer.remote(1.0))

    def outlive_the_timer(maker):
        """Wait until what nobody has kept is freed."""
        freed = rcg.get(maker.unkept.remote())
        rcg.get(maker.keep_unwanted.remote())
        eventually(lambda: rcg.get(maker.unkept.remote()) > freed)

    @rcg.remote(num_cpus=0)
    class User:
        def late(self, graph, maker):
            result = graph.execute(3)
            rcg.wait([result])
            outlive_the_timer(maker)
            return rcg.get(rcg.get(result))["n"]

    try:
        with kept(maker.step) as graph:
            if at_handle:
                assert get(User.remote().late.remote(graph, maker)) == 3
            else:
                result = graph.execute(3)
                rcg.wait([result], timeout=GUARD_S)
                outlive_the_timer(maker)
                assert get(get(result))["n"] == 3
                del result
            late = graph.execute(4)
            rcg.wait([late], timeout=GUARD_S)
        assert late  # the graph has ended, and its results are gone
        eventually(lambda: held_by(maker) == 0)
    finally:
        get(maker.shorten_the_timer.remote(before))


def test_a_refused_hint_changes_nothing_and_a_forked_child_has_no_graph_to_end(pair: Any) -> None:
    maker, _ = pair
    node = maker.plain.bind(InputNode()).with_tensor_transport("auto", keep=True)
    with pytest.raises(GraphError, match="carrier pigeon"):
        node.with_tensor_transport("carrier pigeon")
    with node.compile() as graph:
        ref = graph.execute(7)
        assert rcg.wait([ref], timeout=GUARD_S)[0]
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                graph.teardown()
                with graph:
                    pass
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert type(get(ref)) is rcg.TensorRef


@pytest.mark.full
def test_a_failure_in_place_of_a_kept_output(pair: Any) -> None:
    maker, _ = pair
    with kept(maker.first) as graph:
        with pytest.raises(TypeError):
            get(graph.execute(7))
        assert get(get(graph.execute({"made": torch.ones(2), "n": 1}))) == (1.0, 2, 1)


@pytest.mark.full
def test_what_cannot_be_kept_is_refused_where_it_is_said(pair: Any) -> None:
    maker, reader = pair
    with InputNode() as inp:
        node = maker.step.bind(inp)

        def refuse(match: str, of: Any = node, transport: Any = "auto", **options: Any) -> None:
            with pytest.raises(GraphError, match=match):
                of.with_tensor_transport(transport, keep=True, **options)

        refuse("this is an input", inp)
        refuse("Invalid tensor transport: 7", transport=7)
        refuse("does not have tensor transport GLOO available", transport="gloo")
        refuse("give only a transport", device="cpu")
        alone = rcg.remote(enable_tensor_transport=False)(Plain).remote()
        refuse("enable_tensor_transport=False", alone.make.bind(inp))
        rays = rcg.wrap_actor(ray.remote(num_cpus=0)(Plain).remote())
        refuse("was not made by rcg.remote", rays.make.bind(inp))
        used = maker.step.bind(inp).with_tensor_transport("auto", keep=True)
        dag = reader.first.bind(used)
    with pytest.raises(GraphError, match=r"Worker\.step was given .* for an output of the DAG"):
        dag.compile()


class Plain:
    def make(self, n):
        return torch.full((4,), float(n))
