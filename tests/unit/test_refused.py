# SPDX-License-Identifier: Apache-2.0
"""What a DAG of Ray takes and one of rcg refuses: each error says what to write instead."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import GraphError
from tests.unit.fake_actors import FakeActor

ACTOR = FakeActor("Stage", 1)
CONTAINERS = "in lists, tuples, named tuples and the values of dicts; put it there"


def node() -> Any:
    return ACTOR.bind("step", InputNode())


@pytest.mark.parametrize(
    ("construct", "instead"),
    [
        (lambda: ACTOR.bind("step", MultiOutputNode([node()])), "pass the nodes in it"),
        (lambda: ACTOR.bind("step", {node()}), CONTAINERS),
        (lambda: ACTOR.bind("step", {node(): 1}), CONTAINERS),
        (lambda: ACTOR.bind("step", SimpleNamespace(x=node())), CONTAINERS),
        (lambda: ACTOR.bind("step", InputNode()[-1]), r"write inp[n - 1] for n arguments"),
        (lambda: pickle.dumps(node()), "in a list, a tuple or the values of a dict"),
        (lambda: node().execute(1, 2), "from position 1 on: leave them out"),
        (lambda: ACTOR.bind("step", 1).execute(2), "from position 0 on: leave them out"),
    ],
    ids=["outputs", "set", "key", "attribute", "minus", "pickled", "unused", "no input"],
)
def test_what_is_refused_says_what_to_write(construct: Callable[[], Any], instead: str) -> None:
    with pytest.raises(GraphError) as caught:
        construct()
    assert instead in str(caught.value)
