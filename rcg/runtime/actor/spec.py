# SPDX-License-Identifier: Apache-2.0
"""What an actor needs to start its part of a graph. Plain data that travels to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rcg.ir.channels import ChannelSpec
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.options import Options
from rcg.runtime.actor.groups import GroupStart
from rcg.runtime.node.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What every process of a graph needs.

    Attributes:
        graph_id: Hex id of the graph.
        secret: The graph's secret, which proves that the driver sent us.
        options: Of the graph.
        version: The driver's version of rcg.
        abi: The driver's layout of shared memory.
    """

    graph_id: str
    secret: str
    options: Options
    version: str
    abi: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStart(Spec):
    """Everything an actor needs to be the host of its node.

    Attributes:
        node: The node, as the plan names it.
        plan: What runs.
        driver: The endpoint of the driver's process, over TCP.
        label: What errors call this actor.
    """

    node: str
    plan: Plan
    driver: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Spec):
    """Everything an actor needs to run its part of a graph.

    Attributes:
        program: What to run.
        channels: The channels that it reads and writes.
        layout: The numbers of processes and channels on this node.
        address: The endpoint of the host of this node.
        stores: The endpoint of the driver's process, where the stores of groups are.
        gates: The endpoint of the host of each node to which this program sends frames.
        crossings: The nodes to which each of its channels crosses.
        groups: The communicator groups that it is in, in the order of the plan.
        constants: The constants and templates that the program names.
        array_types: Types of arrays that travel as tensors; see ``register_array_type``.
        actor: What errors say about this actor: its label, its id and its repr.
    """

    program: Program
    channels: Mapping[str, ChannelSpec]
    layout: Layout
    address: str
    stores: str
    gates: Mapping[str, str]
    crossings: Mapping[str, tuple[str, ...]]
    groups: tuple[GroupStart, ...]
    constants: Mapping[str, Any]
    array_types: Mapping[type, Any]
    actor: tuple[str, str, str]
