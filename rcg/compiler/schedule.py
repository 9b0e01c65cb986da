# SPDX-License-Identifier: Apache-2.0
"""The pass that puts the ops of every program in the order in which they run.

The rule: there is one order of all *tasks* (``order``), which are the calls and the rendezvous, and
every process runs its own tasks in it. An actor runs its calls in the order in which the user bound
them. Around the tasks,

* a read of a ring comes right before the first op that uses its value, so no process waits earlier
  than needed;
* a container is built right before the call that takes it;
* a write to a ring directly follows the task that made its value, so no reader waits longer than
  needed; then come the writes to other lanes of the actor, which may change what they get;
* a value is freed after its last use, before the process waits again, so large values do not live
  until the next execution; only writes to rings come first, because other processes wait for them;
* the driver sends all inputs first, then reads, then returns its output. It is in no rendezvous.

Why this cannot deadlock: in the order of the tasks, every value is made before it is used. Take the
process whose next task, by (execution, order), comes first of all. If it waited for a value in a
ring, the writer of that value would be at or before an earlier task; if it waited for room, a
reader would be a whole execution behind it. Either way another process would come first. If it
waits for others in a rendezvous, that is also their next task, since none has an earlier one, and
none of them can wait for a value or for room either: so all of them come. (``simulate`` checks
every plan nevertheless.)

An example: two stages that pass a value forth and back. The graph, as bound::

      x ──> a0.split ──> a1.work ──> a0.join ──> result
                │                       ▲
                └───────────────────────┘      (inside a0: a slot, no channel)

``place`` has chosen the channels, ``schedule`` sets the order:

>>> from rcg.compiler.place import place
>>> from rcg.ir.channels import ActorSpec
>>> from rcg.ir.graph import Graph
>>> from rcg.ir.nodes import InputValue, MethodCall, NodeArg, Site
>>> site = Site("two.py", 1)
>>> actors = (ActorSpec("a0", "Ends", ""), ActorSpec("a1", "Middle", ""))
>>> nodes = (
...     InputValue(0, None, site),
...     MethodCall(1, "a0", "split", (NodeArg(0),), (), 1, site),
...     MethodCall(2, "a1", "work", (NodeArg(1),), (), 1, site),
...     MethodCall(3, "a0", "join", (NodeArg(1), NodeArg(2)), (), 1, site),
... )
>>> graph = Graph(nodes, (3,), False, actors, num_positional=1, keywords=())
>>> placed = place(graph, {"a0": "n", "a1": "n"}, "n", channel_slots=10)
>>> print(placed.program("a0"))  # in this order a0 and a1 would wait for each other
program a0
  Read c0 -> s0
  Read c2 -> s2
  Call a0.split(s0) -> s1 #1
  Call a0.join(s1, s2) -> s3 #3
  Write s1 -> c1
  Write s3 -> c3
>>> print(schedule(placed).program("a0"))
program a0
  Read c0 -> s0
  Call a0.split(s0) -> s1 #1
  Write s1 -> c1
  Free s0
  Read c2 -> s2
  Call a0.join(s1, s2) -> s3 #3
  Write s3 -> c3
  Free s1, s2, s3

Where processes meet, bind order is not safe. Here ``a0`` makes a tensor x and then y, and ``a1``
uses y first. If ``a0`` sent x right after making it, and ``a1`` received y right before using it,
they would wait for each other. In the order of all tasks, x travels as soon as both are free:

>>> from rcg.ir.nodes import TensorHint
>>> gloo = TensorHint("gloo", site)
>>> nodes = (
...     InputValue(0, None, site),
...     MethodCall(1, "a0", "x", (NodeArg(0),), (), 1, site, gloo),
...     MethodCall(2, "a0", "y", (NodeArg(0),), (), 1, site, gloo),
...     MethodCall(3, "a1", "use_y", (NodeArg(2),), (), 1, site),
...     MethodCall(4, "a1", "use_x", (NodeArg(1),), (), 1, site),
... )
>>> graph = Graph(nodes, (3, 4), True, actors, num_positional=1, keywords=())
>>> placed = place(graph, {"a0": "n", "a1": "n"}, "n", channel_slots=10)
>>> print(placed.channels[1])
channel c1 a0 -> a1 tensor @g0 node=1 slots=10
>>> print(schedule(placed).program("a1"))
program a1
  Read c1 -> s2
  Read c2 -> s0
  Call a1.use_y(s0) -> s1 #3
  Write s1 -> c3
  Free s0, s1
  Call a1.use_x(s2) -> s3 #4
  Write s3 -> c4
  Free s2, s3

This room must know neither graphs nor how ops are run; it only reorders what a plan has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from rcg.compiler.order import find_order
from rcg.ir.channels import LOCAL
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Collective, Copy, Free, Input, Op, Output, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import Program


def schedule(plan: Plan) -> Plan:
    """Return the plan with the ops of every program in running order; idempotent, near linear.

    Args:
        plan: A plan that keeps the rules of ``Plan.check``, its ops in any order.

    Raises:
        InternalError: The plan breaks those rules.
    """
    plan.check()
    plan = unordered(plan)
    tasks = find_order(plan)
    local = frozenset([channel.id for channel in plan.channels if channel.kind == LOCAL])
    gates = {gate.id for gate in plan.gates}  # their ops are in no order
    programs = [
        each if each.process in gates else _schedule_program(each, tasks[each.process], local)
        for each in plan.programs
    ]
    return replace(plan, programs=tuple(programs))


def _schedule_program(program: Program, tasks: Sequence[Op], local: Container[str]) -> Program:
    if program.process == DRIVER:
        return Program(DRIVER, tuple(_with_frees(_driver_order(program), ())))
    is_task: frozenset[Op] = frozenset(tasks)
    ops, changed = _with_copies(_order(program, tasks, is_task, local), is_task)
    ops, handed_over = _with_copies_for_lanes(ops, local)
    return Program(program.process, tuple(_with_frees(ops, is_task | changed | handed_over)))


def unordered(plan: Plan) -> Plan:
    """Return a plan without what ``schedule`` adds to it: copies, and where values are dropped."""
    programs = []
    for each in plan.programs:
        of = {op.out: op.slot for op in each.ops if isinstance(op, Copy)}
        ops = [_with_slots(op, of) for op in each.ops if not isinstance(op, Copy | Free)]
        programs.append(Program(each.process, tuple(ops)))
    return replace(plan, programs=tuple(programs))


def _with_copies(ops: list[Op], is_task: Container[Op]) -> tuple[list[Op], set[Op]]:
    """Copy each value that a rendezvous sends only after another call of the actor.

    That call may change it: methods return what they keep. A value is copied once, right after it
    was made and written to rings, for all rendezvous that come after such a call. Rings need no
    copy: their writes follow the call that made the value.

    Returns:
        The ops, and those of them that now use a copy.
    """
    made_at = {slot: at for at, op in enumerate(ops) for slot in op.made()}
    calls = [at for at, op in enumerate(ops) if op.is_call]
    copy_of: dict[int, int] = {}
    new = max(made_at, default=-1) + 1
    ordered: list[Op] = list(ops)
    changed: set[Op] = set()
    for at, op in enumerate(ops):
        if op not in is_task or op.is_call:
            continue
        late = [slot for slot in op.used() if _is_late(made_at[slot], calls, at)]
        for slot in late:
            copy_of.setdefault(slot, new + len(copy_of))
        if late:
            ordered[at] = _with_slots(op, {slot: copy_of[slot] for slot in late})
            changed.add(ordered[at])
    copies: dict[int, list[Op]] = {}
    for slot, out in copy_of.items():
        after = made_at[slot] + 1
        while ops[after].channels_out and ops[after] not in is_task:
            after += 1
        copies.setdefault(after, []).append(Copy(slot, out))
    found: list[Op] = []
    for at, op in enumerate(ordered):
        found += copies.get(at, ())
        found.append(op)
    return found, changed


def _with_copies_for_lanes(ops: list[Op], local: Container[str]) -> tuple[list[Op], set[Op]]:
    """Copy each value before another lane of the actor gets it, if both could use it then.

    A lane that only moves values has no use for what it has handed over. A method's result may be
    what the actor keeps and changes in its next call, or what the next op here uses; the runtime
    copies it if something other than its slot holds it.

    Returns:
        The ops, and the writes to other lanes among them.
    """
    last_use = {slot: at for at, op in enumerate(ops) for slot in op.used()}
    has_calls = any(op.is_call for op in ops)
    new = max((slot for op in ops for slot in op.made()), default=-1) + 1
    found: list[Op] = []
    handed_over: set[Op] = set()
    for at, op in enumerate(ops):
        if not isinstance(op, Write) or op.channel not in local:
            found.append(op)
            continue
        (slot,) = op.slots
        write = op
        if has_calls or last_use[slot] > at:
            found.append(Copy(slot, new))
            write = replace(op, slots=(new,))
            new += 1
        found.append(write)
        handed_over.add(write)
    return found, handed_over


def _is_late(made_at: int, calls: Sequence[int], sent_at: int) -> bool:
    """Return whether there is a call between the positions of two ops."""
    next_call = bisect_right(calls, made_at)
    return next_call < len(calls) and calls[next_call] < sent_at


def _with_slots(op: Op, instead: Mapping[int, int]) -> Op:
    """Return a Write or a collective that uses other slots."""
    if isinstance(op, Write | Collective) and not instead.keys().isdisjoint(op.slots):
        return replace(op, slots=tuple([instead.get(slot, slot) for slot in op.slots]))
    return op


def _driver_order(program: Program) -> list[Op]:
    """Each input followed by the writes that it completes, then the reads, then the output."""
    writes = _Writes(program)
    inputs = [op for op in program.ops if isinstance(op, Input)]
    sent = [each for op in inputs for each in (op, *writes.ready_after(op))]
    reads = [op for op in program.ops if op.channels_in]
    return [*sent, *reads, *[op for op in program.ops if isinstance(op, Output)]]


def _order(
    program: Program, tasks: Sequence[Op], is_task: Container[Op], local: Container[str]
) -> list[Op]:
    """The tasks in order, each with the ops right before it and right after it."""
    writes = _Writes(program, is_task, local)
    # The ops that are placed right before their value is used, by the slots that they fill.
    pending: dict[int, Op] = {}
    for op in program.ops:
        if op not in is_task:
            pending.update(dict.fromkeys(op.made(), op))
    ordered: list[Op] = []

    def add(op: Op) -> None:
        for slot in op.made():
            pending.pop(slot, None)
        for slot in op.used():
            if slot in pending:
                add(pending[slot])
        ordered.append(op)
        ordered.extend(writes.ready_after(op))

    for task in tasks:
        add(task)
    while pending:  # no call uses these, yet a channel must be read
        add(next(iter(pending.values())))
    return ordered


class _Writes:
    """The ops that follow their values as soon as they are made, and which of these are missing.

    Those to other lanes come last.
    """

    def __init__(
        self, program: Program, is_task: Container[Op] = (), local: Container[str] = ()
    ) -> None:
        self._local = local
        self._missing: dict[Op, set[int]] = {}
        self._by_slot: dict[int, list[Op]] = {}
        for op in program.ops:
            if op.channels_out and op not in is_task:
                self._missing[op] = set(op.used())
                for slot in self._missing[op]:
                    self._by_slot.setdefault(slot, []).append(op)

    def ready_after(self, op: Op) -> list[Op]:
        """Return the writes of which ``op`` has made the last value that they needed."""
        ready = []
        for slot in op.made():
            for write in self._by_slot.get(slot, ()):
                self._missing[write].discard(slot)
                if not self._missing[write]:
                    ready.append(write)
        return sorted(ready, key=lambda write: write.channels_out[0] in self._local)


def _with_frees(ops: list[Op], is_task: Container[Op]) -> list[Op]:
    """Add a Free after the last use of each slot; the driver's outputs are not freed.

    Writes to rings come before it. A Write that is a task, or goes to another lane, may wait.
    """
    last_use = {
        slot: position for position, op in enumerate(ops) for slot in (*op.made(), *op.used())
    }
    for position, op in enumerate(ops):
        if op.is_holding:
            for slot in op.used():
                if last_use[slot] == position:
                    last_use[slot] = max(last_use[made] for made in op.made())
    dying: list[list[int]] = [[] for _ in ops]
    for slot, position in last_use.items():
        dying[position].append(slot)

    freed: list[Op] = []
    due: list[int] = []
    for op, slots in zip(ops, dying, strict=True):
        is_sent_at_once = op.channels_out and op not in is_task
        if due and not is_sent_at_once and not isinstance(op, Input):
            freed.append(Free(tuple(sorted(due))))
            due.clear()
        freed.append(op)
        due += slots
    if due and not isinstance(ops[-1], Output):
        freed.append(Free(tuple(sorted(due))))
    return freed
