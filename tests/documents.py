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
