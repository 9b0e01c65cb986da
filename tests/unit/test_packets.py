# SPDX-License-Identifier: Apache-2.0
"""Whole packets over TCP: in parts, in the middle of a send, to peers that do not read."""

from __future__ import annotations

import _thread
import array
import concurrent.futures
import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.options import Deadline
from rcg.wire import liveness, messages, packets, sockets
from rcg.wire.packets import BODY, MAX_MESSAGE_BYTES, LargeBody, PacketStream
from tests.harness.peers import GUARD_S, descriptors, until
from tests.harness.served import interrupted_at_each_line, together
from tests.harness.tcp import bare_pair, stream_pair

HEADER = struct.Struct("!IBI")
PACKETS = st.lists(st.binary(min_size=1, max_size=300), max_size=20)


def on_wire(content: bytes, kind: int = 0, number: int = 0) -> bytes:
    return HEADER.pack(len(content), kind, number) + content


@contextlib.contextmanager
def half_pair() -> Iterator[tuple[socket.socket, PacketStream]]:
    """A bare socket, and the packets at its other end."""
    bare, other = bare_pair()
    with bare, PacketStream(other) as stream:
        stream.settimeout(GUARD_S)
        yield bare, stream


def received(stream: PacketStream, flags: int = 0) -> bytes:
    data, ancillary, _, _ = stream.recvmsg(MAX_MESSAGE_BYTES, 0, flags)
    assert not ancillary
    return bytes(data)


def nothing_yet(stream: PacketStream) -> bool:
    try:
        received(stream, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    return False


# --- whole packets


def test_messages_travel_as_over_a_local_socket():
    with stream_pair() as (ours, theirs):
        sockets.send(ours, messages.Where(number=7), body=b"beside it")
        assert sockets.wait_for_message(theirs, -1, GUARD_S)
        with sockets.receive(theirs) as found:
            assert found.message == messages.Where(number=7) and found.body == b"beside it"
        with pytest.raises(TimeoutError):
            sockets.wait_for_message(theirs, -1, 0.01)
        with pytest.raises(BlockingIOError):
            sockets.receive(theirs, may_wait=False)
        ours.close()
        assert sockets.wait_for_message(theirs, -1, GUARD_S)
        with sockets.receive(theirs) as found:
            assert found.message is None and not found.is_reset


def test_descriptors_cannot_be_sent():
    with stream_pair() as (ours, theirs):
        with pytest.raises(ValueError, match="descriptors"):
            sockets.send(ours, messages.Stop(), [0])
        with pytest.raises(ValueError, match="descriptors"):
            ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
        assert nothing_yet(theirs)


def test_a_message_that_is_too_large_is_not_sent():
    with stream_pair() as (ours, theirs):
        for send in (ours.send, ours.post):
            with pytest.raises(OSError, match="at most"):
                send(bytes(MAX_MESSAGE_BYTES + 1))
        ours.sendmsg([b"a", bytearray(b"b")])
        assert received(theirs) == b"ab"


# --- parts of packets


@given(PACKETS, st.data())
def test_packets_that_come_in_any_parts(contents, data):
    """As many as are complete can be received, and the last part makes the last packet."""
    whole = b"".join(map(on_wire, contents))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    ends = [sum(len(on_wire(each)) for each in contents[: at + 1]) for at in range(len(contents))]
    ours, other = socket.socketpair()
    with ours, PacketStream(other) as stream:
        found: list[bytes] = []
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            ours.sendall(whole[start:end])
            while len(found) < len(contents) and end >= ends[len(found)]:
                found.append(received(stream, socket.MSG_DONTWAIT))
            assert nothing_yet(stream)
        assert found == contents
        # What follows a packet is not read with it.
        ours.sendall(on_wire(b"last") + b"raw bytes")
        assert received(stream) == b"last"
        with stream.detach() as handed:
            assert handed.recv(100) == b"raw bytes"


@given(st.binary(min_size=1, max_size=400), st.booleans())
def test_bytes_are_packets_or_an_error(found, takes_bodies):
    ours, other = socket.socketpair()
    with ours, PacketStream(other) as stream:
        stream.takes_bodies = takes_bodies
        ours.sendall(found)
        ours.close()
        with contextlib.suppress(ValueError, ConnectionError):
            while True:
                data, _, _, _ = stream.recvmsg(MAX_MESSAGE_BYTES)
                if not data:
                    break
                assert data in found


def test_a_part_of_a_packet_is_nothing_yet_and_no_message_to_wait_for():
    with half_pair() as (bare, stream):
        whole = on_wire(b"content")
        for byte in whole[:-1]:
            bare.sendall(bytes([byte]))
            assert select.select([stream], [], [], GUARD_S)[0]
            assert nothing_yet(stream)
        with pytest.raises(TimeoutError):
            sockets.wait_for_message(stream, -1, 0.01)
        stream.settimeout(0.01)
        with pytest.raises(TimeoutError):
            received(stream)
        bare.sendall(whole[-1:])
        stream.settimeout(GUARD_S)
        assert received(stream) == b"content"


def test_the_end_in_the_middle_of_a_packet_is_a_broken_connection():
    for cut in (1, 8, 9, 12):
        with half_pair() as (bare, stream):
            bare.sendall(on_wire(b"content")[:cut])
            bare.close()
            with sockets.receive(stream) as found:
                assert found.message is None and found.is_reset
                assert "middle of a packet" in found.why


@pytest.mark.parametrize(
    "found",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"SSH-2.0-OpenSSH_9\r\n",
        HEADER.pack(MAX_MESSAGE_BYTES + 1, 0, 0),
        on_wire(b""),
        on_wire(b"x", kind=4),
        on_wire(b"x", kind=1),
        on_wire(b"x", kind=2),
        on_wire(b"", kind=3),
    ],
)
def test_what_is_no_packet_is_an_error_at_once(found):
    with half_pair() as (bare, stream):
        bare.sendall(found)
        for _ in range(2):
            with pytest.raises(ValueError):
                received(stream)


# --- handing the socket over


def test_a_socket_is_handed_over_between_two_packets_alone():
    before = descriptors()
    with half_pair() as (bare, stream):
        bare.sendall(on_wire(b"content")[:3])
        until(lambda: nothing_yet(stream) and len(stream._data) == 3)
        with pytest.raises(ConnectionError):
            stream.detach()
        bare.sendall(on_wire(b"content")[3:] + b"raw")
        assert received(stream) == b"content"
        stream.send(b"answer")
        with stream.detach() as handed:
            assert handed.gettimeout() is None and stream.fileno() == -1
            assert handed.recv(10) == b"raw"
            handed.sendall(b"raw, too")
        got = b""
        while part := bare.recv(100):
            got += part
        assert got == on_wire(b"answer") + b"raw, too"
    assert descriptors() <= before


# --- peers that do not read


def fill_up(stream: PacketStream, content: bytes) -> int:
    """Send without waiting until the socket takes no more; returns how many packets were sent.

    The kernel may make room once more: the other end acknowledges with a delay.
    """
    count = refused = 0
    while refused < 20:
        try:
            stream.send(content, socket.MSG_DONTWAIT)
            count += 1
            refused = 0
        except BlockingIOError:
            refused += 1
            time.sleep(0.015)
    return count


def test_a_send_that_must_not_wait_sends_the_packet_or_nothing_of_it():
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        content = bytes(range(256)) * 150
        count = fill_up(ours, content)
        assert count and ours._queue  # a part of the last one waits
        with pytest.raises(BlockingIOError):
            ours.send(b"more", socket.MSG_DONTWAIT)
        for _ in range(count):  # the rest comes without another send
            assert received(theirs) == content
        assert nothing_yet(theirs)
        until(lambda: not ours._queue)
        ours.send(b"more", socket.MSG_DONTWAIT)
        assert received(theirs) == b"more"


def test_what_no_thread_can_send_later_ends_the_connection_and_says_why(monkeypatch):
    def fail(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", fail)
    with stream_pair(buffer_bytes=1 << 14) as (ours, _):
        ours.post(b"it fits")
        for use in (lambda: any(map(ours.post, [bytes(60_000)] * 10)), lambda: received(ours)):
            with pytest.raises(ConnectionResetError, match="no more threads can be started"):
                use()


def test_a_peer_that_never_reads_what_is_posted_counts_as_lost():
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        with pytest.raises(ConnectionAbortedError, match="does not read"):
            any(map(ours.post, [bytes(60_000)] * 200))
        assert not ours._queue
        assert received(ours) == b""  # who receives from it learns of the end
        until(lambda: not ours._is_flushing)
        with contextlib.suppress(ConnectionError):
            while received(theirs):
                pass


def test_a_send_waits_for_its_peer_and_no_longer_than_its_timeout():
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        content = bytes(50_000)
        count = fill_up(ours, content)
        ours.settimeout(0.01)
        with pytest.raises(TimeoutError):
            ours.send(b"x" * 50_000)  # nothing of it was sent
        ours.settimeout(GUARD_S)
        sender = threading.Thread(target=ours.send, args=(b"y" * 50_000,))
        sender.start()
        assert [received(theirs) for _ in range(count)] == [content] * count
        assert received(theirs) == b"y" * 50_000
        sender.join(GUARD_S)
        assert nothing_yet(theirs)


def test_a_send_whose_packet_another_thread_has_begun_to_send_is_no_failure(monkeypatch):
    waits, has_begun, sent = threading.Event(), threading.Event(), []
    known_wait = PacketStream._wait_for_room

    def wait(self: PacketStream, deadline: Deadline) -> None:
        if threading.current_thread() is not sender:
            return known_wait(self, deadline)
        waits.set()
        assert has_begun.wait(GUARD_S)
        until(lambda: deadline.expired)
        raise TimeoutError

    class Slow:
        """A socket that takes the packet while its sender gives up."""

        def send(self, rest: memoryview, flags: int) -> int:
            if rest[-1:] == b"x":
                has_begun.set()
                time.sleep(0.2)
            return bare.send(rest, flags)

        def __getattr__(self, name: str) -> Any:
            return getattr(bare, name)

    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        content = bytes(50_000)
        count = fill_up(ours, content)
        monkeypatch.setattr(PacketStream, "_wait_for_room", wait)
        ours.settimeout(0.05)
        bare, ours._socket = ours._socket, Slow()
        sender = threading.Thread(target=lambda: sent.append(ours.send(b"x" * 20)))
        sender.start()
        assert waits.wait(GUARD_S)
        assert [received(theirs) for _ in range(count)] == [content] * count
        assert received(theirs) == b"x" * 20
        sender.join(GUARD_S)
        ours._socket = bare
    assert sent == [20]


def test_the_timeout_of_a_signal_handler_ends_a_send_that_has_begun():
    def ring(*_: object) -> None:
        raise TimeoutError("of the user")

    with stream_pair(buffer_bytes=1 << 14) as (ours, _):
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(TimeoutError, match="of the user"):
                list(map(ours.send, [bytes(60_000)] * 100))
        finally:
            signal.signal(signal.SIGALRM, before)


def test_a_send_that_gives_up_needs_no_thread(monkeypatch):
    started = []
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        count = fill_up(ours, b"x" * 10)
        assert not any(each.is_wanted for each in ours._queue)
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", lambda *args: started.append(args))
            for _ in range(5):
                with pytest.raises(BlockingIOError):
                    ours.send(b"y" * 10, socket.MSG_DONTWAIT)
        assert not started
        assert [received(theirs) for _ in range(count)] == [b"x" * 10] * count
        ours.send(b"z")
        assert received(theirs) == b"z"


def test_packets_of_many_threads_stay_whole():
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        counts = [0] * 4
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)

        def send(number: int) -> None:
            for at in range(200):
                content = bytes([number]) * (1 + at * 37 % 9000)
                if at % 3:
                    ours.send(content)
                else:
                    ours.post(content)

        def receive() -> None:
            for _ in range(800):
                content = received(theirs)
                assert content == content[:1] * len(content)
                assert len(content) == 1 + counts[content[0]] * 37 % 9000  # and in order
                counts[content[0]] += 1

        try:
            together(receive, *[lambda number=number: send(number) for number in range(4)])
        finally:
            sys.setswitchinterval(interval)
        assert counts == [200] * 4


def test_a_signal_handler_may_send_in_the_middle_of_a_send():
    """At each line of it, and what both send arrives."""
    with stream_pair() as (ours, theirs):
        inside = 0
        for way in (ours.send, ours.post):
            inside += 2 * interrupted_at_each_line(
                lambda way=way: way(b"outer"), lambda: ours.send(b"inner"), packets.__name__
            )
        assert inside > 40
        found = sorted(received(theirs) for _ in range(inside + 2))
        assert found == [b"inner"] * inside + [b"outer"] * 2
        assert nothing_yet(theirs)


class Interruption(Exception):
    """What a signal handler raises."""


def test_ctrl_c_in_a_send_that_waits_leaves_whole_packets():
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        content = bytes(40_000)
        count = fill_up(ours, content)

        def interrupt(*_: object) -> None:
            raise Interruption

        known = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interruption):
                ours.send(b"x" * 40_000)
        finally:
            signal.signal(signal.SIGALRM, known)
        assert [received(theirs) for _ in range(count)] == [content] * count
        sender = threading.Thread(target=ours.send, args=(b"next",))
        sender.start()
        found = received(theirs)
        if found != b"next":  # a part of it was sent already, and so was the rest
            assert found == b"x" * 40_000
            assert received(theirs) == b"next"
        sender.join(GUARD_S)
        assert nothing_yet(theirs)


# --- large bodies


@contextlib.contextmanager
def file_of(content: bytes) -> Iterator[int]:
    fd = os.memfd_create("x")
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(content)
        yield fd
    finally:
        os.close(fd)


def body_of(stream: PacketStream) -> tuple[bytes, bytes | None]:
    data, [(level, _, body)], _, _ = stream.recvmsg(MAX_MESSAGE_BYTES)
    assert level == BODY
    return bytes(data), body


@pytest.mark.parametrize("size", [1, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1, 1 << 20])
def test_a_large_body_comes_with_its_message(size):
    content = os.urandom(size)
    with stream_pair() as (ours, theirs), file_of(content) as fd:
        theirs.takes_bodies = True
        sender = threading.Thread(target=LargeBody(ours, fd, size).send, args=(b"its message",))
        sender.start()
        assert body_of(theirs) == (b"its message", content)
        sender.join(GUARD_S)


def test_messages_and_other_bodies_come_between_its_pieces():
    content = os.urandom(500_000)
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs), file_of(content) as fd:
        theirs.takes_bodies = True
        left = {"first", "second"}
        bodies = {name: LargeBody(ours, fd, len(content)) for name in left}
        found: dict[bytes, object] = {}

        def take_in(flags: int = 0) -> None:
            data, ancillary, _, _ = theirs.recvmsg(MAX_MESSAGE_BYTES, 0, flags)
            found[bytes(data)] = ancillary and ancillary[0][2]

        while left:
            for name in sorted(left):
                with contextlib.suppress(BlockingIOError):
                    bodies[name].send(name.encode(), socket.MSG_DONTWAIT)
                    left.remove(name)
            with contextlib.suppress(BlockingIOError):
                ours.send(b"between", socket.MSG_DONTWAIT)
            with contextlib.suppress(BlockingIOError):
                while True:
                    take_in(socket.MSG_DONTWAIT)
        while len(found) < 3:
            take_in()
        assert found == {b"between": [], b"first": content, b"second": content}


def test_a_body_that_is_given_up_leaves_nothing_at_the_other_side():
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs), file_of(bytes(500_000)) as fd:
        theirs.takes_bodies = True
        large = LargeBody(ours, fd, 500_000)
        with pytest.raises(BlockingIOError):
            large.send(b"its message", socket.MSG_DONTWAIT)
        until(lambda: not theirs.fill() and not ours._queue and theirs._bodies)
        large.drop()
        ours.send(b"next")
        assert received(theirs) == b"next"
        assert not theirs._bodies


def test_only_so_many_bodies_may_have_begun():
    with half_pair() as (bare, stream):
        stream.takes_bodies = True
        for number in range(65):
            bare.sendall(on_wire(b"x", 1, number))
        with pytest.raises(ValueError, match="too many"):
            received(stream)


class Full(bytearray):
    """Memory of which there is no more."""

    def __iadd__(self, _: object) -> Full:
        raise MemoryError


def test_a_body_for_which_there_is_no_memory_is_lost_alone():
    with half_pair() as (bare, stream):
        stream.takes_bodies = True
        stream._bodies[5] = Full()
        message = sockets.pack_message(messages.Execute(size_bytes=2, table_bytes=1))
        bare.sendall(on_wire(b"x", 1, 5) + on_wire(b"x", 1, 5) + on_wire(message, 2, 5))
        with sockets.receive(stream, 1) as found:
            assert found.lacks_memory and isinstance(found.message, messages.Execute)
        bare.sendall(on_wire(b"next"))
        assert received(stream) == b"next"


# --- the end of a peer


def test_the_kernel_looks_after_a_connection():
    with stream_pair() as (ours, _):
        ours.keep_alive(15.0)
        option = ours._socket.getsockopt
        tcp = socket.IPPROTO_TCP
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count = (
            option(tcp, name)
            for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert 1 <= idle <= 5  # a third of the time
        assert idle + between * count <= 15 and count >= 5
        assert option(tcp, socket.TCP_USER_TIMEOUT) == 15_000
        assert option(tcp, socket.TCP_NODELAY)
        assert not liveness.is_cut(ours._socket, 15.0)


def test_the_kernel_gets_no_limit_while_it_holds_what_it_cannot_send(monkeypatch):
    restored = []
    monkeypatch.setattr(
        liveness, "restore_limit", lambda sock, _: restored.append(liveness.has_unsent(sock))
    )
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        ours.keep_alive(15.0)
        ours.is_proven = True
        ours.settimeout(0.1)
        count = 0
        with contextlib.suppress(TimeoutError):
            while True:
                ours.send(bytes(60_000))
                count += 1
        assert liveness.has_unsent(ours._socket)
        for _ in range(count):
            received(theirs)
        until(lambda: not ours._is_flushing)
    assert len(restored) >= 2 and not any(restored)


@pytest.mark.parametrize("timeout_s", [1, 1.5, 3, 600, 3600])
def test_the_kernel_takes_every_timeout(timeout_s):
    with stream_pair() as (ours, theirs):
        ours.keep_alive(timeout_s)
        ours.send(b"x")
        assert received(theirs) == b"x"


def test_memory_that_was_sent_is_not_needed_any_more():
    """Not even if the thread that sends the rest of an earlier packet has taken it over."""
    size, rounds = 4 << 20, 60
    content = np.zeros(size, np.uint8)
    with stream_pair() as (ours, theirs), concurrent.futures.ThreadPoolExecutor(1) as pool:
        ours.keep_alive(GUARD_S)
        ours.is_proven = True

        def send() -> None:
            for number in range(rounds):
                content[:] = number
                ours.send(b"x" * 1000)
                ours.send_raw(content.data)
                content[:] = 255
                ours.send(b"end")

        sending = pool.submit(send)
        arrived = np.zeros(size, np.uint8)
        for number in range(rounds):
            theirs.recvmsg(MAX_MESSAGE_BYTES)
            theirs.recv_raw_into(arrived.data)
            assert theirs.recvmsg(MAX_MESSAGE_BYTES)[0] == b"end"
            assert (arrived == number).all()
        sending.result(GUARD_S)


def test_memory_that_is_not_there_any_more_is_sent_as_zeros():
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    size = 1 << 20
    at = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, 0)  # of this process alone
    gone = memoryview((ctypes.c_ubyte * size).from_address(at)).cast("B")
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    arrived = np.ones(size, np.uint8)
    with stream_pair() as (ours, theirs), concurrent.futures.ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: (ours.send_raw(gone), ours.send(b"after")))
        theirs.recv_raw_into(arrived.data)
        assert theirs.recvmsg(MAX_MESSAGE_BYTES)[0] == b"after"
        sending.result(GUARD_S)
    assert not arrived.any()


def test_bytes_without_a_header_that_end_early_are_an_error():
    with stream_pair() as (ours, theirs):
        ours.send_raw(memoryview(bytes(1000)))
        ours.close()
        with pytest.raises(ConnectionResetError, match="in the middle"):
            theirs.recv_raw_into(memoryview(bytearray(1001)))
