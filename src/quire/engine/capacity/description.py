"""What an engine holds, for the person who starts it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NamedTuple

from quire.capabilities.adapters.config import AdapterShare
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.kv_groups import KVGroup
from quire.core.limits import EngineLimits
from quire.core.memory import Window
from quire.engine.capacity.losses import KnownLoss
from quire.engine.capacity.pool import seqs_that_fit, size_of

_TYPICAL_TOKENS = (161, 338)  # mean prompt and output of ShareGPT chats (PagedAttention, fig. 11)


class DraftShare(NamedTuple):
    """A draft model's share of an engine's memory."""

    model_name: str
    dtype: str
    quantization: str | None
    weight_bytes: int
    kv_bytes_per_token: int
    num_layers: int


@dataclass(frozen=True)
class Capacity:
    """What was loaded and what the pool holds."""

    model_name: str
    dtype: str
    quantization: str | None  # of the weights, None: as the checkpoint has them
    weight_bytes: int
    kv_dtype: str
    kv_bytes_per_token: int  # the draft model's too
    pool_bytes: int
    limits: EngineLimits
    host_blocks: str  # where they are
    kernels: str  # what computes
    warm_seconds: float | None = None  # for touching the pool's memory; None: it was not
    experts: str = ""  # of which a token reads some
    draft: DraftShare | None = None
    speculation: SpeculativeConfig | None = None
    adapters: AdapterShare | None = None
    store: str = ""  # of blocks beyond the pool
    ranks: int = 1  # each of which has so much
    family: str = ""  # its ``model_type``
    num_parameters: int = 0
    state_bytes: int = 0  # of a slot, for the states of one sequence
    token_bytes: int = 0  # of the weights, those that a step of one token reads
    form_key: str = ""  # by which its loss is kept
    loss: KnownLoss | None = None  # None: nobody has measured it

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return self.limits.kv_groups

    @property
    def num_blocks(self) -> int:
        """Blocks over all KV groups."""
        return self.limits.num_blocks

    @property
    def max_model_len(self) -> int | None:
        """The longest text; None: a window lets sequences go on for ever."""
        return self.limits.max_model_len

    @property
    def mean_block_bytes(self) -> int:
        """Bytes of a block, whose layers are those of its KV group."""
        if self.limits.states is not None or self.limits.share is not None:
            return self.pool_bytes // max(1, self.num_blocks)
        return self.kv_bytes_per_token * self.limits.block_size // max(1, len(self.kv_groups))

    def kv_bytes_read(self, context: float) -> float:
        """Bytes of keys and values that a token reads, of ``context`` before it."""
        paged = [one for one in self.kv_groups if one.state is None]
        layers = sum(len(one.layers) for one in paged) or 1
        windows = [(one, one.window or Window(sys.maxsize, 0)) for one in paged]
        seen = sum(len(one.layers) * min(context, w.tokens + w.sinks) for one, w in windows)
        return self.kv_bytes_per_token * seen / layers

    def describe(self) -> str:
        """One paragraph for the person who starts the engine."""
        if not self.kv_groups:
            return (
                f"{self.model_name} in {self.dtype}: {size_of(self.weight_bytes)} of weights. It "
                "is an encoder: it keeps no keys and values, so there is no KV pool. It reads each "
                f"text whole, of up to {self.max_model_len:,} tokens, and a step reads up to "
                f"{self.limits.max_num_batched_tokens:,}. Computed by: {self.kernels}."
            )
        tokens_in, tokens_out = _TYPICAL_TOKENS
        typical, chats = tokens_in + tokens_out, f" ({tokens_in} in, {tokens_out} out)"
        longest = "any length"
        if self.max_model_len is not None:
            longest = f"the full {self.max_model_len:,} tokens"
            if typical > self.max_model_len:
                typical, chats = self.max_model_len, ""
        full, usual = (seqs_that_fit(self.limits, n) for n in (self.max_model_len, typical))
        return (
            f"{self.model_name} in {self.dtype}: {size_of(self.weight_bytes)} of weights"
            f"{_describe_rounding(self.quantization)}, {size_of(self.kv_bytes_per_token)} of KV "
            f"cache a token ({self.kv_dtype}).{self._describe_loss()}{self.experts} The KV pool is "
            f"{size_of(self.pool_bytes)}: {describe_kv_groups(self.limits, self.state_bytes)}"
            f"{self._describe_warmth()}. "
            f"That holds {full:,} sequence{'s' if full != 1 else ''} of {longest}, "
            f"or {usual:,} typical chat{'s' if usual != 1 else ''} of {typical}{chats}. "
            f"Prefix caching is {'on' if self.limits.enable_prefix_caching else 'off'}."
            f"{self._describe_ranks()}{self._describe_swap()}{self._describe_speculation()}"
            f"{self._describe_adapters()}{self.store} "
            f"Kernels: {self.kernels}."
        )

    @property
    def kv_layers(self) -> list[tuple[int, int]]:
        """In each KV group: layers of the model, and of the draft model, whose are the last."""
        groups = [kv_group.layers for kv_group in self.limits.kv_groups]
        own = sum(map(len, groups)) - (0 if self.draft is None else self.draft.num_layers)
        counts = [sum(layer < own for layer in layers) for layers in groups]
        return [(n, len(layers) - n) for n, layers in zip(counts, groups, strict=True)]

    def _describe_loss(self) -> str:
        return "" if self.loss is None else f" Beside the model's own weights it has {self.loss}."

    def _describe_warmth(self) -> str:
        seconds = self.warm_seconds
        return "" if seconds is None else f"; its memory was touched in {seconds:.2g} s"

    def _describe_ranks(self) -> str:
        return f" Each of {self.ranks} ranks holds as much of the model." if self.ranks > 1 else ""

    def _describe_swap(self) -> str:
        blocks = self.limits.num_host_blocks
        return f" {blocks:,} more blocks of swap space are {self.host_blocks}." if blocks else ""

    def _describe_speculation(self) -> str:
        asked = self.speculation
        if asked is None:
            return ""
        most, by = asked.num_speculative_tokens, ""
        if asked.method in ("suffix", "auto") and asked.cache_bytes:
            by = f", {size_of(asked.cache_bytes)} for outputs served before"
        if self.draft is not None:
            name, dtype, quantization, weight_bytes, kv_bytes, _ = self.draft
            by += (
                f", by {name} in {dtype}: {size_of(weight_bytes)} of weights more"
                f"{_describe_rounding(quantization)}, and {size_of(kv_bytes)} of that KV cache"
            )
        return f" Speculation: {asked.method}, up to {most} drafts a sequence and step{by}."

    def _describe_adapters(self) -> str:
        if self.adapters is None:
            return ""
        most, kept, rank, each = self.adapters
        return (
            f" Adapters of up to rank {rank}: at most {most:,} at once, and {kept:,} kept in "
            f"{size_of(kept * each)} of memory."
        )


def _describe_rounding(quantization: str | None) -> str:
    return "" if quantization is None else f" rounded as {quantization}"


def describe_kv_groups(limits: EngineLimits, state_bytes: int = 0) -> str:
    """Blocks and tokens of the pool, and in which layers, where these keep different things."""
    clauses, num_layers = [], sum(len(kv_group.layers) for kv_group in limits.kv_groups)
    for kv_group in limits.kv_groups:
        if kv_group.state is not None:
            most = "" if kv_group.share is None else "up to "
            clauses.append(
                f"{most}{kv_group.num_blocks:,} states of a sequence, of {size_of(state_bytes)}, "
                f"for {len(kv_group.layers)} of {num_layers} layers"
            )
            continue
        clause = (
            f"{kv_group.num_blocks:,} blocks of {limits.block_size}, "
            f"{kv_group.num_blocks * limits.block_size:,} tokens"
        )
        if kv_group.share is not None:
            clause = f"up to {clause}"
        if kv_group.window is not None or len(limits.kv_groups) > 1:
            clause += f", for {len(kv_group.layers)} of {num_layers} layers"
        if kv_group.window is not None:
            tokens = f"{kv_group.window.tokens:,} tokens of a sequence"
            first = f"first {kv_group.window.sinks:,} and the " if kv_group.window.sinks else ""
            seen = "newest chunk of" if kv_group.window.by_chunks else f"{first}last"
            clause += f" (only the {seen} {tokens})"
        clauses.append(clause)
    if limits.share is not None:
        clauses[-1] += f", on {limits.share.pages:,} pages that they share"
    return ", and ".join(clauses)
