# SPDX-License-Identifier: Apache-2.0
"""The two ranks of a tensor-parallel model: each has half of every layer.

Of the attention a rank has half of the heads, of the perceptron half of the hidden units, of the
head half of the vocabulary. Each part's result is half of a sum, which ``allreduce`` completes on
both ranks: in a compiled graph as a node, by hand as ``dist.all_reduce``. Rank 0 adds what goes
past the part, so the sum is what the next part takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn import functional

import rcg
import rcg.dag
from benchmarks.pipeline import VOCABULARY, Rank
from rcg.collective import allreduce

__all__ = ["BATCH", "Shard", "compiled"]

LAYERS: Final = 4
BATCH: Final = 4
WIDTH: Final = 512
HEADS: Final = 8
HIDDEN: Final = 2048
SCALE: Final = 0.03  # of the weights


class Shard(Rank):
    """One of ``size`` ranks. A single one has the whole model.

    Args:
        rank: Which of them.
        size: How many there are: one or two.
    """

    def __init__(self, rank: int, size: int = 2) -> None:
        super().__init__(rank)
        self._heads = HEADS // size
        made = torch.Generator().manual_seed(0)

        def weight(rows: int, columns: int) -> Any:
            return SCALE * torch.randn(rows, columns, generator=made)

        def part(whole: Any, dim: int) -> Any:
            return whole.chunk(size, dim)[rank].contiguous()

        self._embedding = weight(VOCABULARY, WIDTH)
        self._attention = [
            (*(part(weight(WIDTH, WIDTH), 1) for _ in range(3)), part(weight(WIDTH, WIDTH), 0))
            for _ in range(LAYERS)
        ]
        self._perceptron = [
            (part(weight(WIDTH, HIDDEN), 1), part(weight(HIDDEN, WIDTH), 0)) for _ in range(LAYERS)
        ]
        self._head = part(weight(WIDTH, VOCABULARY), 1)

    def embed(self, tokens: Any) -> Any:
        """Return the embeddings [batch, length, width] of tokens [batch, length]."""
        return self._embedding[tokens]

    def attend(self, x: Any, layer: int) -> Any:
        """Return this rank's part of the sum that a layer's attention makes of x.

        Args:
            x: The activations [batch, length, width].
            layer: Which layer.
        """
        *inputs, output = self._attention[layer]
        normal = functional.layer_norm(x, (WIDTH,))
        queries, keys, values = [
            (normal @ each).unflatten(-1, (self._heads, -1)).transpose(1, 2) for each in inputs
        ]
        found = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self._with_past(x, found.transpose(1, 2).flatten(2) @ output)

    def feed(self, x: Any, layer: int) -> Any:
        """Return this rank's part of the sum that a layer's perceptron makes of x.

        Args:
            x: The activations [batch, length, width].
            layer: Which layer.
        """
        up, down = self._perceptron[layer]
        hidden = functional.gelu(functional.layer_norm(x, (WIDTH,)) @ up)
        return self._with_past(x, hidden @ down)

    def predict(self, x: Any) -> Any:
        """Return this rank's part of the logits [batch, vocabulary] of the last token."""
        return functional.layer_norm(x[:, -1], (WIDTH,)) @ self._head

    def _with_past(self, x: Any, part: Any) -> Any:
        return part.add_(x) if self.rank == 0 else part

    # By hand

    def run(self, tokens: Any, times: int) -> tuple[int, int, list[Any]]:
        """Predict the next tokens some times with the other rank.

        Args:
            tokens: [batch, length].
            times: How often.

        Returns:
            When both ranks were ready and when this one was done, in ns of the monotonic clock that
            they share, and this rank's part of the logits, each time.
        """
        dist.barrier()
        started_ns = time.monotonic_ns()
        found = [self._run(tokens) for _ in range(times)]
        return started_ns, time.monotonic_ns(), found

    def _run(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for layer in range(LAYERS):
            x = self.attend(x, layer)
            dist.all_reduce(x)
            x = self.feed(x, layer)
            dist.all_reduce(x)
        return self.predict(x)


def compiled(actors: Sequence[Any]) -> Any:
    """Compile an inference: every layer's attention and perceptron end in an allreduce."""
    with rcg.dag.InputNode() as tokens:
        values = [actor.embed.bind(tokens) for actor in actors]
        for layer in range(LAYERS):
            for part in ("attend", "feed"):
                parts = [
                    getattr(actor, part).bind(value, layer)
                    for actor, value in zip(actors, values, strict=True)
                ]
                values = allreduce.bind(parts)
        logits = [actor.predict.bind(value) for actor, value in zip(actors, values, strict=True)]
        return rcg.compile(rcg.dag.MultiOutputNode(logits))
