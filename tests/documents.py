# SPDX-License-Identifier: Apache-2.0
"""What the documents that rcg started from show, as programs.

Each program is the code blocks of one part of a document, in their order, parted by lines `# %%`,
and written for Ray's own `ray` and `ray.dag`.
"""

from __future__ import annotations

HELLO = """
import ray

@ray.remote
class Echo:
  def echo(self, value):
    return value

first = Echo.remote()
second = Echo.remote()
# %%
ref = first.echo.remote("hello")
ref = second.echo.remote(ref)
print(ray.get(ref))
# %%
import ray.dag
import time

with ray.dag.InputNode() as inp:
  between = first.echo.bind(inp)
  dag = second.echo.bind(between)
# %%
print(ray.get(dag.execute("hello")))
print(ray.get(dag.execute("world")))

for _ in range(10):
  began = time.perf_counter()
  ray.get(dag.execute("hello"))
  print("took", time.perf_counter() - began)
# %%
cdag = dag.experimental_compile()
print(cdag)
# %%
for _ in range(10):
  began = time.perf_counter()
  ray.get(cdag.execute("hello"))
  print("took", time.perf_counter() - began)
# %%
cdag.teardown()

print(ray.get(first.echo.remote("done")))
"""

ACROSS_ACTORS = """
import ray

@ray.remote
class Echo:
  def echo(self, value):
    return value

N = 3
actors = [Echo.remote() for _ in range(N)]
# %%
import ray.dag
with ray.dag.InputNode() as inp:
  outputs = [actor.echo.bind(inp) for actor in actors]
  dag = ray.dag.MultiOutputNode(outputs)
# %%
cdag = dag.experimental_compile()
print(ray.get(cdag.execute("hello")))
# %%
with ray.dag.InputNode() as inp:
  for actor in actors:
    inp = actor.echo.bind(inp)
  dag = inp
# %%
cdag = dag.experimental_compile()
refs = [cdag.execute(f"hello{i}") for i in range(N)]
print(ray.get(refs))
"""

ASYNCIO = """
import ray

@ray.remote
class Echo:
  def echo(self, value):
    return value

actor = Echo.remote()
import ray.dag
with ray.dag.InputNode() as inp:
  dag = actor.echo.bind(inp)

cdag = dag.experimental_compile(enable_asyncio=True)
# %%
ref = await cdag.execute_async("hello")
print(await ref)
"""

OVERVIEW = """
import ray
from ray.dag import InputNode

@ray.remote
class Receiver:
  def recv(self, data):
    return sum(data)

receiver = Receiver.remote()
data = [1, 2, 3]
# %%
ref = receiver.recv.remote(data)
print(ray.get(ref))
# %%
with InputNode() as inp:
    graph = receiver.recv.bind(inp)

graph = graph.experimental_compile()
ref = graph.execute(data)
print(ray.get(ref))
"""

# With a GPU for each actor as far as Ray knows; torch has none.
TENSORS = """
import ray
import ray.dag

import torch

@ray.remote(num_gpus=1)
class Looker:
    def where(self, tensor: torch.Tensor) -> str:
        return str(tensor.device)

looker = Looker.remote()
# %%
with ray.dag.InputNode() as inp:
  inp = inp.with_tensor_transport()
  dag = looker.where.bind(inp)

cdag = dag.experimental_compile()
print(ray.get(cdag.execute(torch.zeros(10))))
cdag.teardown()
# %%
with ray.dag.InputNode() as inp:
  inp = inp.with_tensor_transport(device="cuda")
  dag = looker.where.bind(inp)

cdag = dag.experimental_compile()
try:
  print(ray.get(cdag.execute(torch.zeros(10))))
except RuntimeError as error:
  print(str(error).splitlines()[-1])
cdag.teardown()
# %%
@ray.remote(num_gpus=1)
class Maker:
  def make(self, shape):
    return torch.zeros(shape, device="cpu")

@ray.remote
class Shape:
  def of(self, tensor: torch.Tensor):
    return tensor.shape

maker, shape = Maker.remote(), Shape.remote()
with ray.dag.InputNode() as inp:
  dag = maker.make.bind(inp)
  dag = dag.with_tensor_transport()
  dag = shape.of.bind(dag)

cdag = dag.experimental_compile()
assert ray.get(cdag.execute((10, ))) == (10, )
cdag.teardown()
print("done")
"""

# At the size of a CPU: the tensors are on it, travel over Gloo, and are smaller.
OVERLAP = """
import ray
import time
import torch
from ray.dag import InputNode, MultiOutputNode

@ray.remote(num_cpus=0)
class Worker:
    def send(self, shape, dtype, value: int, send_tensor=True):
        if not send_tensor:
            return 1
        return torch.ones(shape, dtype=dtype, device="cpu") * value

    def recv_and_matmul(self, two_d_tensor):
        assert two_d_tensor.dim() == 2
        assert two_d_tensor.size(0) == two_d_tensor.size(1)
        torch.matmul(two_d_tensor, two_d_tensor)
        return (two_d_tensor[0][0].item(), two_d_tensor.shape, two_d_tensor.dtype)

def test(overlap_gpu_communication):
    num_senders = 3
    senders = [Worker.remote() for _ in range(num_senders)]
    receiver = Worker.remote()
    shape = (300, 300)
    dtype = torch.float32

    with InputNode() as inp:
        branches = [sender.send.bind(shape, dtype, inp) for sender in senders]
        branches = [
            branch.with_tensor_transport(
                transport="gloo", _static_shape=True, _direct_return=True
            )
            for branch in branches
        ]
        branches = [receiver.recv_and_matmul.bind(branch) for branch in branches]
        dag = MultiOutputNode(branches)

    compiled_dag = dag.experimental_compile(
        _overlap_gpu_communication=overlap_gpu_communication
    )

    start = time.monotonic()
    for i in range(5):
        ref = compiled_dag.execute(i)
        result = ray.get(ref)
        assert result == [(i, shape, dtype)] * num_senders
    duration = time.monotonic() - start
    print(f"{overlap_gpu_communication=}, {duration=}")
    compiled_dag.teardown(kill_actors=True)

for overlap_gpu_communication in [False, True]:
    test(overlap_gpu_communication)
"""
