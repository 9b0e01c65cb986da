# SPDX-License-Identifier: Apache-2.0
"""A graph whose driver is the runtime's and whose one actor is the test, on one thread.

Nothing here needs Ray: shared memory, session, engine and channels are real, and the test decides
when the actor takes a frame and when it answers.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rcg.channels import open_reader, open_writer
from rcg.ir.channels import slots_for
from rcg.ir.nodes import Site
from rcg.ir.plan import Bindings, Plan
from rcg.options import Options
from rcg.runtime.actor.groups import OpenGroups
from rcg.runtime.actor.loop import Loop
from rcg.runtime.actor.spec import Start
from rcg.runtime.codec import make_codec
from rcg.runtime.driver.engine import Engine
from rcg.runtime.driver.output import OutputBuffer
from rcg.runtime.driver.session import Session
from rcg.runtime.driver.submission import Submission
from rcg.runtime.driver.window import Window
from rcg.runtime.node.host import NodeHost
from rcg.runtime.node.node import ABI_VERSION, Node
from rcg.testing import LocalStore
from rcg.version import __version__

__all__ = ["ACTOR", "Driven", "run_once"]

ACTOR = "a0"


def plan_of(outputs: int, slots: int, program: Sequence[str] = ()) -> Plan:
    """One actor that makes so many outputs of each input, or runs these ops.

    If they read c9, that brings the input twice.
    """
    again = any("Read c9" in op for op in program)
    returns = "one" if outputs == 1 else "list"
    lines = [
        f"plan positional=1 keywords=[] returns={returns}",
        f"actor {ACTOR} 'Stage' ''",
        f"channel c0 driver -> {ACTOR} ring node=0 slots={slots}",
        *(f"channel c{i} {ACTOR} -> driver ring node={i} slots={slots}" for i in outs(outputs)),
        *([f"channel c9 driver -> {ACTOR} ring node=8, 9 slots={slots}"] * again),
        "program driver",
        "  Input * -> s0",
        "  Write s0 -> c0",
        *(["  Write s0, s0 -> c9"] * again),
        *(f"  Read c{i} -> s{i}" for i in outs(outputs)),
        f"  Output {', '.join(f's{i}' for i in outs(outputs))}",
        f"program {ACTOR}",
        *(f"  {op}" for op in program or default_program(outputs)),
    ]
    plan = Plan.from_text("\n".join(lines))
    plan.check()
    return plan


def default_program(outputs: int) -> list[str]:
    """The ops of an actor that makes each output of its input."""
    return [
        "Read c0 -> s0",
        *(f"Call {ACTOR}.make(s0) -> s{i} #{i}" for i in outs(outputs)),
        *(f"Write s{i} -> c{i}" for i in outs(outputs)),
    ]


def outs(outputs: int) -> range:
    """The numbers of the output channels."""
    return range(1, outputs + 1)


class Driven:
    """The graph: its engine, and the actor's ends of all channels.

    Args:
        outputs: How many outputs an execution has.
        limit: How many executions may be in flight.
        is_strict: Whether the user set that limit.
        slots: How many frames a channel holds, if not one for each execution.
        program: The ops of the actor; it reads c0, may read c9, and writes c1, c2, ...
        options: Of the graph.
    """

    def __init__(
        self,
        outputs: int = 1,
        limit: int = 4,
        *,
        is_strict: bool = False,
        slots: int | None = None,
        program: Sequence[str] = (),
        **options: Any,
    ) -> None:
        plan = plan_of(outputs, slots or slots_for(limit), program)
        self.options = Options(
            max_inflight_executions=limit, is_inflight_limit_set_by_user=is_strict, **options
        )
        host = NodeHost(plan, self.options, make_codec())
        handle = SimpleNamespace(_actor_id=bytes(16))
        sites = {i: Site("pipeline.py", 11 + i) for i in outs(outputs)}
        bindings = Bindings({ACTOR: handle}, sites=sites)
        self.session = Session(uuid.uuid4().hex, plan, bindings, self.options, host)
        self.session.open()
        self.engine = Engine(self.session, lambda engine: engine)
        self.node = Node(
            host.descriptors(), host.layout, ACTOR, self.options, make_codec(), is_looping=True
        )
        self.channels = plan.channels_by_id()
        self.reader = open_reader(self.channels["c0"], 0, self.node)
        self.writers = [
            open_writer(self.channels[f"c{i}"], outputs + i, self.node) for i in outs(outputs)
        ]

    @property
    def submission(self) -> Submission:
        return self.engine._submission

    @property
    def window(self) -> Window:
        return self.submission.window

    @property
    def buffers(self) -> list[OutputBuffer]:
        return self.engine._buffers

    def take(self) -> Any:
        """The actor takes its next input and returns it."""
        return self.reader.read(0)

    def answer(self, value: Any, output: int = 0) -> None:
        """The actor makes the next value of one output."""
        self.writers[output].write(value)

    def echo(self) -> None:
        """The actor makes each output of its next input."""
        value = self.take()
        for output in range(len(self.writers)):
            self.answer(value, output)

    def waits_for(self, *args: Any) -> Any:
        """What an attempt to execute waits for first; "nothing" if it succeeds at once."""
        inputs = self.submission.encode(args, {})
        return next(self.submission.attempts(inputs, self.engine._refs()), "nothing")

    def loop(self, instance: Any, constants: Mapping[str, Any] | None = None) -> Loop:
        """The actor's loop, for an instance; the test runs its steps (``run_once``)."""
        start = Start(
            graph_id=self.session.graph_id,
            program=self.session.plan.program(ACTOR),
            channels=self.channels,
            layout=self.node.layout,
            address=self.session.control.address,
            stores=self.session.control.address,
            gates={},
            crossings={},
            secret=self.session.control.secret,
            constants=constants or {},
            options=self.options,
            array_types={},
            groups=(),
            actor=(type(instance).__name__, "id", repr(instance)),
            version=__version__,
            abi=ABI_VERSION,
        )
        control: Any = SimpleNamespace(finish=lambda failure: None)
        groups = OpenGroups(ACTOR, (), lambda group: LocalStore())
        return Loop(instance, start, self.node, control, groups)

    def close(self) -> None:
        self.session.close_nowait()


def run_once(loop: Loop) -> None:
    """Run one execution of a loop's program, on this thread."""
    for step in loop._steps:
        step()
    loop.execution += 1
