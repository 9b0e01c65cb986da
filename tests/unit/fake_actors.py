# SPDX-License-Identifier: Apache-2.0
"""Handles of actors that do not exist, and communicators over them: enough to write a DAG."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rcg.dag.authoring import bind_method
from rcg.errors import GraphError


@contextlib.contextmanager
def refusing(node: str, *words: str) -> Iterator[None]:
    """Check the error of a block: its words, the node it names, and the test's file with a line."""
    with pytest.raises(ValueError) as caught:
        yield
    assert isinstance(caught.value, GraphError)
    text = str(caught.value)
    for word in words:
        assert word in text, text
    assert caught.value.node == node
    assert re.search(r"test_\w+\.py:\d+", text), text


class FakeActor:
    """A handle; it prints as Ray's does."""

    def __init__(self, label: str, number: int) -> None:
        self.text = f"Actor({label}, {number:032x})"

    def __repr__(self) -> str:
        return self.text

    def bind(self, method: str, *args: Any, **options: Any) -> Any:
        """Bind a method of it."""
        return bind_method(self, method, args, {}, options)


class FakeCommunicator:
    """A user's class with the signature of Ray's ``Communicator``."""

    def __init__(
        self, handles: Sequence[Any], ranks: Sequence[int] | None = None, name: str = "accelerator"
    ) -> None:
        self.handles = list(handles)
        self.ranks = list(range(len(handles))) if ranks is None else list(ranks)
        self.name = name

    def get_actor_handles(self) -> list[Any]:
        return self.handles

    def get_rank(self, handle: Any) -> int:
        return self.ranks[self.handles.index(handle)]

    def get_self_rank(self) -> None:
        return None

    def get_world_size(self) -> int:
        return len(self.handles)

    def get_transport_name(self) -> str:
        return self.name

    def refuse(self, *args: Any) -> None:
        raise AssertionError("nothing runs here")

    initialize = send = recv = allgather = allreduce = reducescatter = destroy = refuse
    generate_communicator_id = refuse


class Half:
    """A communicator that lacks a few methods."""

    def __repr__(self) -> str:  # in the names of tests
        return "Half()"

    generate_communicator_id = FakeCommunicator.refuse
    get_actor_handles = get_rank = get_self_rank = get_world_size = FakeCommunicator.refuse
    initialize = send = recv = allgather = get_transport_name = FakeCommunicator.refuse
