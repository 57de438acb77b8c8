"""A decoder as its config describes it, before tensors are read: what most families become first.

Their differences are fields here, so that one function (``build``) reads the tensors of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from quire.core.errors import ModelError
from quire.kernels.mlps import Routing
from quire.models.config import ConfigFields, ModelConfig
from quire.models.recurrences import RecurrentPlan
from quire.models.rope import RopeConfig
from quire.models.shape import WIDEST, ExpertShape, IndexShape, LatentShape, LayerSizes, Positions
from quire.models.shard import Divided, DividedStates


@dataclass(frozen=True)
class TensorNames:
    """A family's names of tensors, without ``.weight``. None: it has no such norm.

    The first ones are below one of ``roots``, or at the top if that is empty; those of a layer are
    below the layer. ``heads`` are at the top, whichever exists.
    """

    roots: tuple[str, ...] = ("model",)
    embedding: str = "embed_tokens"
    layers: str = "layers"
    final_norm: str | None = "norm"
    heads: tuple[str, ...] = ("lm_head",)
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    attention_before: str | None = "input_layernorm"
    attention_output: str | None = None
    mlp_before: str | None = "post_attention_layernorm"
    mlp_output: str | None = None
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    sink_logits: tuple[str, ...] = ()  # whole names, of which the first that there is counts
    gate: str | None = None  # of what attention gives; None: with the queries, if there are gates
    beside: tuple[str, ...] = ()  # tensors that begin so are of no decoder, and not read

    def beside_images(self) -> TensorNames:
        """The names in a model that sees images, as savers have had them."""
        return replace(
            self,
            roots=(
                "model.language_model",
                "language_model.model",
                "model.text_model",
                *self.roots,
            ),
            heads=("lm_head", "language_model.lm_head"),
            beside=(*self.beside, *_OF_IMAGES),
        )


_OF_IMAGES = tuple(
    f"{root}{part}"
    for root in ("", "model.")
    for part in (
        "vision_",
        "visual.",
        "audio_tower.",
        "embed_vision.",
        "embed_audio.",
        "multi_modal_projector.",
        "mm_projector.",
        "projector.",
        "connector.",
        "aligner.",
        "merger.",
        "mlp1.",
        "visual_embeddings_table.",
        "image_newline",
    )
)


@dataclass(frozen=True)
class ExpertNames:
    """The names of a mixture's tensors in a family, below a layer, without ``.weight``.

    Either gate, up and down of expert n have projections of their own (with n for ``{}``), or those
    of all experts are one tensor, gate and up in one as well, whose name is whole. The first that
    the checkpoint has counts.
    """

    routers: tuple[str, ...]
    up: tuple[str, ...] = ()
    down: str = ""
    stacks: tuple[tuple[str, str], ...] = ()  # of up and down
    turned: bool = False  # floats of stacks have inputs before outputs
    paired: bool = False  # gate and up alternate among the outputs of stacks
    biased: bool = False  # those of stacks are stacks as well, beside that of the router
    shared_up: tuple[str, ...] = ()
    shared_down: str = ""
    shared_gate: str | None = None
    choice_biases: tuple[str, ...] = ()  # added to scores where experts are chosen; whole names
    factors: tuple[str, ...] = ()  # times the experts' weights; whole names


@dataclass(frozen=True)
class Mixture:
    """The mixture of the layers that have experts."""

    shape: ExpertShape
    names: ExpertNames
    routing: Routing  # but for its bias
    factor: float = 1.0  # of what all experts of a row give together, the shared one among them


@dataclass(frozen=True)
class IndexPlan:
    """What chooses the tokens that one attends to, and the names of its tensors below a layer."""

    shape: IndexShape
    interleaved: bool  # as in ``LatentPlan``
    query: str = "self_attn.indexer.wq_b"
    key: str = "self_attn.indexer.wk"
    norm: str = "self_attn.indexer.k_norm"
    weights: str = "self_attn.indexer.weights_proj"


@dataclass(frozen=True)
class LatentPlan:
    """Attention whose keys and values are made of one vector, and the names of its tensors below a
    layer, without ``.weight``.
    """

    shape: LatentShape
    num_heads: int
    interleaved: bool  # the two numbers that are turned together are side by side
    biased: bool  # what is projected down, and out of the layer
    query: str = "self_attn.q_proj"
    query_down: str = "self_attn.q_a_proj"
    query_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    down: str = "self_attn.kv_a_proj_with_mqa"
    norm: str = "self_attn.kv_a_layernorm"
    up: str = "self_attn.kv_b_proj"
    output: str = "self_attn.o_proj"
    index: IndexPlan | None = None


@dataclass(frozen=True)
class StreamPlan:
    """Layers that see one of several streams, with a residual of low rank beside each attention."""

    count: int
    active: int
    scaled: bool  # what layers are given of a token is of the one, scaled
    cuts: tuple[float | None, ...]  # by layer: of its MLP's ``Activation``


@dataclass(frozen=True)
class NormKind:
    """The facts that all norms of a decoder share."""

    eps: float = 0.0
    centred: bool = False
    weight: bool = True
    bias: bool = False
    around_one: bool = False  # what is stored is the weight less one


@dataclass(frozen=True)
class Heads:
    """The numbers of heads of queries, and of keys and values; how wide keys and values are."""

    num: int
    num_kv: int
    dim: int
    value_dim: int

    @classmethod
    def read(cls, fields: ConfigFields, num: int, num_kv: int, dim: int) -> Heads:
        """ModelError if queries cannot share the others evenly, or no tensor has their rows."""
        if num % num_kv:
            raise ModelError(
                f"{fields.source}: num_attention_heads ({num}) is not a multiple of "
                f"num_key_value_heads ({num_kv})"
            )
        if num * dim > WIDEST:
            raise fields.wrong("num_attention_heads", f"of at most {WIDEST:,} numbers in all", num)
        return cls(num, num_kv, dim, dim)


@dataclass(frozen=True)
class Biases:
    """Which projections have a bias."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False
    head: bool = False


class PartFactors(NamedTuple):
    """Factors of what a layer's parts give, and of what the gates of MLPs are given."""

    state: float = 1.0
    attention: float = 1.0
    mlp: float = 1.0
    gate: float = 1.0


class LearnedPlan(NamedTuple):
    """Positions that have a vector each, and embeddings that may be narrower than layers."""

    offset: int  # the row of position 0
    embedding_size: int
    positions: str = "embed_positions"
    project_in: str = "project_in"
    project_out: str = "project_out"


HeadNorms = Literal["each", "all", "each turned", "bare", "all bare"]
"""Norms of queries and keys: of each head; of all together; of each head after it is turned; of
each head that is turned, without weights, so before or after; of each head, likewise."""

RowOrder = Literal["heads", "pairs", "groups"]
"""How the outputs of q, k and v are stored: in our order; the two dimensions that are turned
together side by side; or head by head, the queries that share a key before it and its value."""


@dataclass(frozen=True)
class Blueprint:
    """The fields of a config.json, their defaults filled in."""

    names: TensorNames
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: Heads
    windows: tuple[int | None, ...]  # by layer
    positions: Positions
    ropes: tuple[RopeConfig, ...]  # none: positions are not rotations
    rope_of: tuple[int | None, ...]  # by layer
    norm: NormKind
    biases: Biases
    activation: str
    gated: bool
    tied_embeddings: bool
    attention_scale: float
    head_norms: HeadNorms | None = None
    value_norms: bool = False  # without weights, of each head
    row_order: RowOrder = "heads"
    mixture: Mixture | None = None
    recurrent: RecurrentPlan | None = None  # the layers with a state
    latent: LatentPlan | None = None  # in place of ``heads``' own keys and values
    by_layer: LayerSizes | None = None  # in place of ``heads`` and ``intermediate_size``
    extended: bool = False  # layers have what ``layer_inputs`` reads
    streams: StreamPlan | None = None
    learned: LearnedPlan | None = None  # positions
    gated_attention: bool = False
    gates_by_head: bool = False  # one for all numbers of a head
    parallel: bool = False
    output_norm: NormKind | None = None  # of what parts give; None: as others
    final_norm: NormKind | None = None  # likewise, of what the head is given
    norms_after: bool = False  # those of a part are after the sum, not before it
    softcap: float | None = None
    sinks_in_windows: bool = False  # layers without a window have no sink logits
    embedding_scale: float = 1.0
    embedding_scale_in_dtype: bool = False  # it is rounded as the embedding is
    embedding_norm: bool = False  # tokens' vectors are normalised, without weights
    residual_scale: float = 1.0
    factors: PartFactors = field(default_factory=PartFactors)
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    guessing_layers: int = 0  # after the others, in the checkpoint; not read

    def heads_of(self, layer: int) -> Heads:
        """The heads of a layer."""
        if self.by_layer is None:
            return self.heads
        sizes = self.by_layer
        return Heads(self.heads.num, sizes.kv_heads[layer], *sizes.widths[layer])

    @property
    def divided(self) -> Divided:
        """What ranks divide among them."""
        inner, mixture = {}, self.mixture
        states: DividedStates | None = None
        heads, has_mlp = self.heads, mixture is None or not all(mixture.shape.layers)
        if self.recurrent is not None:
            shape, states = self.recurrent.shape, self.recurrent.divided(self.hidden_size)
            has_mlp = has_mlp and (not shape.alone or shape.count("mlp") > 0)
            if not shape.count("attention", "both"):
                heads = replace(heads, num=0, num_kv=0)
        if has_mlp:
            inner["intermediate_size"] = self.intermediate_size
        if mixture is not None:
            inner["moe_intermediate_size"] = mixture.shape.inner
            inner["shared_expert_intermediate_size"] = mixture.shape.shared_inner
        num_kv = heads.num_kv if self.latent is None else 1
        others: tuple[int, ...] = ()
        if self.by_layer is not None:
            others = self.by_layer.kv_heads
            inner["hidden_size_per_layer_input"] = self.by_layer.given
            if has_mlp:
                inner["intermediate_size"] = math.gcd(*self.by_layer.inners)
        return Divided(heads.num, num_kv, self.vocab_size, inner, states, others)


@dataclass(frozen=True)
class Family:
    """Architectures with code of their own, whose configs are read in the same way."""

    architectures: tuple[str, ...]
    # Raises ModelError where a field is missing, of the wrong type, or contradicts another.
    read: Callable[[ModelConfig], Blueprint]
    # Fields by architecture that say something which only transformers computes.
    foreign: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def lacks(self, config: ModelConfig) -> str | None:
        """A field that makes this config one for transformers."""
        fields = config.fields
        for name in self.foreign.get(config.architecture, ()):
            if name in fields and fields.values[name] is not False:
                return name
        return None
