"""A decoder's layers as data, and the way through them operation by operation.

Shapes use T, the new tokens of a step over all its sequences, and d, the width of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.kernels.adapters import AdaptedRows, Site
from quire.kernels.layer_memory import (
    KVShape,
    LayerKV,
    LayerMemory,
    LayerState,
    OwnMemory,
    StateShape,
)
from quire.kernels.mlps import Activation, DenseMLP, Experts, GivenMLP
from quire.kernels.ops import (
    AttentionSpec,
    DecoderLayer,
    Kernels,
    Laurel,
    MLPWithExperts,
    Norm,
    Norms,
    Rotation,
    SelfAttention,
    SelfRecurrence,
)
from quire.kernels.ranks import Ranks
from quire.kernels.recurrence import RecurrentSpec
from quire.kernels.streams import StreamCorrection, StreamPrediction
from quire.models.latent_attention import LatentAttention, LayerPlans
from quire.models.linear import Joined, Linear


@dataclass(frozen=True)
class Attention:
    """Over all that a sequence has kept, with the projections around it."""

    qkv: Joined
    output: Linear
    kv: KVShape
    spec: AttentionSpec
    rope: int | None = None  # which of the decoder's; None: it knows no positions
    query_norm: Norm | None = None  # of all heads together; of each alone as ``spec`` says
    key_norm: Norm | None = None
    source: int | None = None  # the layer whose keys and values it attends to; see SelfAttention

    @property
    def num_heads(self) -> int:
        """Number of query heads."""
        return self.qkv.parts["q"] // self.kv.key_dim

    @property
    def gates(self) -> int:
        """The gates of its output; see ``SelfAttention``."""
        return self.qkv.parts.get("gate", 0)

    @property
    def kept(self) -> KVShape:
        """What it keeps of each token."""
        return self.kv

    def fusable(self) -> SelfAttention:
        """The same for kernels that run layers whole."""
        return SelfAttention(
            qkv=self.qkv.product,
            output=self.output,
            num_heads=self.num_heads,
            spec=self.spec,
            rotation=self.rope,
            query_norm=self.query_norm,
            key_norm=self.key_norm,
            gates=self.gates,
            source=self.source,
        )


@dataclass(frozen=True)
class Recurrent:
    """A layer with a state that every token rewrites, and the projections around it."""

    inputs: Joined
    output: Linear
    spec: RecurrentSpec
    widened: tuple[Linear, Linear] | None = None  # makes gates and steps of fewer numbers

    @property
    def kept(self) -> StateShape:
        """What it keeps of each sequence."""
        return StateShape(self.spec.convolution.kept, self.spec.state, self.spec.columns)

    def fusable(self) -> SelfRecurrence:
        return SelfRecurrence(self.inputs.product, self.output, self.spec, self.widened)

    def taken(self, x: Tensor) -> Tensor:
        """What ``inputs`` gave [T, ...] -> [T, columns], for ``spec``."""
        if self.widened is None:
            return x
        gates, steps = self.widened
        mixed, strengths, of_steps, of_gates = self.inputs.split(x)
        return torch.cat((mixed, gates(of_gates), strengths, steps(of_steps)), 1)


Mixer = Attention | LatentAttention | Recurrent
_MIXER, _SECOND = (Site.qkv, Site.output), (Site.up, Site.down)  # products of a layer's parts


@dataclass(frozen=True)
class MLP:
    """down(activation(up(x))); with a gate, down(activation(gate(x)) * up(x))."""

    up: Joined  # the gate, if there is one, and what it multiplies
    down: Linear
    activation: Activation

    def fusable(self) -> DenseMLP:
        return DenseMLP(self.up.product, self.down, self.activation)


@dataclass(frozen=True)
class LayerInputMLP:
    """down(activation(up(x)) * given); see ``GivenMLP``."""

    up: Linear
    down: Linear
    activation: str
    columns: slice  # of what all layers are given

    def fusable(self) -> GivenMLP:
        return GivenMLP(self.up, self.down, self.activation, self.columns.start)


@dataclass(frozen=True)
class LowRank:
    """x + norm(right(left(x))); see ``Laurel``."""

    left: Linear
    right: Linear
    norm: Norm

    def fusable(self) -> Laurel:
        return Laurel(self.left, self.right, self.norm)


@dataclass(frozen=True, eq=False)
class WithExperts:
    """An MLP and experts beside each other; see ``MLPWithExperts``."""

    mlp: MLP
    mlp_norms: Norms
    experts: Experts
    expert_norms: Norms
    router_norm: Norm

    def fusable(self) -> MLPWithExperts:
        own, experts = self.mlp.fusable(), self.experts
        return MLPWithExperts(own, self.mlp_norms, experts, self.expert_norms, self.router_norm)


@dataclass(frozen=True)
class Layer:
    """What mixes tokens, then an MLP; see ``DecoderLayer``."""

    mixer: Mixer | None
    mixer_norms: Norms
    mlp: MLP | LayerInputMLP | LowRank | Experts | WithExperts | Attention | None
    mlp_norms: Norms
    parallel: bool = False
    streams: StreamPrediction | StreamCorrection | None = None

    @property
    def mixers(self) -> list[Mixer]:
        """What keeps something of the tokens, in the order of ``Model.kv_shapes``."""
        parts = [part for part in (self.mixer, self.mlp) if isinstance(part, Mixer)]
        return [one for one in parts if not isinstance(one, Attention) or one.source is None]

    @property
    def before(self) -> Norm | None:
        """The norm of what comes into the layer."""
        return (self.mlp_norms if self.mixer is None else self.mixer_norms).before

    def fusable(self) -> DecoderLayer:
        mlp = self.mlp
        return DecoderLayer(
            mixer=None if self.mixer is None else self.mixer.fusable(),
            mixer_norms=self.mixer_norms,
            mlp=mlp if mlp is None or isinstance(mlp, Experts) else mlp.fusable(),
            mlp_norms=self.mlp_norms,
            parallel=self.parallel,
            streams=self.streams,
        )


class Multiplying(NamedTuple):
    """Products of one layer, with what adapters of a step's rows and other ranks add to them."""

    kernels: Kernels
    adapted: Sequence[AdaptedRows]
    ranks: Ranks | None
    layer: int

    def product(self, site: Site, projection: Linear, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        out = projection(x)
        if self.adapted:
            self.kernels.adapt(self.adapted, self.layer, site, x, out)
        return out

    def total(self, site: Site, projection: Linear, x: Tensor) -> Tensor:
        """The same of a projection whose inputs are divided among ranks."""
        return self._added_up(self.product(site, projection, x))

    def mixed(self, x: Tensor, experts: Experts, routed: Tensor | None = None) -> Tensor:
        """x [T, d] through the experts of each row -> [T, d]; see ``Kernels.mix``."""
        return self._added_up(self.kernels.mix(x, experts, routed))

    def activated(self, up: Tensor, activation: Activation) -> Tensor:
        """Numbers of MLPs inside; what is cut from them hangs on those of all ranks."""
        if activation.cut is None or self.ranks is None:
            return self.kernels.activate(up, activation)
        first = up.chunk(2, 1)[0] if activation.gated else up
        wide, count = first.float(), first.shape[1] * self.ranks.size
        mean = self._added_up(wide.sum(1, keepdim=True)) / count
        squares = self._added_up((wide - mean).square().sum(1, keepdim=True))
        first.copy_(torch.relu(wide - mean - (squares / count).sqrt() * activation.cut))
        return self.kernels.activate(up, activation._replace(cut=None))

    def _added_up(self, part: Tensor) -> Tensor:
        if self.ranks is not None:
            self.ranks.add_up(part)
        return part

    def normed(self, attention: Attention, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, normalised over all heads together."""
        norms = attention.query_norm, attention.key_norm
        if self.ranks is not None and norms[0] is not None and norms[1] is not None:
            return _norm_over(self.ranks, (query, norms[0]), (key, norms[1]))
        return _given(query, norms[0], self.kernels), _given(key, norms[1], self.kernels)


def run_layers(
    layers: Sequence[Layer],
    final_norm: Norm | None,
    x: Tensor,
    kv: Sequence[LayerMemory],
    kernels: Kernels,
    plan: Any,
    rotations: Sequence[Rotation],
    adapted: Sequence[AdaptedRows] = (),
    ranks: Ranks | None = None,
    given: Tensor | None = None,
) -> Tensor:
    """x [T, d], which is used up -> [T, d], operation by operation; both [T, n, d] of n streams.

    given: what layers are given of each token.
    """
    memory, plans, h, streams = OwnMemory(kv), LayerPlans(plan), x, x
    next_norms = [
        *(None if layer.streams is not None else layer.before for layer in layers[1:]),
        final_norm,
    ]
    for number, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
        multiplying = Multiplying(kernels, adapted, ranks, number)
        around, mlp = layer.mlp_norms, layer.mlp
        if isinstance(layer.streams, StreamPrediction):
            x = kernels.predict(streams, layer.streams)
        elif layer.streams is not None:
            x = kernels.correct(streams, x, layer.streams)
        if number == 0 or layer.streams is not None:
            h = _given(x, layer.before, kernels)
        if layer.mixer is not None:
            before = next_norm if mlp is None else around.before
            delta = _mix(layer.mixer, h, memory, plans, rotations, multiplying, _MIXER)
            if layer.parallel:
                h = h if before is None else kernels.norm(x, before)  # x as the mixer had it
                x, _ = _add(x, delta, layer.mixer_norms, None, kernels)
            else:
                x, h = _add(x, delta, layer.mixer_norms, before, kernels)
        if mlp is not None:
            if isinstance(mlp, Attention):
                delta = _mix(mlp, h, memory, plans, rotations, multiplying, _SECOND)
            else:
                delta = _go_through(mlp, h, multiplying, given)
            if isinstance(layer.streams, StreamCorrection):
                h = streams
                h[:, 1:] += _given(delta, around.output, kernels)[:, None]
            else:
                x, h = _add(x, delta, around, next_norm, kernels)
    return h


def _given(x: Tensor, before: Norm | None, kernels: Kernels) -> Tensor:
    return x if before is None else kernels.norm(x, before)


def _add(
    x: Tensor, delta: Tensor, norms: Norms, before: Norm | None, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """The new x [T, d], in place of the old, and the next part's input, made from it."""
    if norms.output is not None:
        delta = kernels.norm(delta, norms.output)
    if norms.scale != 1.0:
        delta = delta * norms.scale
    if norms.after is not None:
        x = kernels.add_norm(x, delta, norms.after)
        return x, _given(x, before, kernels)
    if before is not None and norms.total == 1.0:
        return x, kernels.add_norm(x, delta, before)
    x = x.add_(delta)
    if norms.total != 1.0:
        x = x.mul_(norms.total)
    return x, _given(x, before, kernels)


def _go_through(
    mlp: MLP | LayerInputMLP | LowRank | Experts | WithExperts,
    h: Tensor,
    multiplying: Multiplying,
    given: Tensor | None,
) -> Tensor:
    """h [T, d] -> [T, d]."""
    kernels = multiplying.kernels
    if isinstance(mlp, Experts):
        return multiplying.mixed(h, mlp)
    if isinstance(mlp, WithExperts):
        own, routed = (_given(h, norm, kernels) for norm in (mlp.mlp_norms.before, mlp.router_norm))
        own = _go_through(mlp.mlp, own, multiplying, None)
        mixed = multiplying.mixed(_given(h, mlp.expert_norms.before, kernels), mlp.experts, routed)
        return _given(own, mlp.mlp_norms.output, kernels).add_(
            _given(mixed, mlp.expert_norms.output, kernels)
        )
    if isinstance(mlp, LayerInputMLP):
        assert given is not None, "a decoder with such layers gives it"
        up = multiplying.product(Site.up, mlp.up, h)
        inner = kernels.activate(up, Activation(mlp.activation)) * given[:, mlp.columns]
        return multiplying.total(Site.down, mlp.down, inner)
    if isinstance(mlp, LowRank):
        left = multiplying.product(Site.up, mlp.left, h)
        return kernels.norm(multiplying.product(Site.down, mlp.right, left), mlp.norm).add_(h)
    up = multiplying.product(Site.up, mlp.up.product, h)
    inner = multiplying.activated(up, mlp.activation)
    return multiplying.total(Site.down, mlp.down, inner)


def _mix(
    mixer: Mixer,
    h: Tensor,
    own: OwnMemory,
    plans: LayerPlans,
    rotations: Sequence[Rotation],
    multiplying: Multiplying,
    sites: tuple[Site, Site],
) -> Tensor:
    """h [T, d] -> [T, d]. sites: of its products."""
    memory = own.of(mixer.source if isinstance(mixer, Attention) else None)
    if isinstance(mixer, Attention):
        assert isinstance(memory, LayerKV)
        return _attend(mixer, h, memory, plans.step, rotations, multiplying, sites)
    x = multiplying.product(sites[0], mixer.inputs.product, h)
    if isinstance(mixer, LatentAttention):
        assert isinstance(memory, LayerKV)
        found = mixer.attend(h, x, memory, multiplying.kernels, plans, rotations)
    else:
        assert isinstance(memory, LayerState)
        found = multiplying.kernels.recur(mixer.taken(x), memory, mixer.spec, plans.step)
    return multiplying.total(sites[1], mixer.output, found)


def _attend(
    attention: Attention,
    h: Tensor,
    kv: LayerKV,
    plan: Any,
    rotations: Sequence[Rotation],
    multiplying: Multiplying,
    sites: tuple[Site, Site],
) -> Tensor:
    joined = multiplying.product(sites[0], attention.qkv.product, h)
    parts = dict(zip(attention.qkv.parts, attention.qkv.split(joined), strict=True))
    query, key = parts["q"], parts.get("k")
    value, gate = parts.get("v", key), parts.get("gate")
    if key is not None:
        query, key = multiplying.normed(attention, query, key)
    rows, (kv_heads, key_dim, value_dim, *_) = len(h), attention.kv
    attended = multiplying.kernels.attend(
        query.view(rows, attention.num_heads, key_dim),
        None if key is None else key.view(rows, kv_heads, key_dim),
        None if value is None else value.view(rows, kv_heads, value_dim),
        kv,
        attention.spec,
        plan,
        None if attention.rope is None else rotations[attention.rope],
    ).flatten(1)
    if gate is not None:
        multiplying.kernels.gate(attended, gate)
    return multiplying.total(sites[1], attention.output, attended)


def _norm_over(
    ranks: Ranks, query: tuple[Tensor, Norm], key: tuple[Tensor, Norm]
) -> tuple[Tensor, Tensor]:
    """Root mean squares over the heads of all ranks; heads that several have count as often."""
    squares = torch.stack([x.float().square().sum(dim=1) for x, _ in (query, key)])
    ranks.add_up(squares)
    normed = []
    for (x, norm), total in zip((query, key), squares, strict=True):
        assert norm.weight is not None and not norm.centred, "no family has others"
        scale = torch.rsqrt(total / (norm.width * ranks.size) + norm.eps)
        normed.append((x.float() * scale[:, None] * norm.weight.float()).to(x.dtype))
    return normed[0], normed[1]
