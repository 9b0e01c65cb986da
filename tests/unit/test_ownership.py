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

SEEN_BY_OTHERS: dict[str, Callable[[], tuple[Any, Any]]] = {}
"""Each returns a tensor, and what can still see it."""


def seen(make: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
    SEEN_BY_OTHERS[make.__name__] = make
    return make


@seen
def a_variable() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor, {"kept": tensor}


@seen
def a_weak_reference() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor, weakref.ref(tensor)


@seen
def a_view() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor, tensor[1:]


@seen
def what_it_is_a_view_of() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor[1:], tensor


@seen
def another_view_of_the_same() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor[1:], tensor[:1]


@seen
def a_view_of_the_view() -> tuple[Any, Any]:
    tensor = torch.ones(4)[1:]
    return tensor, tensor[1:]


@seen
def the_graph_of_what_it_is_a_view_of() -> tuple[Any, Any]:
    loss = torch.ones(4, requires_grad=True).exp()
    return loss[1:], None


@seen
def a_detached_tensor() -> tuple[Any, Any]:
    tensor = torch.ones(4, requires_grad=True)
    return tensor, tensor.detach()


@seen
def its_storage() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor, tensor.untyped_storage()


@seen
def a_numpy_array_of_it() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor, tensor.numpy()


@seen
def the_numpy_array_whose_memory_it_is() -> tuple[Any, Any]:
    array = np.ones(4)
    return torch.from_numpy(array), array


@seen
def the_buffer_whose_memory_it_is() -> tuple[Any, Any]:
    buffer = bytearray(16)
    return torch.frombuffer(buffer, dtype=torch.float32), buffer


@seen
def a_capsule_of_dlpack() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor, tensor.__dlpack__()


@seen
def an_input_saved_for_the_backward_pass() -> tuple[Any, Any]:
    weights, tensor = torch.ones(4, requires_grad=True), torch.ones(4)
    return tensor, weights * tensor


@seen
def an_output_saved_for_the_backward_pass() -> tuple[Any, Any]:
    loss = torch.ones(4, requires_grad=True).exp()
    return loss, loss.grad_fn


@seen
def a_gradient() -> tuple[Any, Any]:
    weights = torch.ones(4, requires_grad=True)
    weights.sum().backward()
    return weights.grad, weights


@seen
def other_processes() -> tuple[Any, Any]:
    return torch.ones(4).share_memory_(), None


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
    "name", ["a_variable", "a_view", "another_view_of_the_same", "a_weak_reference"]
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
