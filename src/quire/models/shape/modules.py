"""The modules of a decoder that hold weights, by the names that checkpoints have for them, and in
which form a rounded checkpoint has each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from quire.core.errors import ModelError
from quire.models.shape.by_layer import LayerSizes
from quire.models.shape.fields import ConfigFields
from quire.models.shape.model_shape import ModelShape, WeightForm
from quire.models.shape.planned import EXPERTS, PARTS, Rounding, read_planned
from quire.models.shape.stored import Scheme, read_stored

_BEFORE = ("model", "language_model.model", "model.language_model", "backbone")
"""What stands before the layers: the second and third where the decoder is part of a larger model,
the last in Nemotron's."""

_ATTENTION = ("self_attn", "mixer")
_MLP = ("mlp", "feed_forward", "block_sparse_moe", "mixer")
_STATES = ("linear_attn", "mamba", "mixer", "conv")
_OF_STATES = ("in_proj", "in_proj_qkvz", "in_proj_qkv")
_SHARED = ("shared_experts", "shared_expert", "shared_mlp")
_PROJECTIONS = {
    "gate_proj": ("gate_proj", "w1", "gate_up_proj"),
    "up_proj": ("up_proj", "w3", "gate_up_proj"),
    "down_proj": ("down_proj", "w2"),
}


class Module(NamedTuple):
    """A matrix, or those of all experts of a layer. names: all that it may be called."""

    part: str  # of PARTS
    inputs: int
    outputs: int
    names: tuple[str, ...]
    copies: int = 1  # one for each expert

    @property
    def params(self) -> int:
        return self.inputs * self.outputs * self.copies


def stored_forms(section: ConfigFields, shape: ModelShape) -> tuple[WeightForm, WeightForm | None]:
    """The form that ``quantization_config`` gives a model's weights, as it is stored and as Quire
    keeps it; None: Quire does not read it.

    ModelError: it is not understood.
    """
    rounding, plain = read_planned(section), shape.weight_form
    stored = _averages(rounding, shape, lambda scheme: (scheme.bytes_stored, scheme.products))
    try:
        read_stored(section)
    except ModelError:
        return stored, None
    size = int(plain.head)

    def kept(scheme: Scheme) -> tuple[float, str]:
        return scheme.bytes_kept(size), "int8" if scheme.rounds_rows else ""

    ours = _averages(rounding, shape, kept)
    if replace(ours, name=plain.name) == plain:
        ours = replace(ours, name=f"{plain.name}, from {rounding.name}")
    return stored, ours


def _averages(
    rounding: Rounding, shape: ModelShape, form_of: Callable[[Scheme], tuple[float, str]]
) -> WeightForm:
    """The mean bytes of a weight in each part, and the type of most weights' products."""
    size = shape.weight_form.head
    params, taken, products = Counter[str](), defaultdict[str, float](float), Counter[str]()
    for module in modules_of(shape):
        part, scheme = module.part, None
        if rounding.parts is None or part in rounding.parts:
            scheme = rounding.scheme_of(module.names)
        each, product = (size, "") if scheme is None else form_of(scheme)
        params[part] += module.params
        taken[part] += module.params * each
        products[product] += module.params
    attention, mlp, experts, head = (
        taken[part] / params[part] if params[part] else size for part in PARTS
    )
    most = products.most_common(1)[0][0]
    return WeightForm(rounding.name, attention, mlp, experts, head, most)


def modules_of(shape: ModelShape) -> Iterator[Module]:
    """The matrices of each layer that may be stored rounded, then the head.

    Routers, norms and embeddings are not among them: nobody rounds those.
    """
    experts, states = shape.experts, shape.recurrence
    for layer in range(shape.num_layers):
        part = "attention" if states is None else states.parts[layer]
        if part in ("attention", "both"):
            for name, inputs, outputs in _attention(shape, layer):
                yield Module("attention", inputs, outputs, _names(layer, _ATTENTION, (name,)))
        if states is not None and part in ("state", "both"):
            outputs = states.params(shape.hidden_size) // shape.hidden_size  # of all its matrices
            names = _names(layer, _STATES, _OF_STATES)
            yield Module("attention", shape.hidden_size, outputs, names)
        if states is not None and states.alone and part != "mlp":
            continue
        inner = shape.intermediate_size
        if shape.by_layer is not None:
            inner = shape.by_layer.inners[layer]
            yield from _beside(shape, shape.by_layer, layer)
        if experts is None or not experts.layers[layer]:
            yield from _mlp(shape, "mlp", inner, layer, _MLP)
            continue
        if experts.shared_inner:
            outer = tuple(f"{mlp}.{name}" for mlp in _MLP for name in _SHARED)
            yield from _mlp(shape, "mlp", experts.shared_inner, layer, outer)
        outer = tuple(f"{mlp}.experts.0" for mlp in _MLP)
        for module in _mlp(shape, EXPERTS, experts.inner, layer, outer):
            yield module._replace(copies=experts.count)
    head = ("lm_head", "language_model.lm_head")
    yield Module("head", shape.hidden_size, shape.vocab_size, head)


def _attention(shape: ModelShape, layer: int) -> Iterator[tuple[str, int, int]]:
    """Names, inputs and outputs."""
    hidden, heads, latent = shape.hidden_size, shape.num_heads, shape.latent
    kv_heads, width, sizes = shape.num_kv_heads, shape.head_size, shape.by_layer
    value = width
    if latent is None:
        keys = values = True
        if sizes is not None:
            kv_heads, keys = sizes.kv_heads[layer], sizes.keeping[layer]
            width, value = sizes.widths[layer]
            values = keys and not sizes.keys_are_values[layer]
        for name, outputs in (
            ("q", heads * width),
            ("k", keys * kv_heads * width),
            ("v", values * kv_heads * value),
        ):
            if outputs:
                yield f"{name}_proj", hidden, outputs
        yield "o_proj", heads * value, hidden
        return
    queries = heads * (latent.nope + latent.rope)
    if latent.query_rank is None:
        yield "q_proj", hidden, queries
    else:
        yield "q_a_proj", hidden, latent.query_rank
        yield "q_b_proj", latent.query_rank, queries
    yield "kv_a_proj_with_mqa", hidden, latent.width
    yield "kv_b_proj", latent.kv_rank, heads * (latent.nope + latent.value)
    yield "o_proj", heads * latent.value, hidden
    if shape.index is not None and shape.index.layers[layer]:
        queries = shape.index.heads * shape.index.width
        yield "indexer.wq_b", latent.query_rank or hidden, queries
        yield "indexer.wk", hidden, shape.index.width


def _beside(shape: ModelShape, sizes: LayerSizes, layer: int) -> Iterator[Module]:
    """What a layer makes of what it is given of each token, and what is beside attention."""
    for inner, first, second in (
        (sizes.given, "per_layer_input_gate", "per_layer_projection"),
        (sizes.low_rank, "laurel.linear_left", "laurel.linear_right"),
    ):
        for name, inputs, outputs in (
            (first, shape.hidden_size, inner),
            (second, inner, shape.hidden_size),
        ):
            if inner:
                names = tuple(f"{before}.layers.{layer}.{name}" for before in _BEFORE)
                yield Module("mlp", inputs, outputs, names)


def _mlp(
    shape: ModelShape, part: str, inner: int, layer: int, outer: tuple[str, ...]
) -> Iterator[Module]:
    for name, called in _PROJECTIONS.items():
        if name != "gate_proj" or shape.gated_mlp:
            sizes = (
                (shape.hidden_size, inner) if name != "down_proj" else (inner, shape.hidden_size)
            )
            yield Module(part, *sizes, _names(layer, outer, called))


def _names(layer: int, outer: tuple[str, ...], called: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        f"{before}.layers.{layer}.{one}.{name}"
        for before in _BEFORE
        for one in outer
        for name in called
    )
