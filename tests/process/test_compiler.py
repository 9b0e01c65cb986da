# SPDX-License-Identifier: Apache-2.0
"""The compiler in several interpreters."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_the_same_graph_gives_the_same_plan_whatever_the_hash_seed():
    code = """
        from rcg.compiler import compile_graph
        from rcg.ir.channels import ActorSpec
        from rcg.ir.graph import Graph
        from rcg.ir.nodes import CollectiveCall, CommunicatorSpec, InputValue, MethodCall, NodeArg
        from rcg.ir.nodes import Site, TensorHint
        site = Site("a.py", 1)
        nodes = [InputValue(i, key, site) for i, key in enumerate([0, "x", "y", 2])]
        for i in range(4, 40):
            args = tuple(NodeArg(j) for j in (i - 4, i - 3, i // 2))
            name, communicator = [("gloo", None), ("mine", "k9"), ("shm", None)][i % 3]
            hint = TensorHint(name, site, communicator=communicator)
            nodes.append(MethodCall(i, f"a{i % 7}", "f", args, (), 1, site, hint))
        for number, first in enumerate((30, 29, 28, 33)):
            for rank in range(4):
                of = first + rank
                nodes.append(CollectiveCall(len(nodes), number, f"a{of % 7}", rank, "allreduce",
                                            (of,), 1, "sum", None, TensorHint("gloo", site), site))
        mine = CommunicatorSpec("k9", "mine", tuple(f"a{i}" for i in (3, 1, 2, 6, 5, 4, 0)))
        graph = Graph(tuple(nodes), tuple(range(30, 56)), True,
                      tuple(ActorSpec(f"a{i}", "A", "") for i in range(7)), 3, ("x", "y"), (mine,))
        print(compile_graph(graph, {f"a{i}": "n" for i in range(7)}, "n", 4).plan)
    """
    texts = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1
    text = texts.pop()
    assert "program a6" in text
    assert "tensor @" in text
    assert "AllReduce" in text
