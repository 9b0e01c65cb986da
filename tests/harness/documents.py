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

DIRECT_TRANSPORT = """
import torch
import ray
from ray.experimental.collective import create_collective_group


@ray.remote
class MyActor:
    @ray.method(tensor_transport="gloo")
    def random_tensor(self):
        return torch.randn(1000, 1000)

    def sum(self, tensor: torch.Tensor):
        return torch.sum(tensor)


sender, receiver = MyActor.remote(), MyActor.remote()
group = create_collective_group([sender, receiver], backend="torch_gloo")

# The tensor will be stored by the `sender` actor instead of in Ray's object
# store.
tensor = sender.random_tensor.remote()
result = receiver.sum.remote(tensor)
print(ray.get(result))
# %%
import torch
import ray
from ray.experimental.collective import create_collective_group


@ray.remote
class MyActor:
    @ray.method(tensor_transport="gloo")
    def random_tensor_dict(self):
        return {"tensor1": torch.randn(1000, 1000), "tensor2": torch.randn(1000, 1000)}

    def sum(self, tensor_dict: dict):
        return torch.sum(tensor_dict["tensor1"]) + torch.sum(tensor_dict["tensor2"])


sender, receiver = MyActor.remote(), MyActor.remote()
group = create_collective_group([sender, receiver], backend="torch_gloo")

# Both tensor values in the dictionary will be stored by the `sender` actor
# instead of in Ray's object store.
tensor_dict = sender.random_tensor_dict.remote()
result = receiver.sum.remote(tensor_dict)
print(ray.get(result))
# %%
import torch
import ray
import pytest
from ray.experimental.collective import create_collective_group


@ray.remote
class MyActor:
    @ray.method(tensor_transport="gloo")
    def random_tensor(self):
        return torch.randn(1000, 1000)

    def sum(self, tensor: torch.Tensor):
        return torch.sum(tensor)


sender, receiver = MyActor.remote(), MyActor.remote()
group = create_collective_group([sender, receiver], backend="torch_gloo")

tensor = sender.random_tensor.remote()
# Pass the ObjectRef back to the actor that produced it. The tensor will be
# passed back to the same actor without copying.
sum1 = sender.sum.remote(tensor)
sum2 = receiver.sum.remote(tensor)
assert torch.allclose(*ray.get([sum1, sum2]))
# %%
# Wrong example of ray.get(). Since the tensor transport in the @ray.method decorator is Gloo,
# ray.get() will try to use Gloo to fetch the tensor, which is not supported
# because the caller is not part of the collective group.
with pytest.raises(ValueError) as e:
    ray.get(tensor)

assert (
    "Currently ray.get() only supports OBJECT_STORE and NIXL tensor transport, got TensorTransportEnum.GLOO, please specify the correct tensor transport in ray.get()"
    in str(e.value)
)

# Correct example of ray.get(), explicitly setting the tensor transport to use the Ray object store.
print(ray.get(tensor, _tensor_transport="object_store"))
# %%
import torch
import ray
from ray.experimental.collective import create_collective_group


@ray.remote
class MyActor:
    @ray.method(tensor_transport="gloo")
    def random_tensor(self):
        self.tensor = torch.randn(1000, 1000)
        # After this function returns, Ray and this actor will both hold a
        # reference to the same tensor.
        return self.tensor

    def increment_and_sum_stored_tensor(self):
        # NOTE: In-place update, while Ray still holds a reference to the same tensor.
        self.tensor += 1
        return torch.sum(self.tensor)

    def increment_and_sum(self, tensor: torch.Tensor):
        return torch.sum(tensor + 1)


sender, receiver = MyActor.remote(), MyActor.remote()
group = create_collective_group([sender, receiver], backend="torch_gloo")

tensor = sender.random_tensor.remote()
tensor1 = sender.increment_and_sum_stored_tensor.remote()
# Wait for sender.increment_and_sum_stored_tensor task to finish.
tensor1 = ray.get(tensor1)
# Receiver will now receive the updated value instead of the original.
tensor2 = receiver.increment_and_sum.remote(tensor)

try:
    # This assertion will fail because sender.increment_and_sum_stored_tensor
    # modified the tensor in place before sending it to
    # receiver.increment_and_sum.
    assert torch.allclose(tensor1, ray.get(tensor2))
except AssertionError:
    print("AssertionError: sender and receiver returned different sums.")
# %%
import torch
import ray
from ray.experimental.collective import create_collective_group


@ray.remote
class MyActor:
    @ray.method(tensor_transport="gloo")
    def random_tensor(self):
        self.tensor = torch.randn(1000, 1000)
        return self.tensor

    def increment_and_sum_stored_tensor(self):
        # 1. Sender actor waits for Ray to release all references to the tensor
        # before modifying the tensor in place.
        ray.experimental.wait_tensor_freed(self.tensor)
        # NOTE: In-place update, but Ray guarantees that it has already released
        # its references to this tensor.
        self.tensor += 1
        return torch.sum(self.tensor)

    def increment_and_sum(self, tensor: torch.Tensor):
        # Receiver task remains the same.
        return torch.sum(tensor + 1)


sender, receiver = MyActor.remote(), MyActor.remote()
group = create_collective_group([sender, receiver], backend="torch_gloo")

tensor = sender.random_tensor.remote()
tensor1 = sender.increment_and_sum_stored_tensor.remote()
# 2. Skip `ray.get`` because `wait_tensor_freed`` will block until all
# references to `tensor` are freed, so calling `ray.get` here would cause a
# deadlock.
# tensor1 = ray.get(tensor1)
tensor2 = receiver.increment_and_sum.remote(tensor)

# 3. Delete all references to `tensor`, to unblock wait_tensor_freed.
del tensor

# This assertion will now pass.
assert torch.allclose(ray.get(tensor1), ray.get(tensor2))
# %%
import torch
import ray
from ray.experimental.collective import create_collective_group


@ray.remote
class MyActor:
    @ray.method(tensor_transport="gloo")
    def random_tensor(self):
        return torch.randn(1000, 1000)

    def increment_and_sum(self, tensor: torch.Tensor):
        # In-place update.
        tensor += 1
        return torch.sum(tensor)


sender, receiver = MyActor.remote(), MyActor.remote()
group = create_collective_group([sender, receiver], backend="torch_gloo")

tensor = sender.random_tensor.remote()
tensor1 = sender.increment_and_sum.remote(tensor)
tensor2 = receiver.increment_and_sum.remote(tensor)
# A warning will be printed:
# UserWarning: GPU ObjectRef(...) is being passed back to the actor that created it Actor(MyActor, ...). Note that GPU objects are mutable. If the tensor is modified, Ray's internal copy will also be updated, and subsequent passes to other actors will receive the updated version instead of the original.

try:
    # This assertion may fail because the tensor returned by sender.random_tensor
    # is modified in-place by sender.increment_and_sum while being sent to
    # receiver.increment_and_sum.
    assert torch.allclose(ray.get(tensor1), ray.get(tensor2))
except AssertionError:
    print("AssertionError: sender and receiver returned different sums.")
"""  # noqa: E501
