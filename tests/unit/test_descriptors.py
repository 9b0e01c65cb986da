# SPDX-License-Identifier: Apache-2.0
"""File descriptors: one owner, and one way to say that there are none left."""

from __future__ import annotations

import errno
import os
import pickle
import threading

import pytest

from rcg.descriptors import (
    Descriptor,
    exhaustion_in,
    out_of_descriptors,
    telling_exhaustion,
)
from rcg.errors import CompileError, OutOfDescriptors, OutOfSharedMemory
from rcg.ir.channels import ChannelSpec
from rcg.ir.ids import DRIVER
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.runtime.node.memory import Segments
from rcg.threads import start_owner
from tests.harness.peers import ctrl_c_anywhere, descriptors, none_left, says_what_is_lacking, until


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


NO_MORE = OSError(errno.EMFILE, "Too many open files", "/proc/meminfo")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS])
def test_an_error_about_descriptors_is_found_behind_others(number):
    error = OSError(number, "x")
    assert exhaustion_in(error) is error
    assert exhaustion_in(caused(RuntimeError(), caused(OutOfSharedMemory("x"), error))) is error
    hidden = RuntimeError()
    hidden.__context__, hidden.__suppress_context__ = error, True
    assert exhaustion_in(hidden) is None


def test_other_errors_stay_what_they_are():
    for error in (OSError(errno.ENOMEM, "x"), OSError("x"), ValueError(), None):
        assert exhaustion_in(error) is None
    with pytest.raises(OSError, match="gone") as caught, telling_exhaustion("to try"):
        raise OSError(errno.ENOENT, "gone")
    assert type(caught.value) is FileNotFoundError


def test_errors_that_cause_each_other_end():
    one, other = RuntimeError(), RuntimeError()
    one.__cause__, other.__cause__ = other, one
    assert exhaustion_in(one) is None


def test_the_text_says_whose_limit_it_is_and_what_to_do():
    with (
        pytest.raises(OutOfDescriptors, match="left to try: its limit") as caught,
        telling_exhaustion("to try"),
    ):
        raise caused(OutOfSharedMemory("x"), NO_MORE)
    assert says_what_is_lacking(caught.value) and caught.value.pid == os.getpid()
    whole = pickle.loads(pickle.dumps(caught.value))
    assert str(whole) == str(caught.value) and whole.limit == caught.value.limit


def test_a_full_machine_is_not_the_limit_of_the_process():
    found = out_of_descriptors(OSError(errno.ENFILE, "x"), "to try")
    assert found is not None and "fs.file-max" in str(found) and found.limit is None


def test_what_happened_in_an_actors_process_is_not_said_of_this_one():
    theirs = caused(CompileError("it could not start", actor="Stage(a)"), NO_MORE)
    assert out_of_descriptors(theirs, "to compile a graph") is None
    known = OutOfDescriptors("process 1 has none", pid=1, actor="Stage(a)")
    assert out_of_descriptors(known, "to compile a graph") is known


def test_an_actor_is_named_once_by_its_own_process():
    bare = OutOfDescriptors("none", pid=os.getpid())
    named = out_of_descriptors(bare, "to join", "Stage(a)")
    assert named is not None and named.actor == "Stage(a)"
    others = OutOfDescriptors("none", pid=1)
    assert out_of_descriptors(others, "to join", "Stage(a)") is others


# --- owners


def test_a_descriptor_is_closed_once_by_close_or_with_its_owner():
    before = descriptors()
    made = Descriptor(os.memfd_create, "x")
    assert made.fd >= 0 and len(descriptors() - before) == 1
    made.close()
    other = os.memfd_create("y")  # has the number that was free
    made.close()
    del made
    assert os.fstat(other)
    os.close(other)
    held = Descriptor(os.memfd_create, "x")
    assert len(descriptors() - before) == 1
    del held
    assert descriptors() <= before
    assert Descriptor().fd == -1


def test_ctrl_c_between_any_two_steps_loses_no_descriptor():
    before = descriptors()
    for at in ctrl_c_anywhere(lambda: Descriptor(os.memfd_create, "x"), Descriptor.__module__):
        assert descriptors() <= before, at


def test_ctrl_c_while_a_thread_is_started_leaves_its_descriptors_to_one_side():
    """To the thread, if it runs already; to the one that starts it, if it never will."""
    said: list[str] = []

    def call() -> None:
        said.clear()
        run, close = lambda: said.append("run"), lambda: said.append("closed")
        start_owner(run, close, "test-owner", "for a test")

    outcomes = set()
    for _ in ctrl_c_anywhere(call, start_owner.__module__, "threading.Thread.start"):
        until(lambda: not any(map(is_test_owner, threading.enumerate())))
        outcomes.add(tuple(said))
    assert outcomes == {(), ("closed",), ("run",)}  # (): before it has begun
    assert said == ["run"]


def is_test_owner(thread: threading.Thread) -> bool:
    return thread.name == "test-owner" and thread.is_alive()


# --- shared memory


def plan_of_two() -> Plan:
    channels = (ChannelSpec("c0", DRIVER, ("a0",), "ring", (0,), 10),)
    processes = (DRIVER, "a0")
    return Plan(
        programs=tuple(Program(process, ()) for process in processes),
        channels=channels,
        actors=(),
        is_multi=False,
        num_positional=1,
        keywords=(),
    )


def test_shared_memory_without_descriptors_says_so_and_leaves_none():
    """Whichever of its files is missing: no other resource is blamed."""
    before = descriptors()
    outcomes = []
    for spare in range(8):
        with none_left(spare):
            try:
                with telling_exhaustion("to compile a graph"):
                    Segments(plan_of_two(), cap_bytes=1 << 26).close()
                outcomes.append("made")
            except OutOfDescriptors as error:
                outcomes.append("refused" if says_what_is_lacking(error) else str(error))
        assert descriptors() <= before
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {"refused", "made"}


def test_ctrl_c_between_any_two_steps_of_making_shared_memory_leaves_none():
    before = descriptors()
    names = f"{Segments.__module__}.Segments", Descriptor.__module__
    for at in ctrl_c_anywhere(lambda: Segments(plan_of_two(), cap_bytes=1 << 26).close(), *names):
        assert descriptors() <= before, at
