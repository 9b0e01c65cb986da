# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle
import re

import pytest
import ray.cloudpickle
import ray.exceptions

from rcg import errors
from rcg.ir.nodes import Site

CLASSES = [getattr(errors, name) for name in errors.__all__]
FACTS = {"node": "Stage.fwd", "site": Site("/tmp/pipeline.py", 12), "size_bytes": 7, "report": None}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("pickler", [pickle, ray.cloudpickle])
@pytest.mark.parametrize("message", ["The input is wrong. Bind it.", ""])
def test_errors_travel(cls, pickler, message):
    error = cls(message, **FACTS)
    error.add_note("seen on Tuesday")
    found = pickler.loads(pickler.dumps(error))
    assert type(found) is cls
    assert str(found) == str(error)
    assert found.facts == {key: fact for key, fact in FACTS.items() if fact is not None}
    assert (found.message, found.node, found.site, found.size_bytes) == (
        message,
        "Stage.fwd",
        Site("/tmp/pipeline.py", 12),
        7,
    )
    assert found.args == (message,)
    assert found.__notes__ == ["seen on Tuesday"]


@pytest.mark.parametrize("cls", CLASSES)
def test_ours_comes_before_every_foreign_base(cls):
    first_foreign = cls.__mro__.index(errors.RcgError) + 1
    assert all(issubclass(base, errors.RcgError) for base in cls.__mro__[:first_foreign])
    assert not any(issubclass(base, errors.RcgError) for base in cls.__mro__[first_foreign:])
    own = errors.RcgError, errors.InternalError, errors.ChannelTimeout
    assert cls.__str__ in [each.__str__ for each in own]
    assert cls.__reduce__ in [each.__reduce__ for each in own]


@pytest.mark.parametrize(
    ("cls", "theirs"),
    [
        (errors.GraphError, ValueError),
        (errors.SignatureError, ValueError),
        (errors.SignatureError, TypeError),
        (errors.UnsupportedNodeError, NotImplementedError),
        (errors.ActorDiedError, ray.exceptions.ActorDiedError),
        (errors.ActorDiedError, ray.exceptions.RayActorError),
        (errors.CapacityExceededError, ray.exceptions.RayCgraphCapacityExceeded),
        (errors.ChannelClosed, ray.exceptions.RayChannelError),
        (errors.ChannelBroken, ray.exceptions.RayChannelError),
        (errors.ChannelTimeout, ray.exceptions.RayChannelTimeoutError),
        (errors.ChannelTimeout, TimeoutError),
        (errors.UnpicklableError, TypeError),
        (errors.MessageTooLarge, ray.exceptions.RayChannelError),
        (errors.OutOfSharedMemory, ray.exceptions.RaySystemError),
    ],
)
def test_except_clauses_written_for_ray_keep_working(cls, theirs):
    with pytest.raises(theirs, match="wrong") as caught:
        raise cls("something is wrong")
    assert isinstance(caught.value, errors.RcgError)


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = re.findall(r"^    [|` -]*([A-Z]\w+)", errors.__doc__, re.MULTILINE)
    assert sorted(drawn) == sorted(errors.__all__)
    assert set(errors.__all__) == {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RcgError)
    }


def test_facts_are_fields_and_known_ones_are_none_when_not_given():
    error = errors.SignatureError("wrong", site=Site("a.py", 3))
    assert (error.node, str(error.site)) == (None, "a.py:3")
    assert errors.ChannelTimeout("late").report is None
    assert not hasattr(errors.ChannelTimeout("late"), "node")


def test_the_text_does_not_repeat_what_the_sentence_says():
    error = errors.GraphError("Stage.fwd takes no input", node="Stage.fwd", site=Site("a.py", 3))
    assert str(error) == "Stage.fwd takes no input [site: a.py:3]"
    # A number inside another one is not a mention.
    assert str(errors.MessageTooLarge("of 120 bytes", limit_bytes=12)) == (
        "of 120 bytes [limit bytes: 12]"
    )


def test_how_errors_print():
    # Long facts come last, as blocks.
    error = errors.DeadlockError("They wait", programs="a0\n  Read c0 -> s0", actor="a0")
    assert str(error) == "They wait [actor: a0]\nprograms:\n  a0\n    Read c0 -> s0"
    assert repr(errors.ChannelBroken("gone", peer="a0")) == "ChannelBroken('gone', peer='a0')"
    assert "bug in rcg" in str(errors.InternalError("a plan breaks its rules"))


def test_an_actor_died_error_reads_like_rays():
    error = errors.ActorDiedError("a0 is dead", actor_id="abc", preempted=True)
    found = pickle.loads(pickle.dumps(error))
    assert (found.actor_id, found.preempted, found.actor_init_failed) == ("abc", True, False)
    assert found.error_msg == str(found) == "a0 is dead [actor id: abc, preempted: True]"
    assert copy.copy(error).actor_id == "abc"


def test_ray_can_wrap_ours_as_the_cause_of_a_task():
    cause = errors.ChannelTimeout("late", timeout_s=3.0)
    wrapped = ray.exceptions.RayTaskError(
        "f", "Traceback (most recent call last):", cause, proctitle="p", pid=1, ip="127.0.0.1"
    ).as_instanceof_cause()
    assert isinstance(wrapped, errors.ChannelTimeout)
    assert wrapped.timeout_s == 3.0
