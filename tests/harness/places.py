# SPDX-License-Identifier: Apache-2.0
"""The processes of a plan as places in its shared memory: all of them are in the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rcg.ir.channels import ChannelSpec
from rcg.ir.ids import DRIVER
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.options import Options
from rcg.runtime.codec import make_codec
from rcg.runtime.node.memory import Segments, Shared
from rcg.runtime.node.node import Node


def closing(make: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """What a fixture yields from: makes things as ``make`` does, and closes all of them."""
    made: list[Any] = []

    def make_one(*args: Any, **options: Any) -> Any:
        made.append(make(*args, **options))
        return made[-1]

    yield make_one
    for each in made:
        each.close()


def plan_without_ops(actors: Sequence[str], *channels: ChannelSpec) -> Plan:
    """As much of a plan as its memory needs."""
    return Plan(
        programs=tuple(Program(process, ()) for process in (DRIVER, *actors)),
        channels=channels,
        actors=(),
        is_multi=False,
        num_positional=1,
        keywords=(),
    )


def place_of(
    segments: Segments,
    process: str,
    *,
    array_types: Mapping[type, Any] | None = None,
    is_looping: bool = True,
    **options: Any,
) -> Node:
    """The place of a process; ``options`` are those of ``Node``."""
    return Node(
        Shared(segments.board, segments.arenas),
        segments.layout,
        process,
        Options(),
        make_codec(array_types or {}),
        is_looping=is_looping,
        **options,
    )


class OneGroup:
    """The groups of a process that is in one alone: its members, and their communicator."""

    def __init__(self, names: tuple[str, ...], communicator: Any) -> None:
        self.names = names
        self.open = communicator

    def members(self, group: str) -> tuple[str, ...]:
        return self.names

    labels = members

    def communicator(self, group: str) -> Any:
        return self.open

    def devices(self, group: str) -> Any:
        return self.open.devices
