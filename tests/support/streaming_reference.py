"""StreamingLLM as its paper says (Xiao et al., 2024, section 3.2), one token at a time.

The cache holds *unrotated* keys, so many sinks and so many last ones; what falls out of the window
is evicted, and every step rotates all keys, and the query, by their places in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def share_of(cuts: Sequence[tuple[int, float, int]], query: int, key: int) -> float:
    """What is left of the weight of a key at one position for the query at another.

    cuts: position, bias and fade of each. Its share of what is before it falls on a straight line.
    """
    left = 1.0
    for position, bias, fade in cuts:
        if key < position <= query:
            gone = min(1.0, (query - position) / fade) if fade else 1.0
            left *= 1 - gone * (1 - math.exp(bias))
    return left


class StreamingReference:
    """The modules of a Llama-like model of ``transformers``, in float32, called one by one."""

    def __init__(self, directory: Path, window: int, sinks: int) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._window, self._sinks = window, sinks
        self._fed = 0
        self._kept: list[int] = []  # positions of the tokens kept
        self.cuts: list[tuple[int, float, int]] = []  # position, bias, fade
        layers = self._model.model.layers
        self._keys: list[list[Tensor]] = [[] for _ in layers]  # [Hkv, D] of each token kept
        self._values: list[list[Tensor]] = [[] for _ in layers]

    @torch.inference_mode()
    def feed(self, token_ids: Sequence[int]) -> Tensor:
        """Logits [tokens, V] after each of the next tokens."""
        return torch.stack([self._step(token_id) for token_id in token_ids])

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The ``count`` likeliest tokens after a prompt."""
        tokens = [int(self.feed(prompt)[-1].argmax())]
        while len(tokens) < count:
            tokens.append(int(self.feed(tokens[-1:])[-1].argmax()))
        return tokens

    def _step(self, token_id: int) -> Tensor:
        decoder = self._model.model
        x = decoder.embed_tokens(torch.tensor([token_id]))[0]
        self._kept.append(self._fed)
        self._fed += 1
        if len(self._kept) > self._sinks + self._window:
            del self._kept[self._sinks]
        for number, layer in enumerate(decoder.layers):
            x = x + self._attend(number, layer.self_attn, layer.input_layernorm(x))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits: Tensor = self._model.lm_head(decoder.norm(x))
        return logits

    def _attend(self, number: int, attention: Any, h: Tensor) -> Tensor:
        size = attention.head_dim
        query, key, value = (
            project(h).view(-1, size)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        keys, values = self._keys[number], self._values[number]
        keys.append(key)
        values.append(value)
        if len(keys) > self._sinks + self._window:
            del keys[self._sinks], values[self._sinks]
        last = len(keys) - 1
        query = self._rotate(query[None], torch.tensor([last]))[0]
        rotated = self._rotate(torch.stack(keys), torch.arange(last + 1))  # [C, Hkv, D]
        group = len(query) // rotated.shape[1]
        rotated, stored = (
            x.repeat_interleave(group, dim=1) for x in (rotated, torch.stack(values))
        )
        scores = torch.einsum("hd,chd->hc", query, rotated) * attention.scaling
        shares = [
            share_of(self.cuts, self._kept[-1], key) if key >= self._sinks else 1.0
            for key in self._kept
        ]
        weights = (scores + torch.tensor(shares).log()).softmax(-1)
        attended = torch.einsum("hc,chd->hd", weights, stored)
        output: Tensor = attention.o_proj(attended.flatten())
        return output

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [C, heads, D] turned by its places [C] in the cache."""
        rope = self._model.model.rotary_emb
        angles = (positions[:, None] * rope.inv_freq)[:, None]
        cos, sin = angles.cos() * rope.attention_scaling, angles.sin() * rope.attention_scaling
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
