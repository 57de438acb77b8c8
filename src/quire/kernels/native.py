"""A decoder's parts as C++ takes them (csrc/python/module.cpp): addresses and numbers.

The caller keeps the tensors alive whose addresses are in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from quire.kernels import _native
from quire.kernels.layer_memory import LayerKV, LayerState, OwnMemory
from quire.kernels.mlps import Activation, DenseMLP, Experts, GivenMLP, Projection, Routing
from quire.kernels.ops import (
    AttentionSpec,
    DecoderStack,
    Laurel,
    MLPWithExperts,
    Norm,
    Norms,
    SelfAttention,
    SelfLatentAttention,
    SelfRecurrence,
)
from quire.kernels.products import PackedWeight
from quire.kernels.recurrence import Recurrence, RecurrentSpec
from quire.kernels.streams import StreamCorrection, StreamPrediction

CODES = {  # DType in C++
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.int8: 3,
    torch.uint8: 4,
}

# Activation in C++.
ACTIVATION_CODES: Mapping[str, int] = {
    "silu": 0,
    "gelu": 1,
    "gelu_new": 2,
    "gelu_pytorch_tanh": 2,
    "relu": 3,
    "clamped_swiglu": 4,
    "relu2": 5,
    "xielu": 6,
}
_NO_LIMIT = 2**30  # a window or a number of sinks larger than any context


def native_attention(
    attention: SelfAttention, kv: LayerKV, dtype: torch.dtype
) -> _native.SelfAttention | None:
    qkv, output = attention.qkv, attention.output
    if not isinstance(qkv, PackedWeight) or not isinstance(output, PackedWeight):
        return None
    return _native.SelfAttention.make(
        qkv.native,
        native_layer(kv, attention.spec, dtype, attention.num_heads),
        output.native,
        _norm_or_none(attention.query_norm),
        _norm_or_none(attention.key_norm),
        -1 if attention.rotation is None else attention.rotation,
        attention.gates,
    )


def native_latents(
    attention: SelfLatentAttention, kv: LayerKV, dtype: torch.dtype
) -> _native.LatentAttention | None:
    inputs, queries, output = attention.inputs, attention.queries, attention.output
    whole = [inputs, output] if queries is None else [inputs, output, queries]
    packed = all(isinstance(one, PackedWeight) for one in (*whole, *attention.keys))
    if attention.indexed or not packed:
        return None
    keys, values = (
        [one.native for one in several if isinstance(one, PackedWeight)]
        for several in (attention.keys, attention.values)
    )
    assert isinstance(inputs, PackedWeight) and isinstance(output, PackedWeight)
    return _native.LatentAttention.make(
        inputs.native,
        _norm_or_none(attention.query_norm),
        queries.native if isinstance(queries, PackedWeight) else None,
        native_norm(attention.latent_norm),
        keys,
        native_layer(kv, attention.spec, dtype, len(keys)),
        values,
        output.native,
        -1 if attention.rotation is None else attention.rotation,
    )


def native_state(mixer: SelfRecurrence, state: LayerState) -> _native.SelfRecurrence | None:
    inputs, output = mixer.inputs, mixer.output
    if not isinstance(inputs, PackedWeight) or not isinstance(output, PackedWeight):
        return None
    widened = [one for one in mixer.widened or () if isinstance(one, PackedWeight)]
    if len(widened) < len(mixer.widened or ()):
        return None
    gates, steps = (one.native for one in widened) if widened else (None, None)
    return _native.SelfRecurrence.make(
        inputs.native,
        native_recurrence(mixer.spec),
        native_memory(state),
        output.native,
        gates,
        steps,
    )


def native_memory(state: LayerState) -> _native.StateMemory:
    rows, own, inputs = ((one.data_ptr(), one.stride(0) if one.numel() else 0) for one in state)
    return _native.StateMemory.make(rows, own, inputs)


def native_mlp(mlp: DenseMLP) -> _native.Mlp | None:
    if not isinstance(mlp.up, PackedWeight) or not isinstance(mlp.down, PackedWeight):
        return None
    return _native.Mlp.make(mlp.up.native, mlp.down.native, *activation_numbers(mlp.activation))


def activation_numbers(activation: Activation) -> tuple[int, bool, float, float, float, float]:
    """An activation as the C++ module takes it."""
    name, gated, factor, alphas, cut = activation
    above, below = alphas or (0.0, 0.0)
    return ACTIVATION_CODES[name], gated, factor, above, below, math.nan if cut is None else cut


def native_given(mlp: GivenMLP) -> _native.GivenMlp | None:
    if not isinstance(mlp.up, PackedWeight) or not isinstance(mlp.down, PackedWeight):
        return None
    activation = ACTIVATION_CODES[mlp.activation]
    return _native.GivenMlp.make(mlp.up.native, mlp.down.native, activation, mlp.first)


def native_laurel(laurel: Laurel) -> _native.Laurel | None:
    left, right = laurel.left, laurel.right
    if not isinstance(left, PackedWeight) or not isinstance(right, PackedWeight):
        return None
    return _native.Laurel.make(left.native, right.native, native_norm(laurel.norm))


def native_streams(mixing: StreamPrediction | StreamCorrection) -> _native.Streams:
    router = mixing.router
    scale = mixing.scale if isinstance(mixing, StreamCorrection) else None
    return _native.Streams.make(
        router.count,
        router.active,
        _floats(router.weight),
        _floats(mixing.coefficients),
        _floats(scale),
        router.eps,
    )


def native_experts(experts: Experts) -> _native.Experts | None:
    """A mixture as C++ sees it; None: a weight is not packed, or experts differ in form."""
    shared = () if experts.shared is None else (experts.shared.up, experts.shared.down)
    weights = (experts.router, *experts.up, *experts.down, *shared)
    packed = [weight for weight in weights if isinstance(weight, PackedWeight)]
    count = len(experts.up)
    if len(packed) < len(weights) or not all(
        PackedWeight.alike(packed[first : first + count]) for first in (1, 1 + count)
    ):
        return None
    router, *rest = (weight.native for weight in packed)
    shared_up, shared_down = rest[2 * count :] or (None, None)
    return _native.Experts.make(
        router,
        rest[:count],
        rest[count : 2 * count],
        ACTIVATION_CODES[experts.activation.name],
        experts.activation.gated,
        native_routing(experts.routing),
        shared_up,
        shared_down,
    )


def native_routing(routing: Routing) -> _native.Routing:
    """The routing of an ``Experts``, which keeps the bias where it is."""
    return _native.Routing.make(
        routing.chosen,
        routing.renormalise,
        routing.sigmoid,
        _floats(routing.bias),
        routing.scale,
        routing.groups,
        routing.groups_chosen,
        routing.best,
        routing.before,
        routing.nearness,
        _floats(routing.factors),
    )


def native_layer(
    kv: LayerKV, spec: AttentionSpec, dtype: torch.dtype, num_heads: int
) -> _native.Layer:
    key_dim, value_dim = kv.dims
    layer = _native.Layer(
        kv.kv_group,
        kv.keys.data_ptr(),
        0 if kv.latent else kv.values.data_ptr(),
        _floats(kv.key_scales, apart=True),
        _floats(kv.key_scales if kv.latent else kv.value_scales, apart=True),
        CODES[kv.keys.dtype],
        CODES[dtype],
        num_heads,
        kv.keys.shape[1],
        kv.block_rows,
        key_dim,
        value_dim,
        spec.scale,
        spec.softcap or 0.0,
        min(spec.window or 0, _NO_LIMIT),
        spec.by_chunks,
        min(spec.sinks, _NO_LIMIT),
        _floats(spec.sink_logits),
        spec.norm_turned,
        _norm_or_none(spec.query_norm),
        _norm_or_none(spec.key_norm),
        _norm_or_none(spec.value_norm),
        spec.shared,
        kv.in_rows,
    )
    if spec.centring is not None and kv.keys.dtype == torch.uint8:
        factors, inverse, common, first, shares, order, cos, sin = spec.centring
        layer.centre(
            _floats(factors),
            _floats(inverse),
            _floats(common),
            _floats(first),
            _floats(shares),
            _address(order),
            _floats(cos),
            _floats(sin),
        )
    return layer


def native_recurrence(spec: RecurrentSpec) -> _native.Recurrence:
    weight, bias = spec.convolution
    native = _native.Recurrence.make(
        _floats(weight), _floats(bias), weight.shape[1], weight.shape[0]
    )
    if isinstance(spec, Recurrence):
        native.set_heads(
            spec.num_heads,
            spec.num_key_heads,
            spec.key_dim,
            spec.value_dim,
            spec.delta,
            spec.by_channel,
            spec.tiled,
            _floats(spec.decay),
            _floats(spec.bias),
            _floats(spec.skip),
            spec.steps.factor,
            spec.steps.least,
            spec.steps.most,
        )
        gate = spec.gate
        norm = _floats(gate.norm)
        native.set_gate(norm, gate.width, gate.eps, gate.factor, gate.first, gate.sigmoid)
    return native


def native_norms(norms: Norms) -> _native.Norms:
    before, output, after = (_norm_or_none(norm) for norm in norms[:3])
    return _native.Norms.make(before, output, after, norms.scale, norms.total)


def _norm_or_none(norm: Norm | None) -> _native.Norm | None:
    return None if norm is None else native_norm(norm)


def native_norm(norm: Norm) -> _native.Norm:
    types = {part.dtype for part in (norm.weight, norm.bias) if part is not None}
    if len(types) > 1:
        raise TypeError(f"a norm's weight and bias are of one type, not {types}")
    return _native.Norm.make(
        _address(norm.weight),
        _address(norm.bias),
        CODES[types.pop()] if types else 0,
        norm.eps,
        norm.centred,
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _floats(tensor: Tensor | None, *, apart: bool = False) -> int:
    """The address of what C++ reads as float32; 0: there is nothing.

    apart: blocks of them may lie apart, as KV groups on one memory have them.
    """
    if tensor is not None:
        if tensor.dtype != torch.float32:
            raise TypeError(f"float32 is needed, not {tensor.dtype}")
        if not apart and not tensor.is_contiguous():
            raise TypeError("numbers side by side are needed")
    return _address(tensor)


Part = (
    SelfAttention
    | SelfLatentAttention
    | SelfRecurrence
    | DenseMLP
    | GivenMLP
    | Laurel
    | Experts
    | MLPWithExperts
)


def native_part(
    part: Part, memory: OwnMemory, dtype: torch.dtype
) -> (
    _native.SelfAttention
    | _native.LatentAttention
    | _native.SelfRecurrence
    | _native.Mlp
    | _native.GivenMlp
    | _native.Laurel
    | _native.Experts
    | None
):
    if isinstance(part, SelfAttention | SelfLatentAttention):
        kv = memory.of(part.source if isinstance(part, SelfAttention) else None)
        assert isinstance(kv, LayerKV)
        if isinstance(part, SelfLatentAttention):
            return native_latents(part, kv, dtype)
        return native_attention(part, kv, dtype)
    if isinstance(part, SelfRecurrence):
        state = memory.of(None)
        assert isinstance(state, LayerState)
        return native_state(part, state)
    if isinstance(part, MLPWithExperts):
        return None
    if isinstance(part, GivenMLP):
        return native_given(part)
    if isinstance(part, Laurel):
        return native_laurel(part)
    return native_experts(part) if isinstance(part, Experts) else native_mlp(part)


def width_of(decoder: DecoderStack) -> int:
    """Of what goes from layer to layer; 0 if its weights are not packed."""
    layer = decoder.layers[0]
    part = layer.mlp if layer.mixer is None else layer.mixer
    if isinstance(part, SelfAttention):
        first: Projection = part.qkv
    elif isinstance(part, SelfLatentAttention | SelfRecurrence):
        first = part.inputs
    elif isinstance(part, DenseMLP | GivenMLP):
        first = part.up
    else:
        assert isinstance(part, Experts), "a layer has a part, and one beside another has a mixer"
        first = part.router
    return first.inputs if isinstance(first, PackedWeight) else 0
