# SPDX-License-Identifier: Apache-2.0
"""A small transformer, trained by two stages of a pipeline: as a compiled graph, and by hand.

Sizes are such that a call takes milliseconds on one core, as a large model's does on an
accelerator. Every process builds the same model, because the seed is the same. This file needs
torch; it is imported only where a row runs.

Both ways use the same methods for what is computed, and the same schedule. The first stage is AHEAD
microbatches ahead of the last, one more than the least, so that tensors travel in both directions
while both stages compute ("eager 1F1B": Zhuang et al., "On Optimizing the Communication of Model
Parallelism", MLSys 2023). By hand, all receives of a step are posted before its first microbatch,
sends are waited for at the end of the step, and nothing is copied: what is sent lives until then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

import rcg
import rcg.dag

__all__ = ["BATCH", "LENGTH", "MICROBATCHES", "VOCABULARY", "WIDTH", "Rank", "Stage"]

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
RATE: Final = 0.01


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


class Stage(Rank):
    """Half of the layers, and their optimizer. Rank 0 has the first half, rank 1 the loss, too."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.reset()
        # What the other stage sends by hand, for each microbatch: activations, or their gradients.
        self._received = torch.zeros(MICROBATCHES, BATCH, LENGTH, WIDTH)

    def reset(self) -> None:
        """Return to the weights of the beginning."""
        half = 1 + LAYERS // 2
        model = transformer()
        self.layers = model[:half] if self.rank == 0 else model[half:]
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=RATE)
        self._outputs: dict[int, Any] = {}

    # What is computed

    def forward(self, batch: Any, number: int) -> Any:
        """Return the activations [batch, length, width] of a microbatch, without their graph.

        Args:
            batch: The tokens [microbatches, batch, length].
            number: Which microbatch.
        """
        self._outputs[number] = self.layers(batch[number])
        return self._outputs[number].detach()

    def backward(self, gradient: Any, number: int) -> None:
        """Add a microbatch's gradients, from that of its activations [batch, length, width]."""
        self._outputs.pop(number).backward(gradient)

    def forward_and_backward(self, hidden: Any, batch: Any, number: int) -> tuple[float, Any]:
        """Return the loss of a microbatch, and the gradient of its activations.

        Args:
            hidden: The activations [batch, length, width].
            batch: The tokens [microbatches, batch, length].
            number: Which microbatch.
        """
        hidden.requires_grad_()
        loss = loss_of(self.layers(hidden), batch[number]) / len(batch)
        loss.backward()
        return loss.item(), hidden.grad

    def step(self, *losses: float | None) -> float:
        """Change the weights by the gradients; return the sum of the losses."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sum(loss for loss in losses if loss is not None)

    # By hand

    def run(self, batch: Any, steps: int) -> tuple[int, int, list[float]]:
        """Train some steps with the other rank.

        Returns:
            When both ranks were ready and when this one was done, in ns of the monotonic clock that
            they share, and the loss of each step, which rank 1 has.
        """
        step = self._step_of_first if self.rank == 0 else self._step_of_last
        dist.barrier()
        started_ns = time.monotonic_ns()
        losses = [step(batch) for _ in range(steps)]
        return started_ns, time.monotonic_ns(), losses

    def _step_of_first(self, batch: Any) -> float:
        gradients = self._received
        receives = self._post_receives()
        sends = []
        for number in range(MICROBATCHES + AHEAD):
            if number < MICROBATCHES:
                sends.append(dist.isend(self.forward(batch, number), self.peer, tag=number))
            if number >= AHEAD:
                receives[number - AHEAD].wait()
                self.backward(gradients[number - AHEAD], number - AHEAD)
        for send in sends:
            send.wait()
        return self.step()

    def _step_of_last(self, batch: Any) -> float:
        receives = self._post_receives()
        losses, sends = [], []
        for number, hidden in enumerate(self._received):
            receives[number].wait()
            loss, gradient = self.forward_and_backward(hidden.detach(), batch, number)
            sends.append(dist.isend(gradient, self.peer, tag=number))
            losses.append(loss)
        for send in sends:
            send.wait()
        return self.step(*losses)

    def _post_receives(self) -> list[Any]:
        return [
            dist.irecv(each, self.peer, tag=number) for number, each in enumerate(self._received)
        ]


def compiled(actors: Sequence[Any], transport: str) -> Any:
    """Compile a training step, bound in the order of 1F1B."""
    first, last = actors
    with rcg.dag.InputNode() as batch:
        hidden = {}
        losses, done = [], []
        for number in range(MICROBATCHES + AHEAD):
            if number < MICROBATCHES:
                sent = first.forward.bind(batch, number).with_tensor_transport(transport)
                hidden[number] = sent
            if number >= AHEAD:
                at = number - AHEAD
                both = last.forward_and_backward.options(num_returns=2)
                loss, gradient = both.bind(hidden[at], batch, at)
                losses.append(loss)
                done.append(first.backward.bind(gradient.with_tensor_transport(transport), at))
        dag = rcg.dag.MultiOutputNode([first.step.bind(*done), last.step.bind(*losses)])
        return rcg.compile(dag, overlap=True)
