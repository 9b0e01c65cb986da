# SPDX-License-Identifier: Apache-2.0
"""Building a group of Gloo when something goes wrong just then; here its ranks are threads.

It runs in a process of its own, whose descriptors and threads are counted.
"""

from __future__ import annotations

import pytest

from tests.harness.interpreter import printed

HEAD = """
import gc, os, sys, threading, time
import torch
from rcg.comm import Membership, ReduceOp
from rcg.comm import gloo_group
from rcg.comm.gloo import GlooCommunicator
from rcg.comm.local_store import LocalStore
from rcg.errors import CommError, GroupAborted

class Slow(LocalStore):
    '''Gives wrong addresses in the first attempts: then each rank waits until the other connects.

    Of two ranks, that of the lower port waits. The ports are compared as they lie in memory.
    '''

    def __init__(self, attempts):
        super().__init__()
        self.attempts = attempts
        self.waits = threading.Event()

    def of(self, rank):
        return OneRank(self, rank)

class OneRank:
    def __init__(self, shared, rank):
        self.shared, self.rank = shared, rank
        self.set, self.has, self.add = shared.set, shared.has, shared.add

    def get(self, keys, timeout_s=None):
        found = self.shared.get(keys, timeout_s)
        attempt, _, rest = keys[0].partition("/gloo/")
        if rest and int(attempt) < self.shared.attempts and not rest.endswith(f"/{self.rank}"):
            self.shared.waits.set()
            (value,) = found
            start = gloo_group._address_at("127.0.0.1").search(value).start(1)
            found = [value[:start] + b"\\xff\\xff" + value[start + 2:]]
        return found

def counts():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

def settle(before):
    deadline = time.monotonic() + 60
    while any(now > then for now, then in zip(counts(), before, strict=True)):
        assert time.monotonic() < deadline, (before, counts())
        time.sleep(0.01)

def opening(store, found, timeout_s=60, hosts=("127.0.0.1", "127.0.0.1"), kind=GlooCommunicator):
    def run(rank):
        try:
            found[rank] = kind.open(
                Membership("g", rank, ("a", "b"), store.of(rank), timeout_s, hosts[rank])
            )
        except BaseException as error:
            found[rank] = error
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    return threads

def failed(call, *args):
    try:
        return call(*args)
    except BaseException as error:
        return error

def join(threads):
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

def destroy(found):
    while found:
        found.popitem()[1].destroy()

found = {}
join(opening(Slow(0), found))
destroy(found)
before = counts()
"""


def check(program: str) -> None:
    """Run a program, after which as many descriptors and threads are there as before."""
    assert printed(f"{HEAD}{program}settle(before)\nprint('ok')") == "ok"


def test_ranks_that_do_not_connect_at_once_try_again():
    program = """
found = {}
join(opening(Slow(1), found))
for rank, comm in found.items():
    assert isinstance(comm, GlooCommunicator), comm
threads = [
    threading.Thread(target=comm.allreduce, args=(torch.ones(3), ReduceOp.SUM))
    for comm in found.values()
]
for thread in threads:
    thread.start()
join(threads)
destroy(found)
del comm, threads
"""
    check(program)


@pytest.mark.full
def test_ranks_that_never_connect_raise_and_leave_nothing():
    program = """
gloo_group._ATTEMPTS = 2
found = {}
join(opening(Slow(10), found))
for error in found.values():
    assert type(error) is CommError and error.group == "g", error
    assert "cannot connect: a: " in str(error), error
found.clear()
del error
"""
    check(program)


@pytest.mark.full
def test_closing_the_store_while_gloo_connects_ends_open_and_leaves_nothing():
    program = """
for delay_s in (0, 0.01, 0.2):
    found = {}
    store = Slow(10)
    threads = opening(store, found, None)
    assert store.waits.wait(60)
    time.sleep(delay_s)
    store.close()
    join(threads)
    for error in found.values():
        assert isinstance(error, GroupAborted), repr(error)
    found.clear()
    del error, threads
    settle(before)
"""
    check(program)


@pytest.mark.full
def test_the_time_limit_holds_while_gloo_connects():
    program = """
found = {}
join(opening(Slow(10), found, 0.2))
assert all(isinstance(error, TimeoutError) for error in found.values()), found
assert any("group g" in str(error) for error in found.values()), found
found.clear()
"""
    check(program)


@pytest.mark.parametrize("hosts", [("127.0.0.2", "127.0.0.3"), ("::1", "0:0:0:0:0:0:0:1")], ids=str)
def test_ranks_at_other_addresses_than_the_loopbacks_first(hosts):
    """As on several nodes. The end that connects has another address than the one that listens."""
    program = f"""
import socket
hosts = {hosts}
found = {{}}
join(opening(Slow(0), found, hosts=hosts))
numbers = {{socket.getaddrinfo(host, None)[0][4][0] for host in hosts}}
for comm in found.values():
    assert comm._connections
    for each in comm._connections:
        assert numbers & {{each.getsockname()[0], each.getpeername()[0]}}, each
got = torch.empty(20_000)
threads = [
    threading.Thread(target=found[0].send, args=([torch.ones(20_000)], 1)),
    threading.Thread(target=found[1].recv, args=([got], 0)),
]
for thread in threads:
    thread.start()
join(threads)
assert got.sum() == 20_000
end = threading.Thread(target=lambda: found.update(end=failed(found[1].recv, [got], 0)))
end.start()
found[1].abort("enough")
join([end])
assert isinstance(found.pop("end"), GroupAborted)
destroy(found)
del comm, each, threads, end
"""
    check(program)


def test_an_address_of_a_form_that_is_not_known_is_an_error_that_says_so():
    program = """
import re
gloo_group._address_at = lambda host: re.compile(b"never")
gloo_group._ATTEMPTS = 1
found = {}
join(opening(Slow(0), found))
for error in found.values():
    assert type(error) is CommError and "connections of Gloo can be found" in str(error), error
found.clear()
del error
"""
    check(program)


@pytest.mark.full
def test_ranks_without_descriptors_say_so_and_leave_nothing():
    program = """
import errno
usual = os.dup

def none_left(fd):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

os.dup = none_left
found = {}
join(opening(Slow(0), found))
os.dup = usual
texts = [str(found.pop(rank)) for rank in range(2)]
assert all("has no file descriptor left to connect the group g" in text for text in texts), texts
settle(before)
join(opening(Slow(0), found))
destroy(found)
"""
    check(program)


def test_a_process_that_is_no_rank_takes_no_ranks_place():
    """It connects first, and says what a rank would say: once, and then whenever ranks listen."""
    program = """
import subprocess, sys

STRANGER = '''
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(bytes(8))
print(flush=True)
sys.stdin.read()
'''
known = {"127.0.0.1": gloo_group._address_at("127.0.0.1")}

class Attacked(Slow):
    '''Has a stranger connect to each rank before the others hear of its address.'''

    def set(self, key, value):
        attempt, _, rest = key.partition("/gloo/")
        if rest and int(attempt) < self.times:
            for _, port in gloo_group._addresses_in(value, known):
                command = [sys.executable, "-c", STRANGER, str(port)]
                made = subprocess.Popen(command, stdin=-1, stdout=-1)
                strangers.append(made)
                made.stdout.readline()
        super().set(key, value)

strangers = []
gloo_group._ATTEMPTS = 2
for times in (1, 2):
    store = Attacked(0)
    store.times = times
    found = {}
    join(opening(store, found))
    if times == 1:
        given, got = torch.arange(3.0), torch.zeros(3)
        sending = threading.Thread(target=found[0].send, args=([given], 1))
        sending.start()
        found[1].recv([got], 0)
        join([sending])
        assert got.equal(given)
        destroy(found)
    else:
        assert all("is no rank of the group" in str(error) for error in found.values()), found
for each in strangers:
    each.kill()
    each.wait()
print("ok")
"""
    assert printed(HEAD + program) == "ok"
