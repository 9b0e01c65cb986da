# SPDX-License-Identifier: Apache-2.0
"""What is refused, by the words that programs look for.

Prints:

    InputNode handles user dynamic input the DAG, and cannot be used as args
    Each DAG should only have one unique InputNode.
    Compiled DAGs currently only support actor method nodes
    can only bind methods to an actor that is already created with Actor.remote()
    require each task to take a ray.dag.InputNode or at least one other DAGNode as an input
    Ensure all input attributes are used and contribute to the computation of the Compiled Graph output.
    Retrieve an output using ray.get before submitting more requests or increase `_max_inflight_executions`.
    more than 1 buffered results
    2
"""  # noqa: E501

import ray
from ray.dag.input_node import InputNode
from ray.dag.output_node import MultiOutputNode
from ray.exceptions import RayCgraphCapacityExceeded


@ray.remote(num_cpus=0)
def identity(x):
    return x


@ray.remote(num_cpus=0)
class Doubler:
    def __init__(self, *args):
        pass

    def double(self, x):
        return 2 * x


def said(words, function, *kinds):
    text = "nothing"
    try:
        function()
    except kinds as error:
        text = str(error)
    print(words if words in text else f"{text}, not {words}")


def two_inputs():
    with InputNode() as one, InputNode() as other:
        identity.bind([one, other]).execute(1)


with InputNode() as inp:
    said(
        "InputNode handles user dynamic input the DAG, and cannot be used as args",
        lambda: Doubler.bind([inp]),
        ValueError,
    )
with InputNode() as inp:
    said("Each DAG should only have one unique InputNode.", two_inputs, AssertionError, ValueError)
    said(
        "Compiled DAGs currently only support actor method nodes",
        lambda: identity.bind(inp).experimental_compile(),
        NotImplementedError,
    )

with InputNode() as inp:
    node = Doubler.bind()
    said(
        "can only bind methods to an actor that is already created with Actor.remote()",
        lambda: node.double.bind(inp).experimental_compile(),
        ValueError,
    )

actor = Doubler.remote()
with InputNode() as inp:
    dag = MultiOutputNode([actor.double.bind(inp), actor.double.bind(1)])
said(
    "require each task to take a ray.dag.InputNode or at least one other DAGNode as an input",
    dag.experimental_compile,
    ValueError,
)

with InputNode() as inp:
    unused = inp[1]
    dag = actor.double.bind(inp[0])
said(
    "Ensure all input attributes are used and contribute to the computation of the Compiled Graph "
    "output.",
    dag.experimental_compile,
    ValueError,
)

with InputNode() as inp:
    dag = actor.double.bind(inp)
graph = dag.experimental_compile(_max_inflight_executions=2, _max_buffered_results=1)
refs = [graph.execute(1), graph.execute(2)]
said(
    "Retrieve an output using ray.get before submitting more requests or increase "
    "`_max_inflight_executions`.",
    lambda: graph.execute(3),
    RayCgraphCapacityExceeded,
)
said("more than 1 buffered results", lambda: ray.get(refs[1]), RayCgraphCapacityExceeded)
print(ray.get(refs[0]))
graph.teardown()
