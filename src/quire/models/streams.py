"""Layers that see one of several streams (AltUp), with residuals of low rank beside attention
(LAuReL), out of a checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

from quire.kernels.ops import Norms
from quire.kernels.streams import StreamCorrection, StreamPrediction, StreamRouter
from quire.models.blueprint import Blueprint, StreamPlan
from quire.models.decoder import Streams
from quire.models.layers import Layer, LowRank
from quire.models.linear import LinearReader
from quire.models.norms import NormReader


def read_streams(plan: Blueprint, linears: LinearReader, root: str) -> Streams | None:
    """How tokens' vectors become streams, and what comes of these one; None: there are none."""
    if plan.streams is None:
        return None
    hidden, count = plan.hidden_size, plan.streams.count
    apart, together = (
        [f"{root}altup_{name}projections.{n}" for n in range(count - 1)]
        for name in ("", "unembed_")
    )
    parts = dict.fromkeys(apart, hidden)
    return Streams(
        linears.joined(apart, hidden, parts, False).product,
        tuple(linears.linear(name, hidden, hidden, False) for name in together),
    )


def among_streams(
    layers: list[Layer],
    streams: StreamPlan,
    plan: Blueprint,
    norms: NormReader,
    linears: LinearReader,
    prefix: str,
) -> list[Layer]:
    """A layer, and what it makes of what it is given of a token, as they see one stream: attention
    with a residual beside it, the MLP, and what is added to the others.
    """
    whole, given = layers
    assert plan.by_layer is not None, "of such plans alone"
    hidden, rank, count = plan.hidden_size, plan.by_layer.low_rank, streams.count
    low_rank = LowRank(
        linears.linear(f"{prefix}.laurel.linear_left", hidden, rank, False),
        linears.linear(f"{prefix}.laurel.linear_right", rank, hidden, False),
        norms.take(f"{prefix}.laurel.post_laurel_norm", hidden),
    )
    altup, take = f"{prefix}.altup", norms.weights.take_floats
    weight = take(f"{altup}.modality_router.weight", count, hidden)
    weight = weight * take(f"{altup}.router_norm.weight", hidden) / hidden
    router = StreamRouter(weight, plan.norm.eps, streams.active)
    scale, scaled = f"{altup}.correct_output_scale", None
    if streams.scaled:
        scaled = linears.numbers([scale, f"{scale}.weight"], hidden)
    else:
        norms.weights.leave((scale,))
    prediction = take(f"{altup}.prediction_coefs.weight", count * count, count)
    correction = take(f"{altup}.correction_coefs.weight", count, count)
    around = Norms(total=2**-0.5)
    first = Layer(whole.mixer, whole.mixer_norms, low_rank, around, parallel=True)
    return [
        replace(first, streams=StreamPrediction(router, prediction)),
        Layer(None, Norms(), whole.mlp, whole.mlp_norms),
        replace(given, streams=StreamCorrection(router, correction, scaled)),
    ]
