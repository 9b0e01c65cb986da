# SPDX-License-Identifier: Apache-2.0
"""A pipeline whose names come from the modules that define them, and an all-reduce on the CPU.

Prints:

    ClassMethodNode double
    a CompiledDAG, a CompiledDAGRef
    [6, 12]
    awaited 10
    reduced [3.0, 3.0]
    accelerators: False
"""

import asyncio

import ray
import ray.dag.constants
import ray.experimental.channel.torch_tensor_type as hints
import torch
from ray.dag.class_node import ClassMethodNode
from ray.dag.collective_node import CollectiveOutputNode
from ray.dag.compiled_dag_node import CompiledDAG
from ray.dag.context import DAGContext
from ray.dag.dag_node import DAGNode
from ray.dag.input_node import InputAttributeNode, InputNode
from ray.dag.output_node import MultiOutputNode
from ray.experimental.channel.accelerator_context import (
    AcceleratorContext,
    is_accelerator_context_registered,
)
from ray.experimental.channel.communicator import Communicator
from ray.experimental.channel.cpu_communicator import CPUCommunicator
from ray.experimental.channel.shared_memory_channel import Channel
from ray.experimental.collective.operations import allreduce
from ray.experimental.compiled_dag_ref import CompiledDAGFuture, CompiledDAGRef
from ray.experimental.util.types import Device, ReduceOp


@ray.remote(num_cpus=0)
class Worker:
    def double(self, x):
        return 2 * x

    def triple(self, x):
        return 3 * x

    def ones(self, n):
        return torch.ones(n)

    def listed(self, tensor):
        return tensor.tolist()


workers = [Worker.remote() for _ in range(2)]
with InputNode() as inp:
    assert isinstance(inp[0], InputAttributeNode)
with InputNode() as inp:
    middle: ClassMethodNode = workers[0].double.bind(inp)
    dag = workers[1].triple.bind(middle)
assert isinstance(middle, DAGNode)
print(type(middle).__name__, middle.get_method_name())
graph = dag.experimental_compile()
ref = graph.execute(1)
assert isinstance(graph, CompiledDAG) and isinstance(ref, CompiledDAGRef)
print(f"a {CompiledDAG.__name__}, a {CompiledDAGRef.__name__}")
print(ray.get([ref, graph.execute(2)]))
graph.teardown()


async def serve():
    with InputNode() as inp:
        dag = workers[0].double.bind(inp)
    graph = dag.experimental_compile(enable_asyncio=True)
    future = await graph.execute_async(5)
    assert isinstance(future, CompiledDAGFuture)
    print("awaited", await future)
    graph.teardown()


asyncio.run(serve())

group = CPUCommunicator(2, workers)
assert isinstance(group, Communicator)
with InputNode() as inp:
    ones = [worker.ones.bind(inp) for worker in workers]
    sums = allreduce.bind(ones, op=ReduceOp.SUM, transport=group)
    assert all(isinstance(each, CollectiveOutputNode) for each in sums)
    ends = [worker.listed.bind(each) for worker, each in zip(workers, sums, strict=True)]
    dag = MultiOutputNode(ends)
graph = dag.experimental_compile()
first, second = ray.get(graph.execute(2))
print("reduced", [value + 1 for value in first] if first == second else None)
graph.teardown()

assert Device("cpu") is Device.CPU and hints.TorchTensorType and Channel and AcceleratorContext
assert DAGContext.get_current().max_inflight_executions == 10
assert ray.dag.constants.RAY_CGRAPH_ENABLE_PROFILING is False
print("accelerators:", is_accelerator_context_registered())
