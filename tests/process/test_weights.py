# SPDX-License-Identifier: Apache-2.0
"""Weights in processes of their own: torch's distributed tensors, and forked children."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from rcg.weights import publisher as publishers

DTENSORS = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, Partial
from torch.distributed.tensor.placement_types import _StridedShard
from rcg.weights.shards import shards_of
dist.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (2, 2))
def of(shape, *placements, whole=None):
    more = {} if whole is None else {"shape": torch.Size(whole), "stride": (whole[1], 1)}
    return DTensor.from_local(torch.zeros(shape), mesh, placements, run_check=False, **more)
tensors = {
    "rows": of((3, 2), Shard(0), Replicate()),
    "columns": of((3, 2), Replicate(), Shard(1)),
    "both": of((3, 2), Shard(0), Shard(0)),
    "all": of((3, 2), Replicate(), Replicate()),
    "uneven": of((2, 2), Shard(0), Shard(0), whole=(9, 2)),
    "nothing": of((0, 2), Shard(0), Shard(0), whole=(3, 2)),
    "fsdp": of((2, 2), _StridedShard(0, split_factor=2), Shard(0), whole=(9, 2)),
}
for name, shard in shards_of(tensors, None)[0].items():
    print(name, shard.shape, shard.dim, shard.start, shard.stop)
for bad in (
    of((3, 2), Shard(0), Shard(1)),
    of((3, 2), Partial(), Replicate()),
    of((1, 2), Shard(0), Shard(0), whole=(9, 2)),
    of((4, 2), _StridedShard(0, split_factor=2), Replicate(), whole=(8, 2)),
):
    try:
        shards_of({"bad": bad}, None)
    except ValueError as error:
        print(error)
"""


def test_a_dtensor_says_which_part_of_it_is_here() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DTENSORS], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "rows (6, 2) 0 3 6",
        "columns (3, 4) 1 2 4",
        "both (12, 2) 0 9 12",
        "all (3, 2) 0 0 3",
        "uneven (9, 2) 0 7 9",
        "nothing (3, 2) 0 3 3",
        "fsdp (9, 2) 0 7 9",
        "these weights cannot be used:",
        "  bad: it is split along the dimensions [0, 1]; only one is supported",
        "these weights cannot be used:",
        "  bad: a DTensor of partial sums has no value of its own: redistribute it",
        "these weights cannot be used:",
        "  bad: this process has [1, 2] of it, but [2, 2] of [9, 2] by its placements "
        "(Shard(dim=0), Shard(dim=0))",
        "these weights cannot be used:",
        "  bad: what is here of it is not one range of rows: _S(0, 2)",
    ]


def test_steps_in_a_forked_child_withdraw_nothing() -> None:
    class Publisher:
        def before_step(self, *_: object) -> None:
            os._exit(1)

    kept: Any = Publisher()
    publishers._publishers.add(kept)
    child = os.fork()
    if not child:
        publishers._before_step(SimpleNamespace(param_groups=[]))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publishers._publishers.discard(kept)
