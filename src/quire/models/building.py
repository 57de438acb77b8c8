"""A ``Blueprint`` and a checkpoint become a ``Decoder``."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from quire.core.errors import ModelError
from quire.kernels.layer_memory import KVShape
from quire.kernels.mlps import XIELU, Activation, Alphas, Experts
from quire.kernels.ops import AttentionSpec, Norm, Norms
from quire.models.blueprint import Blueprint, LearnedPlan
from quire.models.decoder import Decoder, LearnedPositions
from quire.models.dividing import rows_of_heads, rows_of_parts
from quire.models.experts import read_experts
from quire.models.latent_attention import LatentAttention
from quire.models.latents import read_latents
from quire.models.layer_inputs import beside_experts, finished, read_inputs
from quire.models.layers import MLP, Attention, Layer, WithExperts
from quire.models.linear import Joined, Linear, LinearReader
from quire.models.norms import NormReader
from quire.models.recurrences import read_recurrent
from quire.models.shape import ChunkLength
from quire.models.streams import read_streams
from quire.models.weights import Weights

_LOG = logging.getLogger(__name__)


def build(plan: Blueprint, weights: Weights, linears: LinearReader) -> Decoder:
    """Read the tensors of a plan; ModelError as ``Weights.take`` raises it."""
    ropes = tuple(rope.build(weights.device) for rope in plan.ropes)  # or no tensor need be read
    names, learned = plan.names, plan.learned
    weights.leave(names.beside)
    roots = [f"{root}." if root else "" for root in names.roots]
    root = next((r for r in roots if _has_layers(weights, f"{r}{names.layers}.")), roots[0])
    _leave_guessing_layers(plan, weights, f"{root}{names.layers}")
    head = next((name for name in names.heads if f"{name}.weight" in weights), names.heads[0])
    embed, logits = linears.embedding_and_head(
        f"{root}{names.embedding}.weight",
        f"{head}.weight",
        (plan.vocab_size, plan.hidden_size if learned is None else learned.embedding_size),
        plan.tied_embeddings,
        f"{head}.bias" if plan.biases.head else None,
    )
    scale = plan.embedding_scale
    if plan.embedding_scale_in_dtype:
        scale = torch.tensor(scale, dtype=weights.dtype).item()
    norms, positions = NormReader(plan, weights, linears.shard), None
    project_in, project_out = None, None
    if learned is not None:
        positions, project_in, project_out = _read_learned(plan, learned, weights, linears, root)
    return Decoder(
        vocab_size=plan.vocab_size,
        dtype=weights.dtype,
        embed=embed,
        layers=tuple(
            layer
            for index in range(len(plan.windows))
            for layer in _read_layer(plan, norms, linears, f"{root}{names.layers}.{index}", index)
        ),
        embedding_norm=Norm(plan.hidden_size, None, plan.norm.eps) if plan.embedding_norm else None,
        final_norm=None
        if names.final_norm is None
        else norms.take(f"{root}{names.final_norm}", plan.hidden_size, kind=plan.final_norm),
        head=logits,
        positions=positions,
        project_in=project_in,
        project_out=project_out,
        ropes=ropes,
        embedding_scale=scale,
        embedding_scaled=plan.embedding_scale_in_dtype,
        logits_scale=plan.logits_scale,
        logits_softcap=plan.logits_softcap,
        inputs=read_inputs(plan, norms, linears, root),
        streams=read_streams(plan, linears, root),
    )


def _read_learned(
    plan: Blueprint, learned: LearnedPlan, weights: Weights, linears: LinearReader, root: str
) -> tuple[LearnedPositions, Linear | None, Linear | None]:
    """The vectors of positions, and what widens embeddings and narrows what the head is given."""
    narrow, wide = learned.embedding_size, plan.hidden_size
    rows = plan.positions.default + learned.offset
    table = weights.take(f"{root}{learned.positions}.weight", rows, wide)
    positions = LearnedPositions(table, learned.offset)
    if narrow == wide:
        return positions, None, None
    project_in = linears.linear(f"{root}{learned.project_in}", narrow, wide, False)
    return (
        positions,
        project_in,
        linears.linear(f"{root}{learned.project_out}", wide, narrow, False),
    )


def _leave_guessing_layers(plan: Blueprint, weights: Weights, layers: str) -> None:
    """Leave unread the layers for multi-token prediction, as far as files have them."""
    there = {
        name.removeprefix(f"{layers}.").partition(".")[0]
        for name in weights
        if name.startswith(f"{layers}.")
    }
    first = len(plan.windows)
    asked = map(str, range(first, first + min(plan.guessing_layers, len(there))))
    beginnings = tuple(f"{layers}.{number}." for number in asked if number in there)
    if beginnings:
        _LOG.warning("layers that guess further tokens are not read: %s", ", ".join(beginnings))
        weights.leave(beginnings)


def _has_layers(weights: Weights, beginning: str) -> bool:
    return any(name.startswith(beginning) for name in weights)


def _read_layer(
    plan: Blueprint, norms: NormReader, linears: LinearReader, prefix: str, index: int
) -> list[Layer]:
    """The layer ``prefix``; as two where it has two mixers beside each other, before its MLP."""
    names, recurrent, factors = plan.names, plan.recurrent, plan.factors
    part = "attention" if recurrent is None else recurrent.shape.parts[index]
    attention = state = None
    if recurrent is not None and part in ("state", "both"):
        state = read_recurrent(recurrent, plan.hidden_size, norms.weights, linears, prefix)
    if part in ("attention", "both"):
        attention = _read_attention(plan, norms, linears, prefix, index)
    around = Norms()
    if part != "mlp":
        factor = factors.attention if state is None else factors.state
        around = norms.around(prefix, names.attention_before, names.attention_output, factor)
    mlp, around_mlp = None, Norms()
    if recurrent is None or not recurrent.shape.alone or part == "mlp":
        mlp = _read_mlp(plan, norms, linears, prefix, index)
        before = None if isinstance(mlp, WithExperts) else names.mlp_before
        factor, mixture = factors.mlp, plan.mixture
        if mixture is not None and mixture.shape.layers[index]:
            factor *= mixture.factor
        around_mlp = norms.around(prefix, before, names.mlp_output, factor)
    if state is not None and isinstance(attention, Attention):
        beside = Layer(state, around, attention, Norms(scale=factors.attention), parallel=True)
        return [beside, Layer(None, Norms(), mlp, around_mlp)]
    layer = Layer(state or attention, around, mlp, around_mlp, plan.parallel)
    if plan.extended:
        return finished(layer, plan, norms, linears, prefix, index)
    return [layer]


def _read_attention(
    plan: Blueprint, norms: NormReader, linears: LinearReader, prefix: str, index: int
) -> Attention | LatentAttention:
    heads, source, shared = plan.heads_of(index), None, False
    if plan.latent is not None:
        spec = AttentionSpec(plan.attention_scale, plan.windows[index])
        weights, rope, hidden = norms.weights, plan.rope_of[index], plan.hidden_size
        return read_latents(plan.latent, hidden, spec, weights, linears, prefix, rope, index)
    if plan.by_layer is not None:
        sources = plan.by_layer.sources
        source = None if sources[index] == index else sources[index]
        shared = sources.count(sources[index]) > 1
    if source is not None:  # some savers keep tensors that nothing is made of
        unused = ("k_proj", "v_proj", "k_norm", "v_norm")
        norms.weights.leave(tuple(f"{prefix}.self_attn.{name}." for name in unused))
    query_norm, key_norm = norms.of_each_head(prefix, index, keys=source is None)
    all_queries_norm, all_keys_norm = norms.of_all_heads(prefix)
    return Attention(
        qkv=_read_qkv(plan, linears, prefix, index),
        output=linears.linear(
            f"{prefix}.{plan.names.output}",
            heads.num * heads.value_dim,
            plan.hidden_size,
            plan.biases.output,
            linears.shard.columns(heads.num, heads.value_dim),
        ),
        kv=KVShape(len(linears.shard.kv_heads(heads.num_kv)), heads.dim, heads.value_dim),
        spec=AttentionSpec(
            scale=plan.attention_scale,
            window=plan.windows[index],
            by_chunks=isinstance(plan.windows[index], ChunkLength),
            softcap=plan.softcap,
            sink_logits=norms.sink_logits(prefix, index),
            query_norm=query_norm,
            key_norm=key_norm,
            norm_turned=plan.head_norms == "each turned",
            value_norm=Norm(heads.value_dim, None, plan.norm.eps) if plan.value_norms else None,
            shared=shared,
        ),
        rope=plan.rope_of[index],
        query_norm=all_queries_norm,
        key_norm=all_keys_norm,
        source=source,
    )


def _read_qkv(plan: Blueprint, linears: LinearReader, prefix: str, index: int) -> Joined:
    heads, sizes = plan.heads_of(index), plan.by_layer
    query, key = heads.num * heads.dim, heads.num_kv * heads.dim
    names = [f"{prefix}.{name}" for name in plan.names.qkv]
    parts = {"q": query, "k": key, "v": heads.num_kv * heads.value_dim}
    if plan.gated_attention:
        gates = heads.num if plan.gates_by_head else query
        if plan.names.gate is None:  # of each head the query, then the gate
            parts["q"] *= 2
            both, others = torch.arange(sum(parts.values())).tensor_split([2 * query])
            of_queries, of_gates = both.view(heads.num, 2, heads.dim).transpose(0, 1).flatten(1)
        else:
            names.insert(1, f"{prefix}.{plan.names.gate}")
            parts = {"q": query, "gate": gates, "k": key, "v": key}
            stored = torch.arange(sum(parts.values()))
            of_queries, of_gates, others = stored.tensor_split([query, query + gates])
        own = rows_of_heads(linears.shard, heads, torch.cat([of_queries, others]))
        assert own is not None, "of an order that is given"
        run = linears.shard.run(heads.num)
        gate = of_gates.view(heads.num, -1)[run.start : run.stop].flatten()
        held = {"q": own["q"], "gate": gate, "k": own["k"], "v": own["v"]}
        return linears.joined(names, plan.hidden_size, parts, plan.biases.qkv, held)
    rows = rows_of_heads(linears.shard, heads, _stored_order(plan))
    if sizes is not None:  # queries, perhaps keys, perhaps values
        count = 1 if sizes.sources[index] != index else 3 - sizes.keys_are_values[index]
        names, parts = names[:count], {name: parts[name] for name in "qkv"[:count]}
        rows = None if rows is None else {name: rows[name] for name in parts}
    return linears.joined(names, plan.hidden_size, parts, plan.biases.qkv, rows)


def _read_mlp(
    plan: Blueprint, norms: NormReader, linears: LinearReader, prefix: str, index: int
) -> MLP | Experts | WithExperts:
    mixture = plan.mixture
    if mixture is not None and not mixture.shape.layers[index]:
        mixture = None
    if mixture is not None and not plan.extended:
        return read_experts(plan, mixture, linears, prefix)
    inner, hidden, bias = plan.intermediate_size, plan.hidden_size, plan.biases.mlp
    if plan.by_layer is not None:
        inner = plan.by_layer.inners[index]
    parts = {"gate": inner, "up": inner} if plan.gated else {"up": inner}
    names = [f"{prefix}.{name}" for name in plan.names.up]
    mlp = MLP(
        up=linears.joined(names, hidden, parts, bias, rows_of_parts(linears.shard, parts)),
        down=linears.linear(
            f"{prefix}.{plan.names.down}", inner, hidden, bias, linears.shard.columns(inner)
        ),
        activation=Activation(
            plan.activation,
            plan.gated,
            plan.factors.gate,
            _read_alphas(norms.weights, prefix) if plan.activation == XIELU else None,
            None if plan.streams is None else plan.streams.cuts[index],
        ),
    )
    if mixture is None:
        return mlp
    return beside_experts(mlp, plan, mixture, norms, linears, prefix)


def _read_alphas(weights: Weights, prefix: str) -> Alphas:
    """ModelError if its constants are not those that everyone has."""

    def number(name: str) -> Tensor:
        name = f"{prefix}.mlp.act_fn.{name}"
        found = weights.take_floats(name, *(weights.shape(name) or ()))
        if found.numel() != 1:
            raise ModelError(f"{name} has {found.numel():,} numbers; it must have one")
        return found.view(())

    for constant, value in (("beta", 0.5), ("eps", -1e-6)):
        name = f"{prefix}.mlp.act_fn.{constant}"
        # float16's nearest is 1.4 % beside the second
        if name in weights and not math.isclose(number(constant), value, rel_tol=0.02):
            raise ModelError(f"{name} is {number(constant):g}; supported: {value:g}")
    above, below = (softplus(number(f"alpha_{sign}")).item() for sign in "pn")
    return Alphas(above, 0.5 + below)


def _stored_order(plan: Blueprint) -> Tensor | None:
    """The stored row of each row of q, k and v; None: they are stored in our order."""
    heads = plan.heads
    rows = torch.arange((heads.num + 2 * heads.num_kv) * heads.dim)
    if plan.row_order == "groups":
        queries, key, value = rows.view(heads.num_kv, -1, heads.dim).tensor_split([-2, -1], dim=1)
        return torch.cat([queries.flatten(), key.flatten(), value.flatten()])
    if plan.row_order == "pairs":
        by_head, rotated = rows.view(-1, heads.dim), plan.ropes[0].rotated
        turned = by_head[:, :rotated]
        apart = torch.cat([turned[:, ::2], turned[:, 1::2], by_head[:, rotated:]], dim=1)
        turns = heads.num + heads.num_kv
        return torch.cat([apart[:turns].flatten(), by_head[turns:].flatten()])
    return None
