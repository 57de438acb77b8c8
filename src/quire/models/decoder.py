"""A decoder as data, and the forward pass over it: what families of models are built into.

Shapes use T, the new tokens of a step over all its sequences, and d, the width of the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.layer_memory import LayerMemory
from quire.kernels.mlps import Experts
from quire.kernels.ops import AttentionBatch, Continuing, DecoderStack, Kernels, Norm, Texts
from quire.kernels.products import PackedWeight
from quire.kernels.ranks import Ranks
from quire.models.base import ExpertFacts
from quire.models.layers import Layer, Recurrent, WithExperts, run_layers
from quire.models.linear import Linear, NamedParts
from quire.models.linear.base import PlainLinear
from quire.models.rope import Rope
from quire.models.shard import Shard


class LearnedPositions(NamedTuple):
    """Vectors that are added to those of the tokens."""

    table: Tensor  # [positions + offset, d]
    offset: int  # the row of position 0


class LayerInputs(NamedTuple):
    """What all layers are given of each token, whatever comes of it in between: by its id, and by
    its vector.
    """

    table: Linear  # its rows are tokens' numbers for all layers, [tokens, layers x width]
    projection: Linear  # of tokens' vectors: d -> layers x width
    norm: Norm  # of what that gives each layer
    scales: tuple[float, float]  # of the table, and of what the projection gives
    num_tokens: int  # of the table, on all ranks
    layers: int

    def of(self, token_ids: Tensor, x: Tensor, kernels: Kernels, ranks: Ranks | None) -> Tensor:
        """token_ids [T], x [T, d] -> [T, layers x width].

        Tokens that the table does not have are taken for its first.
        """
        token_ids = token_ids.masked_fill(token_ids >= self.num_tokens, 0)
        own = token_rows(self.table, self.num_tokens, ranks, token_ids, x.dtype) * self.scales[0]
        projected = (self.projection(x) * self.scales[1]).view(-1, self.norm.width)
        return (kernels.norm(projected, self.norm).view(own.shape) + own) * 2**-0.5


class Streams(NamedTuple):
    """What goes through layers that see one of several streams: n of them, of a token's vector."""

    apart: Linear  # d -> (n - 1) d: all but the first
    together: tuple[Linear, ...]  # d -> d, of each of those

    def parted(self, x: Tensor) -> Tensor:
        """x [T, d] -> [T, n, d], all as large as x."""
        first = x[:, None]
        others = self.apart(x).view(len(x), -1, x.shape[1])
        return torch.cat((first, _as_large(others, first)), 1)

    def joined(self, streams: Tensor) -> Tensor:
        """streams [T, n, d] -> [T, d], their mean."""
        first, *others = streams.unbind(1)
        total = first.to(torch.promote_types(first.dtype, torch.float32))
        for stream, projection in zip(others, self.together, strict=True):
            total = total + _as_large(projection(stream), first)
        return (total / streams.shape[1]).to(streams.dtype)


def _as_large(x: Tensor, other: Tensor) -> Tensor:
    """x with the root mean square of ``other``, both [..., d]."""
    wide = torch.promote_types(x.dtype, torch.float32)
    own, wanted = (one.to(wide).square().mean(-1, keepdim=True) for one in (x, other))
    return (x * (wanted.sqrt() / own.clamp(min=1e-5).sqrt())).to(x.dtype)


def token_rows(
    table: Linear, size: int, ranks: Ranks | None, token_ids: Tensor, dtype: torch.dtype
) -> Tensor:
    """token_ids [T] -> [T, width], of a table whose ``size`` rows ranks divide.

    Exact, since all ranks but one add zeros.
    """
    if ranks is None:
        return table.rows(token_ids, dtype)
    held = Shard(ranks.rank, ranks.size).run(size)
    others = (token_ids < held.start) | (token_ids >= held.stop)
    x = table.rows((token_ids - held.start).masked_fill(others, 0), dtype)
    x.masked_fill_(others[:, None], 0)
    ranks.add_up(x)
    return x


@dataclass(frozen=True, eq=False)
class Decoder:
    """All that tokens go through, from their ids to logits."""

    vocab_size: int
    dtype: torch.dtype  # of what goes from layer to layer
    embed: Linear  # its rows are the tokens' vectors
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    head: Linear
    ropes: tuple[Rope, ...] = ()
    positions: LearnedPositions | None = None
    inputs: LayerInputs | None = None
    streams: Streams | None = None
    embedding_scale: float = 1.0
    embedding_scaled: bool = False  # given vectors are as the table's are once they are scaled
    logits_scale: float = 1.0
    logits_softcap: float | None = None  # logits become softcap * tanh(logits / softcap)
    embedding_norm: Norm | None = None
    project_in: Linear | None = None  # where the embedding is not as wide as the layers
    project_out: Linear | None = None
    ranks: Ranks | None = None  # each has a part of all tensors; None: there is one rank

    def fusable(self) -> DecoderStack:
        """The layers for kernels that run them whole."""
        layers = tuple(layer.fusable() for layer in self.layers)
        return DecoderStack(layers, self.last_norm, self.dtype, self.ranks)

    @property
    def last_norm(self) -> Norm | None:
        """The norm of what layers give, as it is: not of streams, which are joined before."""
        return self.final_norm if self.streams is None else None


class Vocabulary(NamedTuple):
    """From tokens' ids to their vectors, and from states to logits.

    Each rank has the rows of some tokens.
    """

    embed: Linear
    head: Linear
    size: int  # of all ranks together
    ranks: Ranks | None

    def rows(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """token_ids [T] -> [T, width]."""
        return token_rows(self.embed, self.size, self.ranks, token_ids, dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, width] -> [R, size] float32; of no tokens, but on the first rank."""
        logits = self.head.floats(hidden)
        if self.ranks is None:
            return logits
        size = self.ranks.size
        counts = [len(Shard(rank, size).run(self.size)) for rank in range(size)]
        padded = F.pad(logits, (0, max(counts) - logits.shape[1])).contiguous()
        gathered = self.ranks.gather(padded)
        if gathered is None:
            return logits[:, :0]
        return torch.cat([one[:, :count] for one, count in zip(gathered, counts, strict=True)], 1)


class DecoderModel:
    """A ``Model`` that is a ``Decoder``."""

    replayable = True  # the device's kernels ask it for nothing

    def __init__(
        self,
        decoder: Decoder,
        max_positions: int,
        eos_token_ids: tuple[int, ...],
        weight_bytes: int,
        named: Mapping[int, NamedParts] | None = None,
        *,
        has_head: bool = True,
    ) -> None:
        """named: what products are made of, by their ids, for adapters to find them."""
        self.has_head = has_head
        self.decoder = decoder
        self.named = named or {}
        self.vocab_size = decoder.vocab_size
        self.dtype = decoder.dtype
        mixers = [mixer for layer in decoder.layers for mixer in layer.mixers]
        self.kv_shapes = tuple(mixer.kept for mixer in mixers)
        self.windows = tuple(
            None if isinstance(mixer, Recurrent) else mixer.spec.window for mixer in mixers
        )
        self.max_positions = max_positions
        self.eos_token_ids = eos_token_ids
        self.weight_bytes = weight_bytes
        self.experts = _expert_facts(decoder.layers)
        self.token_bytes = weight_bytes - _unread_bytes(decoder, self.experts)
        stable = [rope.stable_length for rope in decoder.ropes if rope.stable_length is not None]
        self.kv_depends_on_prompt_length = max_positions > min(stable, default=max_positions)
        self._stack = decoder.fusable()
        self._vocabulary = Vocabulary(decoder.embed, decoder.head, self.vocab_size, decoder.ranks)

    @property
    def vector_width(self) -> int | None:
        """See ``Model.vector_width``."""
        if self.decoder.inputs is not None or self.decoder.ranks is not None:
            return None
        return self._vocabulary.rows(torch.zeros(1, dtype=torch.int64), self.dtype).shape[1]

    def with_layers(self, layers: tuple[Layer, ...]) -> DecoderModel:
        """The same model with layers of the same weights."""
        decoder = replace(self.decoder, layers=layers)
        facts = self.max_positions, self.eos_token_ids, self.weight_bytes, self.named
        return DecoderModel(decoder, *facts, has_head=self.has_head)

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv: Sequence[LayerMemory],
        kernels: Kernels,
    ) -> Tensor:
        decoder = self.decoder
        rotations = [rope.rotation(batch) for rope in decoder.ropes]
        x = self._vocabulary.rows(token_ids, self.dtype)
        for ranges, _, tables in batch.adapted:
            if tables.rows is not None:
                for first, last in ranges:
                    x[first:last] = tables.rows(token_ids[first:last])
        if not decoder.embedding_scaled:
            _put(batch.given, x)
        if decoder.embedding_scale != 1.0:
            x = x * decoder.embedding_scale
        if decoder.embedding_scaled:
            _put(batch.given, x)
        if decoder.embedding_norm is not None:
            x = kernels.norm(x, decoder.embedding_norm)
        if decoder.project_in is not None:
            x = decoder.project_in(x)
        if decoder.positions is not None:
            table, offset = decoder.positions
            x = x + torch.embedding(table, batch.positions + offset)
        given = None
        if decoder.inputs is not None:
            given = decoder.inputs.of(token_ids, x, kernels, decoder.ranks)
        if decoder.streams is not None:
            x = decoder.streams.parted(x)
        plan = kernels.plan(batch)
        fused = kernels.fuse(self._stack, kv)
        if fused is not None:
            x = fused(x, plan, rotations, given)
        else:
            layers, norm, ranks = decoder.layers, decoder.last_norm, decoder.ranks
            adapted = batch.adapted
            x = run_layers(layers, norm, x, kv, kernels, plan, rotations, adapted, ranks, given)
        if decoder.streams is not None:
            x = decoder.streams.joined(x)
            x = x if decoder.final_norm is None else kernels.norm(x, decoder.final_norm)
        return x if decoder.project_out is None else decoder.project_out(x)

    def go_on(
        self, texts: Texts, kv: Sequence[LayerMemory], kernels: Kernels, vocab_size: int
    ) -> Tensor | None:
        decoder = self.decoder
        embedding, head = decoder.embed, decoder.head
        scaled = (decoder.embedding_scale, decoder.logits_scale, decoder.logits_softcap)
        beside = (
            decoder.embedding_norm,
            decoder.project_in,
            decoder.project_out,
            decoder.positions,
            decoder.inputs,
            decoder.streams,
            decoder.ranks,
        )
        plain = scaled == (1.0, 1.0, None) and all(part is None for part in beside)
        if not plain or not isinstance(head, PackedWeight):
            return None
        rows: PackedWeight | Tensor
        if isinstance(embedding, PackedWeight):
            rows = embedding
        elif isinstance(embedding, PlainLinear) and embedding.weight.dtype == self.dtype:
            rows = embedding.weight
            if not rows.is_contiguous():
                return None
        else:
            return None
        count = len(texts.positions)
        ends = texts.positions + 1
        batch = AttentionBatch(
            texts.positions, (), ends, texts.starts, (), texts.block_size, torch.arange(count + 1)
        )
        rotations = [rope.rotation(batch) for rope in decoder.ropes]
        size = min(vocab_size, self.vocab_size)
        return kernels.go_on(self._stack, kv, texts, rotations, Continuing(rows, head, size))

    def logits(self, hidden: Tensor) -> Tensor:
        return self._finished(self._vocabulary.logits(hidden))

    def logits_by(self, head: Linear) -> Callable[[Tensor], Tensor]:
        """The same by a head in the place of the model's own."""
        return lambda hidden: self._finished(head.floats(hidden))

    def _finished(self, logits: Tensor) -> Tensor:
        scale = self.decoder.logits_scale
        if scale != 1.0:
            logits.mul_(scale)
        cap = self.decoder.logits_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def _put(given: Sequence[tuple[int, Tensor]], x: Tensor) -> None:
    """Write vectors that were given in the place of tokens' into x [T, width]."""
    for first, vectors in given:
        x[first : first + len(vectors)] = vectors


def _unread_bytes(decoder: Decoder, experts: ExpertFacts | None) -> int:
    """Bytes of a table of embeddings that is no head, and of experts that a token has not."""
    table = 0 if decoder.embed is decoder.head else decoder.embed.nbytes
    table += 0 if decoder.inputs is None else decoder.inputs.table.nbytes
    if experts is None:
        return table
    return table + experts.weight_bytes - experts.weight_bytes * experts.chosen // experts.num


def _expert_facts(layers: Sequence[Layer]) -> ExpertFacts | None:
    parts = (layer.mlp for layer in layers)
    parts = (part.experts if isinstance(part, WithExperts) else part for part in parts)
    mixtures = [part for part in parts if isinstance(part, Experts)]
    if not mixtures:
        return None
    weights = [cast(Linear, weight) for one in mixtures for weight in (*one.up, *one.down)]
    weight_bytes = sum(weight.nbytes for weight in weights)
    return ExpertFacts(len(mixtures[0].up), mixtures[0].routing.chosen, weight_bytes)
