"""The operations that paging is about, as types: what kernels are given and must do.

Shapes use: S sequences in the batch, T new tokens over all of them, d the width of a decoder, F
that of its MLPs inside, H query heads, Hkv key/value heads, D their size (Dv of values, where it
may differ), B blocks in the pool, N tokens a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.kernels.adapters import AdaptedRows, Site, Updates
from quire.kernels.layer_memory import LayerKV, LayerMemory, LayerState
from quire.kernels.mlps import Activation, DenseMLP, Experts, GivenMLP, Projection
from quire.kernels.ranks import Ranks
from quire.kernels.recurrence import RecurrentSpec
from quire.kernels.streams import StreamCorrection, StreamPrediction


class Few(NamedTuple):
    """What is chosen of rows whose masks leave few numbers: those, and the largest of them [N]."""

    chosen: Tensor  # [N] int64; negative: it leaves more, or none, and nothing is chosen
    peaks: Tensor  # [N] float32


class StateSlots(NamedTuple):
    """Where the states of a step's sequences are, and which tokens they see."""

    slots: Tensor  # [S] int64
    confirmed: Tensor | None = None  # [S] int64, drafts whose inputs a slot keeps: taken in first
    drafts: Tensor | None = None  # [S] int64, the last tokens, whose inputs are kept; as confirmed
    left: Tensor | None = None  # [T] int64, another slot for what the state is after it; -1: none

    @property
    def of_sequences(self) -> list[tuple[int, int, int]]:
        """The slot, the confirmed tokens and the drafts of each, on the host."""
        slots: list[int] = self.slots.tolist()
        none = [0] * len(slots)
        confirmed: list[int] = none if self.confirmed is None else self.confirmed.tolist()
        drafts: list[int] = none if self.drafts is None else self.drafts.tolist()
        return list(zip(slots, confirmed, drafts, strict=True))


class KVGroupTables(NamedTuple):
    """Where the tokens of a step are kept in the layers of one KV group, which share a window.

    Blocks that the window has left are not in a sequence's row: the first ``num_sink_blocks``
    columns are its first blocks, and a later column c is its block ``c + num_dropped``.
    """

    slots: Tensor  # [T] int64, where each new key and value goes: block id x N + offset
    block_tables: Tensor  # [S, widest row] int64, padded with block 0
    num_dropped: Tensor  # [S] int64
    num_sink_blocks: int = 0


class ColumnBias(NamedTuple):
    """Numbers added to scores, scaled and capped, by the position of the key.

    ``bias[t, k]`` is added to the scores of token t for positions from ``before[t, k - 1]`` on, or
    from 0, up to, and without, ``before[t, k]``. Nothing is added after the last.
    """

    before: Tensor  # [T, K] int64, ascending
    bias: Tensor  # [T, K] float32, at most 0, perhaps -inf

    def of(self, rows: Tensor, positions: Tensor) -> Tensor:
        """The numbers of these R tokens for keys at ``positions``, [R, C] or [1, C] -> [R, C]."""
        before = self.before[rows]
        positions = positions.expand(len(before), -1).contiguous()
        places = torch.searchsorted(before.contiguous(), positions, right=True)
        return torch.cat((self.bias[rows], self.bias.new_zeros(len(before), 1)), 1).gather(
            1, places
        )


class MostWork(NamedTuple):
    """The largest batch that a recorded launch may meet."""

    seqs: int
    singles: int  # sequences with one new token
    several: int  # sequences with several
    tokens: int


@dataclass(frozen=True)
class AttentionBatch:
    """A step's mixed batch of prefill chunks and decodes: ragged rows over block tables.

    Rows ``query_starts[s]:query_starts[s + 1]`` are the new tokens of sequence s, the last of
    which stands at position ``context_lens[s] - 1``.

    A sequence whose first new token stands at position 0 begins with states of zeros, whatever its
    slot holds; each other one with what its slot holds. All leave their states in their slots, as
    they are before drafts.
    """

    positions: Tensor  # [T] int64, position of each new token in its sequence
    query_starts: tuple[int, ...]  # S + 1 row bounds
    context_lens: Tensor  # [S] int64, tokens of each sequence once this step is done
    output_starts: Tensor  # [S] int64, position of each sequence's first output token
    kv_groups: tuple[KVGroupTables, ...]
    block_size: int
    bounds: Tensor | None = None  # [S + 1] int64, query_starts where the other tensors are
    most: MostWork | None = None  # whatever lengths ``bounds`` tells then; None: ``query_starts``
    adapted: tuple[AdaptedRows, ...] = ()  # by adapter; each row at most once
    given: tuple[tuple[int, Tensor], ...] = ()  # vectors in the place of tokens', from that row on
    bias: ColumnBias | None = None  # in every layer; on CPUs only
    states: StateSlots | None = None  # None: no layer has states

    @property
    def starts(self) -> Tensor:
        """``bounds``, made now if it is not there."""
        if self.bounds is not None:
            return self.bounds
        return torch.tensor(self.query_starts, device=self.positions.device)


class Norm(NamedTuple):
    """A normalisation over the last dimension.

    x / sqrt(mean(x²) + eps) (RMSNorm; Zhang and Sennrich, 2019); ``centred``: of x - mean(x)
    (LayerNorm). Times ``weight``, plus ``bias``, where there are any.
    """

    width: int
    weight: Tensor | None  # [width]
    eps: float
    bias: Tensor | None = None  # [width], of the weight's type
    centred: bool = False


class Rotation(NamedTuple):
    """The cosines and sines by which a step's queries and keys are turned, in layers of a kind.

    Dimensions i and i + R of a head, for i < R, are a pair; those from 2 R on are left as they are.
    ``sink_cos`` and ``sink_sin`` turn queries that see attention sinks, whose distance never
    exceeds sinks + window (StreamingLLM; Xiao et al., 2024, section 3.2).
    """

    cos: Tensor  # [T, R] float32, as are the others
    sin: Tensor
    sink_cos: Tensor | None = None
    sink_sin: Tensor | None = None
    query_scale: Tensor | None = None  # [T], times the queries


class Norms(NamedTuple):
    """Around a part of a layer: x becomes after(x + scale * output(part(before(x)))).

    Any norm may be absent. ``total``: times the sum, where there is no norm after it.
    """

    before: Norm | None = None
    output: Norm | None = None
    after: Norm | None = None
    scale: float = 1.0
    total: float = 1.0


CENTRED_TOGETHER = 64
"""Positions whose keys have one centre, those from a multiple of it on."""


class Centring(NamedTuple):
    """What is taken from keys before they are rounded to 4 bits, and given back to scores.

    Trained models have keys that are nearly the same for all tokens. A key is rounded as its
    difference from the nearer of two centres, times ``factors``: from what keys have in common,
    turned as the middle of its ``CENTRED_TOGETHER`` positions is, and from the first key.

    For C++ alone: a reference rounds keys as they are.
    """

    factors: Tensor  # [Hkv, D] float32, as are the others
    query_factors: Tensor  # [Hkv, D]: their inverses
    common: Tensor  # [Hkv, D], before rotation
    first: Tensor  # [Hkv, D]: at position 0
    shares: Tensor  # [Hkv, D, D in whole 16]: of what is lost of a number, for those before it
    order: Tensor  # [Hkv, D] int32: numbers, those that count most first
    cos: Tensor | None  # [positions / CENTRED_TOGETHER, R]; None: keys are not turned
    sin: Tensor | None


@dataclass(frozen=True)
class AttentionSpec:
    """What distinguishes one attention layer from another, except its shapes."""

    scale: float  # positive
    window: int | None = None  # a token sees itself and the window - 1 tokens before it
    sinks: int = 0  # first tokens of the sequence that are seen as well
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    query_norm: Norm | None = None  # of each head, before it is turned
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    shared: bool = False  # layers with other norms of queries attend to the same keys
    sink_logits: Tensor | None = None  # [H] float32, scores of a key that all see, without a value
    centring: Centring | None = None  # of keys in a cache of 4 bits
    by_chunks: bool = False  # a token sees only those of the window from a multiple of it on
    norm_turned: bool = False  # norms are of heads that have been turned


@dataclass(frozen=True)
class IndexSpec:
    """How tokens are chosen by an index: what distinguishes one from another."""

    heads: int
    most: int  # tokens that one attends to
    key_norm: Norm


@dataclass(frozen=True)
class SelfAttention:
    """output(attend(qkv(x))); ``spec`` is the kernels' part of it.

    Where ``qkv`` gives no values, keys are values too, as they are before norms and rotations.
    ``source``: the earlier layer whose keys and values these queries attend to, by its place among
    those that keep something; ``qkv`` gives queries alone then.

    ``gates``: so many behind the queries that ``qkv`` gives: output(sigmoid(gates) *
    attend(qkv(x))), each times as many neighbours.
    """

    qkv: Projection  # [T, d] -> [T, H D + Hkv D + Hkv Dv]: queries, keys, values of all heads
    output: Projection  # [T, H Dv] -> [T, d]
    num_heads: int
    spec: AttentionSpec
    rotation: int | None  # which of the step's; None: no rotary positions
    query_norm: Norm | None  # of all heads together [H D]; of each alone as ``spec`` says
    key_norm: Norm | None  # [Hkv D]
    gates: int = 0
    source: int | None = None


@dataclass(frozen=True)
class SelfLatentAttention:
    """Attention over latents (MLA): output(values(attend(keys(queries), latents))).

    What is kept of a token is one key of R numbers that are turned and a latent of L, which is its
    value. Of a latent all heads' keys and values could be made; queries are taken to it instead, by
    the same weights turned round, and what is found is taken to values.
    """

    inputs: Projection  # [T, d] -> what queries are made of, or they themselves; R + L numbers
    query_norm: Norm | None  # of what queries are made of
    queries: Projection | None  # -> [T, H (R + N)]
    latent_norm: Norm  # [L]
    keys: tuple[Projection, ...]  # by head: N -> L
    values: tuple[Projection, ...]  # by head: L -> V
    output: Projection  # [T, H V] -> [T, d]
    spec: AttentionSpec
    rotation: int | None  # which of the step's; None: no rotary positions
    indexed: bool = False  # tokens attend to what is chosen: operation by operation


@dataclass(frozen=True)
class SelfRecurrence:
    """output(recur(inputs(x))).

    widened: what makes gates, and steps, of numbers that ``inputs`` gives after what is mixed, and
        strengths: first those for steps.
    """

    inputs: Projection  # [T, d] -> [T, spec.columns], or less with ``widened``
    output: Projection  # [T, spec.outputs] -> [T, d]
    spec: RecurrentSpec
    widened: tuple[Projection, Projection] | None = None


@dataclass(frozen=True, eq=False)
class MLPWithExperts:
    """An MLP and a mixture beside each other, both of x; what they give is added up.

    Each has norms of its own, and so has the mixture's router.
    """

    mlp: DenseMLP
    mlp_norms: Norms
    experts: Experts
    expert_norms: Norms
    router_norm: Norm


@dataclass(frozen=True)
class Laurel:
    """x + norm(right(left(x))), of few numbers in between (Menghani et al., 2024)."""

    left: Projection  # [T, d] -> [T, R]
    right: Projection  # [T, R] -> [T, d]
    norm: Norm


@dataclass(frozen=True)
class DecoderLayer:
    """What mixes tokens, then an MLP, each with the norms around it; either may be absent.

    ``parallel``: both of the same x, and what they give is added to it. Then neither has a norm
    after, the mixer has one before, and an MLP that has none is given the same.

    ``streams``: where x is one of several, those that earlier layers left are predicted first, and
    x is of these; or corrected by x, and what this layer gives is added to all but the first.
    """

    mixer: SelfAttention | SelfLatentAttention | SelfRecurrence | None
    mixer_norms: Norms
    # attention, where it is parallel to a state
    mlp: DenseMLP | GivenMLP | Laurel | Experts | MLPWithExperts | SelfAttention | None
    mlp_norms: Norms
    parallel: bool
    streams: StreamPrediction | StreamCorrection | None = None


@dataclass(frozen=True, eq=False)
class DecoderStack:
    """Layers one after the other, and perhaps a norm of what comes out: what may be fused."""

    layers: tuple[DecoderLayer, ...]
    final_norm: Norm | None
    dtype: torch.dtype  # of x
    ranks: Ranks | None = None  # over whom attention's and MLPs' outputs are to be added up


Fused = Callable[[Tensor, Any, Sequence[Rotation], Tensor | None], Tensor]
"""A decoder over its share of the pool, in one call: x [T, d], plan, rotations, and what layers are
given of each token -> [T, d]. Where layers have streams, x and what comes are [T, n, d].

What x holds need not outlast the call.
"""


class Texts(NamedTuple):
    """S texts that a decoder goes on with by itself, those with most to come first.

    counts: tokens that are to come of each, at least 1, and so many passes.
    num_given: tokens of all that are known and yet to be computed, in the first pass; each has one.
    numbers: int64: counts, how many are given of each, and the position of the last of them [S];
        these tokens, text after text; then of each KV group the block tables [S, width] and
        num_dropped [S]; then, where layers keep states, the slots [S] and how many of a text's
        given tokens are drafts [S], the last ones.
    positions: int64, of all tokens that are computed, pass after pass; starts: of the texts they
        are of, where their outputs begin.
    kv_groups: width, and num_sink_blocks.
    """

    counts: tuple[int, ...]
    num_given: int
    numbers: Tensor
    positions: Tensor
    starts: Tensor
    kv_groups: tuple[tuple[int, int], ...]
    block_size: int
    has_states: bool = False


class Continuing(NamedTuple):
    """How a token becomes a vector, and states logits: weights [V, d].

    embedding: packed, or a tensor in the type of the states.
    """

    embedding: Any
    head: Any  # packed
    size: int  # tokens that may be chosen, the head's first


class Kernels(Protocol):
    """The operations of a decoder beside its matrix products, and perhaps all of it at once.

    draws: whether they choose tokens, too.
    """

    draws: bool = False

    def plan(self, batch: AttentionBatch) -> Any:
        """Work that all layers of a step share (index arrays, masks), done once."""
        ...

    def attend(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv: LayerKV,
        spec: AttentionSpec,
        plan: Any,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Store the new keys and values, then attend over each sequence's whole context.

        Without keys and values: those that another layer has stored, at the same positions.

        query [T, H, D], key [T, Hkv, D], value [T, Hkv, Dv] -> [T, H, Dv], causal. Queries and
        keys are first normalised as ``spec`` says and turned by ``rotation``; values may be
        normalised. They may be views of one fused projection, whose contents need not outlast the
        call.
        """
        ...

    def choose(
        self,
        query: Tensor,
        key: Tensor,
        weights: Tensor,
        kv: LayerKV,
        spec: IndexSpec,
        plan: Any,
        rotation: Rotation | None = None,
    ) -> Any:
        """Store the new keys in the layer's index; the plan by which ``attend`` attends to chosen
        tokens alone, in layers of this KV group.

        query [T, heads, width], key [T, width], weights [T, heads] float32. Keys are normalised,
        both are turned. A token's score of another that it sees is the sum over heads of weight *
        max(0, query * key); those with the highest are chosen, the first of equals. Kernels
        without an index, as here, raise.
        """
        raise NotImplementedError

    def recur(self, x: Tensor, state: LayerState, spec: RecurrentSpec, plan: Any) -> Tensor:
        """Take each sequence's state on by its new tokens: x [T, spec.columns] -> [T, outputs].

        States are float32, and tokens are taken one after the other: so results do not depend on
        how a text is cut into steps. x need not outlast the call.
        """
        ...

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """x [T, width] normalised, in its dtype -> [T, width]."""
        ...

    def add_norm(self, x: Tensor, delta: Tensor, norm: Norm) -> Tensor:
        """Add ``delta`` to ``x`` in place, both [T, d]; the sum normalised [T, d]."""
        ...

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """x [T, F], gated [T, 2 F] -> [T, F]. x need not outlast the call."""
        ...

    def gate(self, x: Tensor, gates: Tensor) -> None:
        """x [T, width] becomes x * sigmoid(gates), each of these times as many neighbours."""
        ...

    def predict(self, streams: Tensor, prediction: StreamPrediction) -> Tensor:
        """streams [T, n, d] become those that are predicted -> the one of them [T, d].

        Kernels without streams, as here, raise.
        """
        raise NotImplementedError

    def correct(self, streams: Tensor, x: Tensor, correction: StreamCorrection) -> Tensor:
        """streams [T, n, d] are corrected by x [T, d] -> the one of them, scaled [T, d]."""
        raise NotImplementedError

    def mix(self, x: Tensor, experts: Experts, routed: Tensor | None = None) -> Tensor:
        """x [T, d] through the experts of each row -> [T, d]; the router is given ``routed``."""
        ...

    def argmax(self, x: Tensor) -> Tensor:
        """The index of the largest in each row, the first of equals or of NaN: [R, V] -> [R]."""
        ...

    def draw(self, x: Tensor, filters: Tensor | None) -> tuple[Tensor, Tensor]:
        """Choose a token for each row of x, float32 [R, V], as the sampler does, without waiting.

        filters: float64 [R, 5], what the sampler's ``Filters`` hold; a top_k of 1 takes the
            likeliest. None: all do.

        The tokens [R], in the vocabulary even where a row's numbers are none, and the largest of
        each row [R], NaN where one is. Kernels that do not draw, as here, raise.
        """
        who = type(self).__name__
        raise NotImplementedError(f"{who} leave it to the sampler")

    def choose_of_few(
        self,
        x: Tensor,
        masks: NDArray[np.uint32],
        rows: Sequence[int],
        temperature: Sequence[float],
        uniform: Sequence[float],
    ) -> Few | None:
        """Choose one number in each of those rows of x, as far as its mask leaves a few.

        As the sampler does, by temperature (0: the likeliest) and a number in [0, 1). Kernels that
        always look at all, as here, give None.
        """
        return None

    def allow(self, x: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
        """x, float32 [R, V], with -inf where masks [N, words] do not allow it: a copy.

        masks: int32, of the rows [N], which increase; a bit for each number, the lowest first.
        """
        ...

    def keep_adapter(self, updates: Updates, num_layers: int, dtype: torch.dtype) -> Any:
        """An adapter of a decoder of that many layers, for ``AdaptedRows``.

        The arguments need not outlast the call. Kernels without adapters, as here, raise.
        """
        raise NotImplementedError

    def adapt(
        self, adapted: Sequence[AdaptedRows], layer: int, site: Site, x: Tensor, out: Tensor
    ) -> None:
        """Add to ``out`` [T, outputs], the product of x [T, inputs], what adapters add.

        Sums are float32, as is what DoRA makes of them, and are rounded together with ``out``.
        """
        raise NotImplementedError

    def fuse(self, decoder: DecoderStack, kv: Sequence[LayerMemory]) -> Fused | None:
        """All layers in one call, if these kernels can; called each step, and cached.

        None, as here: they have nothing better than their single operations.
        """
        return None

    def go_on(
        self,
        decoder: DecoderStack,
        kv: Sequence[LayerMemory],
        texts: Texts,
        rotations: Sequence[Rotation],
        vocabulary: Continuing,
    ) -> Tensor | None:
        """Several passes in one call, each with the likeliest tokens of the one before: [P, S].

        rotations: of ``texts.positions``. The tokens of each pass; -1 if logits are not numbers,
            and anything for a text that has ended. None, as here: these kernels cannot.
        """
        return None

    def copy_blocks(
        self,
        source: Sequence[LayerMemory],
        target: Sequence[LayerMemory],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        """Copy whole blocks of each layer to its counterpart, in the order given.

        Source and target may be the same pools; two layers share none.
        pairs: block in the source, block in the target. Their parts are alike but for B.
        """
        ...
