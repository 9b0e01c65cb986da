# SPDX-License-Identifier: Apache-2.0
"""Threads that cannot start, once or for a while: an error that says so, nothing left behind."""

from __future__ import annotations

import ast
import asyncio
import os
import pickle
import re
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

import rcg
from rcg import cluster, threads
from rcg.errors import CommError, OutOfThreads, Transfer
from rcg.rdt import awaiting
from rcg.rdt.envelope import Holder
from rcg.rdt.groups import MemberGroups
from rcg.rdt.keeper import Keeper
from rcg.rdt.process import _Reach
from rcg.rdt.pull import Connections, Wanted, at_each_holder
from rcg.rdt.service import Service
from rcg.rdt.store import Entry, Store
from rcg.runtime.failure import Origin, capture, to_exception
from rcg.runtime.remote.client import Client
from rcg.threads import LockTaken, out_of_threads, run_behind, run_together, start_thread
from rcg.wire import messages
from tests.harness.driven import Driven
from tests.harness.peers import (
    GUARD_S,
    ctrl_c_anywhere,
    descriptors,
    no_threads,
    says_what_is_lacking,
    until,
)
from tests.harness.served import Loop, Served

PACKAGE = Path(rcg.__file__).parent


def lacks(error: BaseException | None) -> bool:
    """Whether an error is the one for threads that cannot start, and names the limits."""
    return type(error) is OutOfThreads and says_what_is_lacking(error)


# --- starting


def test_a_thread_that_cannot_start_is_an_error_that_names_the_limits():
    thread = threading.Thread(target=int, name="rcg-test")
    with no_threads() as names, pytest.raises(RuntimeError) as caught:
        start_thread(thread, "to do something", "Worker")
    assert names == ["rcg-test"] and lacks(caught.value)
    assert "in Worker (process" in str(caught.value) and "to do something" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.limit) == (
        OutOfThreads,
        str(caught.value),
        caught.value.limit,
    )
    start_thread(thread, "to do something").join()


def test_an_interpreter_that_ends_is_no_lack_of_threads():
    error = RuntimeError("can't create new thread at interpreter shutdown")
    text = str(out_of_threads(error, "to do something"))
    assert "its interpreter is ending" in text and "limit" not in text


def started_here(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The threads that a file makes, and whether ``start_thread`` starts each, as a daemon."""
    nodes = [*ast.walk(tree)]
    calls = [(ast.unparse(each.func), each) for each in nodes if isinstance(each, ast.Call)]
    starts = {ast.unparse(each.args[0]) for name, each in calls if name == "start_thread"}
    names = {
        each.value: ast.unparse(each.targets[0]) for each in nodes if isinstance(each, ast.Assign)
    }
    for name, each in calls:
        if name in ("threading.Thread", "threading.Timer"):
            text = ast.unparse(each)
            is_started = text in starts or names.get(each) in starts
            ends_alone = "daemon=True" in text or f"{names.get(each)}.daemon" in names.values()
            yield text, is_started and ends_alone


def test_every_thread_of_rcg_is_started_where_its_failure_is_an_error_of_rcg():
    bad = "one = threading.Thread(target=f)\nstart_thread(one, '')"
    assert [is_right for _, is_right in started_here(ast.parse(bad))] == [False]
    found = 0
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name == "threads.py":
            continue
        text = path.read_text()
        assert "ThreadPoolExecutor(" not in text and "asyncio.to_thread(" not in text, name
        assert "import Thread" not in text and "import Timer" not in text, name
        assert "start_new_thread(" not in text or name == "wire/packets.py", name
        for thread, is_right in started_here(ast.parse(text)) if "thread" in text else ():
            assert is_right, f"{name}: {thread}"
            found += 1
    assert found > 20


def test_every_kind_of_thread_is_in_the_table_of_the_architecture():
    table = (PACKAGE.parent / "ARCHITECTURE.md").read_text().partition("\n## Threads\n")[2]
    table = table.partition("\n## ")[0]
    known = {re.sub(r"<\w+>", "", name) for name in re.findall(r"`(rcg-[^`]+)`", table)}
    started = re.compile(r'(?:name = |name=|together\(.*|owner\(.*|Sideline\().*?f?"(rcg-[^"]*)"')
    texts = [re.sub(r"\{[^}]*\}", "", path.read_text()) for path in PACKAGE.rglob("*.py")]
    found = {name for text in texts if "thread" in text for name in started.findall(text)}
    assert len(found) > 25 and not found - known
    assert not {name for name in known if not any(f'"{name}"' in text for text in texts)}


# --- locks

# Where each waiter has a lock of its own, and where it is asyncio's.
_MAY_ACQUIRE = {"threads.py", "runtime/sleepers.py", "runtime/driver/asyncio_bridge.py"}


def lost_locks(tree: ast.AST) -> Iterator[str]:
    """What would leave a lock locked if an exception came at the wrong moment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("acquire", "acquire_lock"):
            yield ast.unparse(node)
        if isinstance(node, ast.FunctionDef) and "contextmanager" in ast.unparse(node):
            for block in ast.walk(node):
                if isinstance(block, ast.With) and any(
                    isinstance(each, ast.Yield) for each in ast.walk(block)
                ):
                    entered = [ast.unparse(item.context_expr) for item in block.items]
                    yield from [each for each in entered if "(" not in each or "held(" in each]


def test_every_lock_of_rcg_is_taken_in_a_way_that_no_exception_can_come_between():
    assert [*lost_locks(ast.parse("if lock.acquire(False):\n pass"))] == ["lock.acquire"]
    generator = "@contextlib.contextmanager\ndef turn():\n with self.lock, f():\n  yield"
    assert [*lost_locks(ast.parse(generator))] == ["self.lock"]
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in _MAY_ACQUIRE:
            assert not [*lost_locks(ast.parse(path.read_text()))], name


@pytest.mark.parametrize("timeout_s", [None, 0, GUARD_S, 1e300])
def test_an_exception_at_any_place_leaves_no_lock_locked(timeout_s):
    lock, ran = threading.Lock(), []

    def work() -> None:
        with threads.held(lock, timeout_s):
            assert lock.locked()
            ran.append(1)

    place = f"{__name__}.{work.__qualname__}"
    for _ in ctrl_c_anywhere(work, place, "rcg.threads.held"):
        assert not lock.locked()
    assert ran


def test_a_lock_that_is_not_free_in_time_is_an_error_and_stays_its_owners():
    lock = threading.Lock()

    def work() -> None:
        with pytest.raises(LockTaken, match="not done"), threads.held(lock, 0.001, "not done"):
            pytest.fail("it runs beside the other one")

    with lock:
        for _ in ctrl_c_anywhere(work, "rcg.threads.held", "rcg.threads._refuse"):
            assert lock.locked()


@pytest.mark.parametrize("after", [0, 1, 2, 99])
def test_what_should_run_at_once_runs_on_the_threads_that_there_are(after):
    done: deque[int] = deque()
    with no_threads(after):
        run_together([lambda n=n: done.append(n) for n in range(9)], "rcg-test", most=4)
    assert sorted(done) == list(range(9))
    run_together([], "rcg-test")


def test_a_coroutine_makes_the_call_itself_where_no_thread_can_start():
    where: list[int] = []

    async def run() -> int:
        return await threads.to_thread(lambda: where.append(threading.get_ident()) or 5)

    async def run_and_wait() -> int:
        loop = asyncio.get_running_loop()
        with no_threads():
            found = await run()
        await loop.run_in_executor(None, int)  # its thread finds what was left there
        return found

    assert asyncio.run(run_and_wait()) == 5 and where == [threading.get_ident()]
    assert asyncio.run(run()) == 5 and where[1:] != where[:1]

    async def fail() -> None:
        await threads.to_thread(lambda: ([].pop() and None) or raises())

    def raises() -> None:
        raise RuntimeError

    with pytest.raises(IndexError):
        asyncio.run(fail())


# --- getting and awaiting tensors


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that get tensors end soon."""
    monkeypatch.setattr(awaiting, "_IDLE_S", 0.01)


def test_values_that_no_thread_can_get_are_got_once_threads_are_there_again():
    with no_threads():
        failed = [awaiting.submit("holder", lambda: 1) for _ in range(20)]
        errors = [each.exception(GUARD_S) for each in failed]
    assert all(map(lacks, errors)) and len(set(map(id, errors))) == 20
    assert awaiting.submit("holder", lambda: 2).result(GUARD_S) == 2


def test_a_value_that_a_running_thread_can_get_waits_for_it():
    busy = threading.Event()
    first = awaiting.submit("holder", busy.wait)
    with no_threads() as names:
        others = [awaiting.submit("holder", lambda n=n: n) for n in range(20)]
        assert names == ["rcg-pull"] * 20 and not any(each.done() for each in others)
    busy.set()
    assert first.result(GUARD_S) and [each.result(GUARD_S) for each in others] == [*range(20)]


def test_threads_that_have_nothing_to_do_end_one_by_one():
    busy = threading.Event()
    waiting = [awaiting.submit("holder", busy.wait) for _ in range(3)]
    lane = awaiting._lanes["holder"]
    assert lane.threads == 3
    busy.set()
    assert all(each.result(GUARD_S) for each in waiting)
    until(lambda: not lane.threads)
    assert not awaiting._lanes


class Raced(SimpleQueue[Any]):
    """Jobs that another thread takes once it has been seen that there are some."""

    def empty(self) -> bool:
        return False


def test_a_thread_does_not_wait_under_the_lock_of_all_for_what_another_one_took(monkeypatch):
    monkeypatch.setattr(awaiting, "SimpleQueue", Raced)
    assert awaiting.submit("holder", lambda: 3).result(GUARD_S) == 3
    until(lambda: not awaiting._lanes)


def test_ctrl_c_while_a_thread_is_started_counts_none_that_does_not_run():
    def submit() -> None:
        awaiting.submit("holder", int).result(GUARD_S)

    for _ in ctrl_c_anywhere(submit, "rcg.rdt.awaiting.submit", "rcg.threads.start_thread"):
        until(lambda: "holder" not in awaiting._lanes or not awaiting._lanes["holder"].threads)
    submit()
    until(lambda: not awaiting._lanes)


class Made:
    """Stands for Ray, for values that are awaited: some are made, some are not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: set[int] = set()
        monkeypatch.setattr(cluster, "ready_of", self.ready_of)
        monkeypatch.setattr(cluster, "get", lambda ref: ref)

    def ready_of(self, refs: list[int], timeout_s: float = 0.0) -> list[int]:
        if timeout_s and not self.made.intersection(refs):
            threading.Event().wait(0.001)
        return [ref for ref in refs if ref in self.made]


def future(ref: int) -> Future[Any]:
    return awaiting.future_of(ref, lambda made: made)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    fake = Made(monkeypatch)
    yield fake
    fake.made.update(range(1000))
    until(lambda: not any(each.name == "rcg-await" for each in threading.enumerate()))


def test_what_no_thread_can_wait_for_is_awaited_once_threads_are_there_again(ray):
    with no_threads():
        errors = [future(number).exception(GUARD_S) for number in range(50)]
    assert all(map(lacks, errors)) and len(set(map(id, errors))) == 50
    ray.made.update(range(50))
    assert [future(number).result(GUARD_S) for number in range(50)] == [*range(50)]


def test_one_thread_awaits_all_that_exceed_the_threads_or_their_futures_raise(ray):
    waiting = [future(number) for number in range(awaiting._MOST)]
    with no_threads():
        assert lacks(future(100).exception(GUARD_S))
    late = future(101)
    ray.made.update(range(awaiting._MOST))
    assert [each.result(GUARD_S) for each in waiting] == [*range(awaiting._MOST)]
    until(lambda: awaiting.holders_of([]) not in awaiting._lanes)  # nobody opens values any more
    with no_threads():  # the thread that looks after all others has this one, too
        later = future(102)
        # No thread can open this value: its future gets the error, and the waiting thread goes on.
        ray.made.update([101])
        assert lacks(late.exception(GUARD_S))
    ray.made.update([102])
    assert later.result(GUARD_S) == 102


@pytest.mark.parametrize("most", [0, awaiting._MOST], ids=["all by one thread", "one by one"])
def test_ctrl_c_while_a_value_is_awaited_counts_no_thread_that_does_not_run(ray, monkeypatch, most):
    monkeypatch.setattr(awaiting, "_MOST", most)
    ray.made.add(1)
    for _ in ctrl_c_anywhere(
        lambda: future(1).result(GUARD_S), "rcg.rdt.awaiting.future_of", "rcg.threads.start_thread"
    ):
        until(lambda: not awaiting._waiting and not awaiting._is_polling)
    assert future(1).result(GUARD_S) == 1


# --- processes that hold tensors


def member(key: str) -> tuple[Store, MemberGroups, Service, Holder]:
    """A process that holds tensors, and is a member of the group g."""
    store, groups = Store(key), MemberGroups(key, _Reach())
    service = Service(store, groups, deque(), "secret", f"\0rcg-test-{uuid.uuid4().hex}")
    service.open()
    holder = service.holder = Holder(service.address, key, "secret", f"Actor({key})", key, "")
    return store, groups, service, holder


def joined(groups: MemberGroups, rank: int, *keys: str, name: str = "g") -> None:
    message = messages.JoinGroup(
        number=0,
        group=name,
        token="t",
        backend="gloo",
        rank=rank,
        labels=keys,
        keys=keys,
        secrets=("secret",) * len(keys),
    )
    assert groups.join(message) == ""


torch = pytest.importorskip("torch")


def held(store: Store, key: str, size: int = 100_000) -> Wanted:
    """Have a store hold a tensor; returns what another process wants then."""
    from rcg.rdt.envelope import Envelope, take_apart
    from rcg.rdt.transports import find_transport
    from rcg.runtime.codec import make_codec

    tensor = torch.full((size,), float(len(key)))
    contents, payloads = take_apart(tensor, make_codec())
    store.add(Entry(key, tensor, contents, payloads, "gloo", "The value"))
    envelope = Envelope(key, holders[store.key], "gloo", contents)
    return Wanted(envelope, find_transport("gloo"), "g")


holders: dict[str, Holder] = {}


class Trio:
    """A holder, and two processes that pull from it, all of them in this one."""

    def __init__(self, size: int = 100_000) -> None:
        self.store, self.groups, self.service, holders["a"] = member("a")
        self.wanted = held(self.store, "value", size)
        self.pulling = {}
        joined(self.groups, 0, "a", "b", "c")
        for rank, key in enumerate("bc", 1):
            groups = MemberGroups(key, _Reach())
            joined(groups, rank, "a", "b", "c")
            self.pulling[key] = Connections(key, groups, deque())

    def pull(self, key: str, count: int = 1) -> list[Any]:
        return self.pulling[key].pull([self.wanted] * count)

    def pairs(self) -> int:
        return sum(len(each.pairs) for each in self.groups.all())

    def close(self) -> None:
        for each in self.pulling.values():
            each.close()
        until(lambda: not self.pairs())
        self.service.close()


@pytest.fixture
def trio() -> Iterator[Trio]:
    made = Trio()
    yield made
    made.close()


def test_a_holder_without_threads_is_not_called_dead(trio):
    with no_threads() as names:
        (error,) = trio.pull("b")
    assert names == [f"rcg-tensors-{os.getpid()}"]
    assert lacks(error) and "Actor(a)" in str(error)
    (found,) = trio.pull("b")
    assert found[0].numel() == 400_000


def test_results_that_fail_together_have_an_error_each(trio):
    with no_threads():
        errors = trio.pull("b", 3)
    assert all(map(lacks, errors)) and len(set(map(id, errors))) == 3

    class Uncopied(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(one)

    def fail(_: list[int]) -> list[Any]:
        raise Uncopied(1, 2)

    first, *others = at_each_holder([trio.wanted.envelope] * 3, fail)
    assert type(first) is Uncopied and len(set(map(id, others))) == 2
    assert all(type(each) is Transfer and "Uncopied" in str(each) for each in others)


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("times", [1, 100])
def test_a_pull_without_threads_says_so_and_the_next_one_works(trio, after, times):
    with no_threads(after, times):
        (found,) = trio.pull("b")
    if isinstance(found, Exception):
        assert "no more threads can be started" in str(found) and "ulimit -u" in str(found)
        assert "has ended" not in str(found)
    for key in "bc":
        (found,) = trio.pull(key)
        assert found[0].view(torch.float32).sum() == 500_000


def test_a_process_that_goes_while_it_takes_ends_no_pair_but_its_own(trio):
    assert trio.pull("c")[0][0].numel() == 400_000
    sending = threading.Event()
    communicator = pair_of(trio, "c")._communicator
    assert communicator is not None
    trio.pull("b")
    other = pair_of(trio, "b")

    def send(*_: Any) -> None:
        sending.set()
        trio.pulling["b"].to(holders["a"])._joined.connection.shutdown(socket.SHUT_RDWR)
        raise CommError("the connection to a rank is lost")

    other._communicator.send = send
    (error,) = trio.pull("b")
    assert type(error) is Transfer and sending.is_set()
    assert "was closed" in str(error)
    until(lambda: trio.pairs() == 1)
    (found,) = trio.pull("c")
    assert found[0].numel() == 400_000 and pair_of(trio, "c")._communicator is communicator
    (found,) = trio.pull("b")  # a process that has come again, or lives: by a pair of its own
    assert found[0].numel() == 400_000 and trio.pairs() == 2
    (group,) = trio.pulling["b"]._groups.all()
    assert len(group.pairs) == 1  # the other one has gone at this end, too


def test_a_group_that_the_holder_has_left_is_used_for_it_no_more(trio):
    trio.groups.leave("g")
    (error,) = trio.pull("b")
    assert type(error) is Transfer
    assert "Actor(a) cannot send tensors: group g was closed" in str(error)
    groups = trio.pulling["b"]._groups
    assert groups.with_member("a", "gloo") == [] and groups.with_member("c", "gloo") != []
    assert groups.why_ended("a", "gloo") == str(error)


def pair_of(trio: Trio, key: str) -> Any:
    """The holder's end of its pair with a process."""
    (group,) = trio.groups.all()
    (pair,) = [each for each in group.pairs.values() if f"/{key}/" in each._membership(None).group]
    return pair


def test_a_store_that_nobody_could_look_after_is_looked_after_later():
    keeper = Keeper(Store("k"), "k", SimpleNamespace(take_ended=set))
    with no_threads() as names:
        for _ in range(2):
            keeper.watch_store()
        with pytest.raises(OutOfThreads):
            keeper.start()
    assert names == ["rcg-keeper"] * 3 and not keeper._threads


def test_a_group_that_is_left_without_threads_leaves_no_communicator(trio):
    for key in "bc":
        trio.pull(key)
    opened = [each._communicator for group in trio.groups.all() for each in group.pairs.values()]
    assert len(opened) == 2
    with no_threads() as names:
        trio.groups.leave("g")
    assert "rcg-group-end" in names
    assert all(not each._connections and each._group is None for each in opened)


@pytest.mark.parametrize("after", [0, 99], ids=["without threads", "with threads"])
def test_a_pair_that_is_used_when_its_group_is_left_is_closed_by_its_user(trio, after):
    trio.pull("b")

    def use(communicator: Any) -> Any:
        with no_threads(after):
            trio.groups.leave("g")
        until(lambda: not any(each.name == "rcg-group-end" for each in threading.enumerate()))
        assert communicator._group is not None
        return communicator

    assert pair_of(trio, "b").run(use)._group is None


# --- compiled graphs


def test_a_member_that_cannot_run_the_profiler_says_so_and_stays(served: Served):
    client, loop = served.client(), Loop()
    client.close_descriptors()
    client.watch(loop, "rcg-watch-test")
    until(lambda: served.control.lives.pids)
    with no_threads() as names:
        found = served.control.questions.profile_torch(True, GUARD_S)
    assert names == ["rcg-torch"] and "no more threads can be started" in found["a0"]
    assert served.control.questions.ask_where(GUARD_S) == {"a0": ["a.py:1 in f"]}
    assert not loop.ended.is_set()
    client.finish()
    client.close()


def test_a_graph_is_torn_down_where_no_thread_can_start():
    with no_threads() as names:
        assert run_behind(lambda said: ["done"]) == ["done"]
    assert names == ["rcg-teardown"]


def test_a_graph_whose_control_has_no_thread_leaves_no_descriptor():
    before = descriptors()
    for _ in range(3):
        with no_threads() as names, pytest.raises(OutOfThreads) as caught:
            Served()
        assert names == ["rcg-control"] and says_what_is_lacking(caught.value)
    assert len(descriptors() - before) == 9  # the memory that the test made


@pytest.mark.parametrize("after", [0, 1, 2], ids=["serve", "results", "handle"])
def test_a_handle_without_a_thread_here_or_there_says_so(driven: Callable[..., Driven], after):
    graph = driven()
    facts = replace(graph.engine.facts(), owner_pid=os.getpid())
    with no_threads(after, 1) as names, pytest.raises(OutOfThreads) as caught:
        Client(facts).open()
    assert len(names) == 1 and says_what_is_lacking(caught.value)
    client = Client(facts)
    client.join(client)
    client.open()
    client.leave(client)
    until(lambda: client.error is not None)


def test_a_result_is_awaited_without_a_thread(driven: Callable[..., Driven]):
    graph = driven()

    async def run() -> Any:
        ref = await graph.engine.execute_async(5)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()  # its thread is there
            with no_threads() as names:
                waiting = asyncio.ensure_future(wait_for(ref))
                await asyncio.sleep(0.01)
                pool.submit(graph.echo)
                found = await waiting
            assert not names
            return found

    async def wait_for(ref: Any) -> Any:
        return await ref

    assert asyncio.run(asyncio.wait_for(run(), GUARD_S)) == 5


class Interrupting(Exception):
    """On the main thread its text raises KeyboardInterrupt."""

    def __str__(self) -> str:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return "as ever"


def test_an_exception_that_no_thread_can_describe_is_named_by_its_class():
    origin = Origin("Stage", "id", "Stage", 1, "")

    def text() -> str:
        try:
            raise Interrupting
        except Interrupting as error:
            return str(to_exception(capture(error, origin, "run", 3)))

    assert "as ever" in text()
    with no_threads():
        assert "Interrupting (its text is missing: no more threads can be started" in text()
