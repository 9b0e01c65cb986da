# SPDX-License-Identifier: Apache-2.0
"""The rules about the nodes of a plan and their gates; a part of ``check``.

Each process is on one node. A gate is where channels arrive from other nodes, and passes on exactly
these. This room must know neither groups nor what programs compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

from rcg.errors import InternalError
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Op, Pass
from rcg.ir.programs import FIRST_NODE, MAX_PROCESSES, PlanData


def check_nodes(plan: PlanData) -> None:
    """Check that each process of a plan is on one node, and that no node has too many.

    Args:
        plan: A plan with the right programs, actors and lanes.

    Raises:
        InternalError: The plan breaks a rule.
    """
    if plan.nodes:
        _check_places(plan)
    for node, count in Counter(plan.nodes_by_process().values()).items():
        if count > MAX_PROCESSES:
            _fail(f"{node} has {count} processes, at most {MAX_PROCESSES} fit on a node")


def _check_places(plan: PlanData) -> None:
    processes = [DRIVER, *[actor.id for actor in plan.actors]]
    rank = {process: position for position, process in enumerate(processes)}
    for position, node in enumerate(plan.nodes):
        if node.id != f"n{position}":
            _fail(f"node {position} has the id {node.id!r}")
        for process in node.processes:
            if process not in rank:
                _fail(f"{node.id} has {process}, which is neither an actor nor the driver")
        in_order = sorted(node.processes, key=rank.__getitem__)
        if not in_order or list(node.processes) != in_order:
            _fail(f"{node.id} must have processes, in the order {in_order}")
    if len(plan.nodes) == 1:
        _fail("a plan on one node names none")
    _check_once("nodes have the key", [node.key for node in plan.nodes])
    placed = [process for node in plan.nodes for process in node.processes]
    _check_once("nodes have", placed)
    for process in processes:
        if process not in placed:
            _fail(f"{process} is on no node")
    if plan.nodes[0].processes[0] != DRIVER:
        _fail(f"{FIRST_NODE} is not the driver's node")


def check_gates(plan: PlanData) -> None:
    """Check that gates are where channels arrive, and that each passes on those that do.

    Args:
        plan: A plan whose nodes and channels are right.

    Raises:
        InternalError: The plan breaks a rule.
    """
    arriving: dict[str, list[Op]] = {}
    for channel, nodes in plan.crossings().items():
        for node in nodes:
            arriving.setdefault(node, []).append(Pass(channel))
    expected = [node.id for node in plan.nodes if node.id in arriving]
    found = [gate.id for gate in plan.gates]
    if found != expected:
        _fail(f"the gates are {found}, but channels arrive at {expected}")
    for gate in plan.gates:
        host = plan.host_of_node(gate.id)
        if gate.host != host:
            _fail(f"{gate.id} is in {gate.host}, but the host of that node is {host}")
    for program in plan.programs:
        if program.process in arriving and list(program.ops) != arriving[program.process]:
            passes = ", ".join(map(str, arriving[program.process]))
            _fail(f"{program.process} must do exactly this: {passes}", program.process)


def _check_once(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            _fail(f"{count} {what} {name}")


def _fail(text: str, process: str | None = None) -> NoReturn:
    raise InternalError(f"a plan breaks its rules: {text}", process=process)
