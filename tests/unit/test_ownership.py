# SPDX-License-Identifier: Apache-2.0
"""A tensor may be overwritten only if nothing can ever see it again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rcg.runtime.actor.ownership import is_held_only_by

torch = pytest.importorskip("torch")


def ones() -> Any:
    return torch.ones(4)


def weights() -> Any:
    return torch.ones(4, requires_grad=True)


def trained() -> Any:
    made = weights()
    made.sum().backward()
    return made


def seen_by(tensor: Any, make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A tensor, and what is made of it."""
    return tensor, make(tensor)


def made_of(other: Any, make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The tensor that is made of something, and that."""
    return make(other), other


# Each returns a tensor, and what can still see it.
SEEN_BY_OTHERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a variable": lambda: seen_by(ones(), lambda it: {"kept": it}),
    "a weak reference": lambda: seen_by(ones(), weakref.ref),
    "a view": lambda: seen_by(ones(), lambda it: it[1:]),
    "what it is a view of": lambda: made_of(ones(), lambda it: it[1:]),
    "another view of the same": lambda: ones().split(2),
    "a view of the view": lambda: seen_by(ones()[1:], lambda it: it[1:]),
    "the graph of what it is a view of": lambda: (weights().exp()[1:], None),
    "a detached tensor": lambda: seen_by(weights(), lambda it: it.detach()),
    "its storage": lambda: seen_by(ones(), lambda it: it.untyped_storage()),
    "a numpy array of it": lambda: seen_by(ones(), lambda it: it.numpy()),
    "the numpy array whose memory it is": lambda: made_of(np.ones(4), torch.from_numpy),
    "the buffer whose memory it is": lambda: made_of(
        bytearray(16), lambda it: torch.frombuffer(it, dtype=torch.float32)
    ),
    "a capsule of dlpack": lambda: seen_by(ones(), lambda it: it.__dlpack__()),
    "an input saved for the backward pass": lambda: seen_by(ones(), lambda it: weights() * it),
    "an output saved for the backward pass": lambda: seen_by(
        weights().exp(), lambda it: it.grad_fn
    ),
    "a gradient": lambda: made_of(trained(), lambda it: it.grad),
    "other processes": lambda: (ones().share_memory_(), None),
}


def test_what_only_its_slot_holds_may_be_overwritten() -> None:
    for make in (
        lambda: torch.ones(4),
        lambda: torch.ones(4, 3).t(),
        lambda: torch.ones(4)[1:],
        lambda: torch.ones(4, 3).reshape(2, 6).view(-1)[2:],
        lambda: torch.ones(4, 4) @ torch.ones(4, 4),
        lambda: (torch.ones(4, 4) @ torch.ones(4, 4)).reshape(2, 8),
        lambda: torch.ones(4, requires_grad=True) * 2,
        lambda: torch.tensor(2.0),
    ):
        slots = [None, make()]
        assert is_held_only_by(slots, 1)
        assert is_held_only_by(slots, 1)  # to have looked changes nothing


@pytest.mark.parametrize("name", SEEN_BY_OTHERS)
def test_what_can_still_be_seen_may_not(name: str) -> None:
    tensor, other = SEEN_BY_OTHERS[name]()
    slots = [tensor]
    del tensor
    assert not is_held_only_by(slots, 0)
    del other


@pytest.mark.parametrize(
    "name", ["a variable", "a view", "another view of the same", "a weak reference"]
)
def test_it_may_once_nothing_can_see_it_any_more(name: str) -> None:
    tensor, other = SEEN_BY_OTHERS[name]()
    slots = [tensor]
    del tensor, other
    gc.collect()
    assert is_held_only_by(slots, 0)


def test_two_slots_with_one_tensor_or_one_memory_hold_it_both() -> None:
    tensor = torch.ones(4)
    slots = [tensor, tensor]
    del tensor
    assert not is_held_only_by(slots, 0)
    whole = torch.ones(4)
    slots = [whole[:2], whole[2:]]
    del whole
    assert not is_held_only_by(slots, 0) and not is_held_only_by(slots, 1)


def test_a_tensor_of_inference_mode_may_not() -> None:
    """Elsewhere it cannot be written to, and what is made of it is no input of autograd."""
    with torch.inference_mode():
        slots = [torch.ones(4)]
    assert not is_held_only_by(slots, 0)


@pytest.mark.parametrize(
    "value",
    [None, 3, np.ones(3), torch.nn.Parameter(torch.ones(3)), torch.eye(3).to_sparse()],
    ids=["none", "number", "array", "subclass", "sparse"],
)
def test_other_values_may_not(value: Any) -> None:
    slots = [value]
    del value
    assert not is_held_only_by(slots, 0)


def test_a_torch_without_the_count_overwrites_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    assert not is_held_only_by([torch.ones(4)], 0)
