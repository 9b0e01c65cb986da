# SPDX-License-Identifier: Apache-2.0
"""An uncompiled DAG of tasks and of actors that each run makes.

Prints:

    scaled 18.0 with [3, 5.0] and 2
    scaled 25.0 with [4, 7.0] and 3
    one draw: True
    counted 17 17
    three [1, 2, 3]
    fields 7 9
    kept ((1, 2), {'c': 3}, {'num_cpus': 0})
    made Counter 10
"""

import random

import ray
from ray.dag import ClassNode, DAGNode, FunctionNode, InputNode, MultiOutputNode


@ray.remote(num_cpus=0)
def add(a, b):
    return a + b


@ray.remote(num_cpus=0)
def draw():
    return random.random()


@ray.remote(num_cpus=0)
def combine(parts, extra, **scale):
    # Nodes in a container arrive as references, as in any call of a task.
    values = ray.get(parts)
    return sum(values) * scale["by"] + ray.get(extra["bias"]), values, ray.get(extra["bias"])


@ray.remote(num_cpus=0)
def listed(*refs):
    return list(refs)


@ray.remote(num_cpus=0)
class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, x):
        return self.factor * x


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self, start=0):
        self.count = start

    def add(self, n):
        self.count += n
        return self.count

    def read(self):
        return self.count


with InputNode() as inp:
    parts = [add.bind(inp, 1), Scaler.bind(2).scale.bind(add.bind(inp, 0.5))]
    total = combine.bind(parts, {"bias": add.bind(inp, 0)}, by=2)
for ref in [total.execute(2), total.execute(3)]:
    value, values, bias = ray.get(ref)
    print("scaled", value, "with", values, "and", bias)

same = draw.bind()
first, second, third = ray.get(MultiOutputNode([same, same, add.bind(same, 0)]).execute())
print("one draw:", first == second == third)

# A call brings those that were bound before it to the same actor; each run makes its own actor.
counter = Counter.bind(10)
counter.add.bind(5)
last = counter.add.bind(2)
read = counter.read.bind()
counter.add.bind(1000)
print("counted", ray.get(read.execute()), ray.get(last.execute()))

with InputNode() as inp:
    made = Counter.bind(0)
    steps = [made.add.bind(inp) for _ in range(3)]
    three = listed.bind(*steps)
print("three", ray.get(three.execute(1)))

with InputNode() as inp:
    fields = MultiOutputNode([add.bind(inp[0], inp.y), add.bind(inp["y"], inp[1])])
print("fields", *ray.get(fields.execute(2, 4, y=5)))

node = add.bind(1, 2, c=3)
assert isinstance(node, FunctionNode) and isinstance(node, DAGNode)
print("kept", (node.get_args(), node.get_kwargs(), node.get_options()))

assert isinstance(counter, ClassNode)
handle = counter.execute()
print("made Counter", ray.get(handle.read.remote()))
