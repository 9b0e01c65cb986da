# SPDX-License-Identifier: Apache-2.0
"""The small models that two actors run together, and how their processes meet.

Sizes are such that a call takes milliseconds on one core, as a large model's does on an
accelerator. Every process builds the same model, because the seed is the same. This file needs
torch; it is imported only where a row runs.
"""

from __future__ import annotations

import os
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

__all__ = [
    "AHEAD",
    "BATCH",
    "LAYERS",
    "LENGTH",
    "MICROBATCHES",
    "VOCABULARY",
    "WIDTH",
    "Rank",
    "layer",
    "loss_of",
    "tokens",
    "transformer",
]

__rcg_user__ = True  # see rcg.frames

VOCABULARY: Final = 64
WIDTH: Final = 128
LENGTH: Final = 64
LAYERS: Final = 8
HEADS: Final = 4
HIDDEN: Final = 256
MICROBATCHES: Final = 8
BATCH: Final = 8  # sequences in a microbatch
AHEAD: Final = 2  # microbatches that the first stage is ahead of the last
LOOPBACK: Final = "lo"


def layer() -> Any:
    """Return a layer of the transformer, with new weights."""
    return nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True)


def transformer() -> Any:
    """Return the layers of the model that is trained: an embedding, LAYERS layers and a head."""
    torch.manual_seed(0)
    layers = [layer() for _ in range(LAYERS)]
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY))


def loss_of(logits: Any, expected: Any) -> Any:
    """Return how badly each token is predicted from those before it.

    Args:
        logits: [batch, length, vocabulary].
        expected: The tokens [batch, length].
    """
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), expected[:, 1:].flatten())


def tokens(*shape: int) -> Any:
    """Return random tokens, always the same, int64 of this shape."""
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


class Rank:
    """One of two processes, which also meet in the default group of ``torch.distributed``."""

    def __init__(self, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        self.peer = 1 - rank

    def reset(self) -> None:
        """Return to the state of the beginning."""

    def meet(self, path: str) -> None:
        """Build the default group with the other rank, over Gloo; they meet in a file."""
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK  # as rcg's groups on one node
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=self.rank, world_size=2)
