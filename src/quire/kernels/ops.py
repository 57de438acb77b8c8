"""The operations that paging is about, as types: what a backend is given and must do.

Shapes use: S sequences in the batch, T new tokens over all of them, H query heads, Hkv key/value
heads, D head size, B blocks in the pool, N tokens a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class KVShape(NamedTuple):
    """What one layer keeps for one token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class LayerKV(NamedTuple):
    """One layer's share of the pool: contiguous, so that a (block, head) pair is a tile N x D."""

    keys: Tensor  # [B, Hkv, N, key_dim]
    values: Tensor  # [B, Hkv, N, value_dim]
    lane: int = 0  # of AttentionBatch.lanes: whose blocks these are


class LaneTables(NamedTuple):
    """Where the tokens of a step are kept in the layers of one lane, which share a window.

    Blocks before the window may have been given back: their columns hold any id.
    """

    slots: Tensor  # [T] int64, where each new key and value goes: block id x N + offset
    block_tables: Tensor  # [S, widest table] int64, padded with block 0


@dataclass(frozen=True)
class AttentionBatch:
    """A step's mixed batch of prefill chunks and decodes: ragged rows over block tables.

    Rows ``query_starts[s]:query_starts[s + 1]`` are the new tokens of sequence s, the last of
    which stands at position ``context_lens[s] - 1``.
    """

    positions: Tensor  # [T] int64, position of each new token in its sequence
    query_starts: tuple[int, ...]  # S + 1 row bounds
    context_lens: Tensor  # [S] int64, tokens of each sequence once this step is done
    prompt_lens: Tensor  # [S] int64, tokens of each sequence's prompt
    lanes: tuple[LaneTables, ...]
    block_size: int


@dataclass(frozen=True)
class AttentionSpec:
    """What distinguishes one attention layer from another, beyond its shapes."""

    scale: float
    window: int | None = None  # a token sees itself and the window - 1 tokens before it
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)


class AttentionBackend(Protocol):
    """Writes and reads keys and values through block tables."""

    def plan(self, batch: AttentionBatch) -> Any:
        """Work that all layers of a step share (index arrays, masks), done once."""
        ...

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: LayerKV, spec: AttentionSpec, plan: Any
    ) -> Tensor:
        """Store the new keys and values, then attend over each sequence's whole context.

        query [T, H, D], key [T, Hkv, D], value [T, Hkv, Dv] -> [T, H, Dv], causal.
        """
        ...

    def copy_blocks(
        self, source: LayerKV, target: LayerKV, pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Copy whole blocks, in the order given; source and target may be the same pool."""
        ...
