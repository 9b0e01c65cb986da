# SPDX-License-Identifier: Apache-2.0
"""The groups of a process: all of them end, whatever one of them does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from rcg.comm.local_store import LocalStore
from rcg.errors import CommError
from rcg.ir.channels import Group
from rcg.runtime.actor.groups import GroupStart, OpenGroups, graphs_that_queue


@dataclass
class Fake:
    """Opens itself, and fails in the step that ``fails_in`` names."""

    is_queued = True
    fails_in: str = ""
    done: list[str] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)  # when it was destroyed

    def _do(self, name: str) -> None:
        self.done.append(name)
        if name == self.fails_in:
            raise LookupError(name)

    def open(self, membership: Any) -> Any:
        self._do("open")
        return self

    def abort(self, why: str) -> None:
        self._do("abort")

    def destroy(self) -> None:
        self.queued = graphs_that_queue()
        self._do("destroy")


def groups_of(*fakes: Fake, process: str = "a0") -> OpenGroups:
    starts = [
        GroupStart(Group(f"g{at}", "gloo", (process, "a1")), ("A", "B"), fake)
        for at, fake in enumerate(fakes)
    ]
    return OpenGroups(process, starts, lambda group: LocalStore(), "feed")


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("moment", ["abort", "destroy"])
def test_an_end_that_fails_keeps_no_other_group_open(moment, bad):
    fakes = [Fake(), Fake()]
    fakes[bad].fails_in = moment
    groups = groups_of(*fakes)
    groups.open(None)
    groups.abort("over")
    groups.close()
    assert [each.done for each in fakes] == [["open", "abort", "destroy"]] * 2


def test_what_was_opened_is_closed_if_another_group_cannot_be():
    fakes = [Fake(), Fake(fails_in="destroy"), Fake(fails_in="open")]
    with pytest.raises(CommError, match="LookupError: open"):
        groups_of(*fakes).open(None)
    assert [each.done for each in fakes] == [["open", "destroy"], ["open", "destroy"], ["open"]]


@pytest.mark.parametrize("fails_in", ["", "destroy"])
def test_a_graph_queues_until_its_last_group_is_destroyed(fails_in):
    calm = Fake()
    calm.is_queued = False
    queuing = [Fake(fails_in=fails_in), Fake(fails_in=fails_in)]
    own, lane = groups_of(queuing[0], calm), groups_of(queuing[1], process="a0.comm")
    assert graphs_that_queue() == []
    for each in (own, lane):
        each.open(None)
    assert graphs_that_queue() == ["feed"]
    own.close()
    assert graphs_that_queue() == ["feed"]
    lane.close()
    assert graphs_that_queue() == []
    assert [each.queued for each in queuing] == [["feed"]] * 2
