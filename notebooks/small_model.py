# SPDX-License-Identifier: Apache-2.0
"""A small language model for the notebooks: a transformer over words, with a KV cache.

It learns the Zen of Python by heart, which takes some seconds.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention

LENGTH, WIDTH, HEADS, LAYERS = 192, 128, 4, 4

with contextlib.redirect_stdout(io.StringIO()):
    import this  # which prints it

TEXT = re.findall(r"\n| ?\w+| ?[^\w\s]+", codecs.decode(this.s, "rot13") + "\n\n")
WORDS = sorted(set(TEXT))


def tokens_of(words: Sequence[str]) -> list[int]:
    """Return the numbers of words."""
    return [WORDS.index(word) for word in words]


def text_of(tokens: Sequence[int]) -> str:
    """Return the words with these numbers, as one text."""
    return "".join(WORDS[token] for token in tokens)


class Layer(nn.Module):
    """Attention and a perceptron, or the part of both that some of the heads have."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.heads, inner = heads, WIDTH // HEADS * heads
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * inner), nn.Linear(inner, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * inner), nn.Linear(4 * inner, WIDTH)

    def attention(self, x: Tensor, places: Tensor, cache: Tensor | None) -> Tensor:
        """Return what attention adds to the vectors of some tokens of each text.

        Args:
            x: The vectors, [texts, tokens, WIDTH].
            places: Where each token stands in its text, [texts, tokens].
            cache: The keys and values of the tokens before, [2, texts, LENGTH, heads, ...]; those
                of these tokens are written into it. None if there are none before.
        """
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if cache is not None:
            texts = torch.arange(len(x))[:, None]
            cache[0, texts, places], cache[1, texts, places] = k, v
            k, v = cache[0], cache[1]
        is_seen = torch.arange(k.shape[1]) <= places[:, None, :, None]
        mixed = scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=is_seen
        )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def perceptron(self, x: Tensor) -> Tensor:
        """Return what the perceptron adds to vectors."""
        return self.down(relu(self.up(self.between(x))))

    def part(self, rank: int, size: int) -> Layer:
        """Return one of ``size`` parts: what they add sums up to what the whole layer adds."""
        found = Layer(self.heads // size)
        found.load_state_dict(self.state_dict() | self._of(rank, size))
        return found

    def _of(self, rank: int, size: int) -> dict[str, Tensor]:
        def rows(each: Tensor, groups: int = 1) -> Tensor:
            return each.unflatten(0, (groups, size, -1))[:, rank].flatten(0, 1)

        return {
            "qkv.weight": rows(self.qkv.weight, 3),
            "qkv.bias": rows(self.qkv.bias, 3),
            "out.weight": self.out.weight.chunk(size, 1)[rank],
            "out.bias": self.out.bias / size,
            "up.weight": rows(self.up.weight),
            "up.bias": rows(self.up.bias),
            "down.weight": self.down.weight.chunk(size, 1)[rank],
            "down.bias": self.down.bias / size,
        }


class Model(nn.Module):
    """Predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(len(WORDS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(WORDS))

    def forward(self, tokens: Tensor, places: Tensor, cache: Tensor | None = None) -> Tensor:
        """Return how likely each word is as the next one, [texts, tokens, words].

        Args:
            tokens: [texts, tokens].
            places: Where each stands in its text, [texts, tokens].
            cache: As of ``new_cache``; it is written.
        """
        x = self.embed(tokens, places)
        for number, layer in enumerate(self.layers):
            x = x + layer.attention(x, places, None if cache is None else cache[number])
            x = x + layer.perceptron(x)
        return self.head(self.norm(x))

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Return a vector for each token, which says what and where it is."""
        return self.word(tokens) + self.place(places)


def new_cache(texts: int, length: int = LENGTH) -> Tensor:
    """Return an empty KV cache, [LAYERS, 2, texts, length, HEADS, WIDTH / HEADS]."""
    return torch.zeros(LAYERS, 2, texts, length, HEADS, WIDTH // HEADS)


def trained(steps: int = 150, texts: int = 3) -> Model:
    """Return a model that has learned the text, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.tensor(tokens_of(TEXT * 2))
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    places = torch.arange(LENGTH).expand(texts, LENGTH)
    for _ in range(steps):
        crop = data[torch.randint(len(TEXT), (texts, 1)) + torch.arange(LENGTH + 1)]
        guess = model(crop[:, :-1], places)
        loss = cross_entropy(guess.flatten(0, 1), crop[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()
