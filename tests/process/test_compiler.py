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
        from rcg.ir.nodes import InputValue, MethodCall, NodeArg, Site
        site = Site("a.py", 1)
        nodes = [InputValue(i, key, site) for i, key in enumerate([0, "x", "y", 2])]
        for i in range(4, 40):
            args = tuple(NodeArg(j) for j in (i - 4, i - 3, i // 2))
            nodes.append(MethodCall(i, f"a{i % 7}", "f", args, (), 1, site))
        graph = Graph(tuple(nodes), tuple(range(30, 40)), True,
                      tuple(ActorSpec(f"a{i}", "A", "") for i in range(7)), 3, ("x", "y"))
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
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert "program a6" in texts.pop()
