"""What layers of Gemma 3n and 4 have beside others', out of a checkpoint: numbers that all layers
are given of each token, experts beside an MLP, and a factor of all that a layer gives.
"""

from __future__ import annotations

from dataclasses import replace

from quire.kernels.ops import Norm, Norms
from quire.models.blueprint import Blueprint, Mixture
from quire.models.decoder import LayerInputs
from quire.models.dividing import rows_of_parts
from quire.models.experts import read_experts
from quire.models.layers import MLP, Layer, LayerInputMLP, WithExperts
from quire.models.linear import LinearReader
from quire.models.norms import NormReader
from quire.models.streams import among_streams


def read_inputs(
    plan: Blueprint, norms: NormReader, linears: LinearReader, root: str
) -> LayerInputs | None:
    """What all layers are given; None: nothing. The table may be as large as all other weights."""
    sizes = plan.by_layer
    if sizes is None or not sizes.given:
        return None
    layers = len(sizes.sources)
    width, hidden = layers * sizes.given, plan.hidden_size
    projection = linears.floats(f"{root}per_layer_model_projection", hidden, width)
    return LayerInputs(
        table=linears.table(f"{root}embed_tokens_per_layer.weight", sizes.given_vocab, width),
        projection=linears.kept(projection),
        norm=norms.take(f"{root}per_layer_projection_norm", sizes.given),
        scales=(sizes.given**0.5, hidden**-0.5),
        num_tokens=sizes.given_vocab,
        layers=layers,
    )


def finished(
    layer: Layer,
    plan: Blueprint,
    norms: NormReader,
    linears: LinearReader,
    prefix: str,
    index: int,
) -> list[Layer]:
    """A layer with what follows its MLP, as a layer without a mixer."""
    assert plan.by_layer is not None, "only such plans have layers like these"
    width, hidden = plan.by_layer.given, plan.hidden_size
    factor = 1.0
    if plan.streams is None:
        factor = linears.numbers([f"{prefix}.layer_scalar"], 1).item()
    if not width:
        return [replace(layer, mlp_norms=layer.mlp_norms._replace(total=factor))]
    gate, projection = f"{prefix}.per_layer_input_gate", f"{prefix}.per_layer_projection"
    rows, held = rows_of_parts(linears.shard, {"up": width}), linears.shard.run(width)
    given = LayerInputMLP(
        up=linears.joined([gate], hidden, {"up": width}, False, rows).product,
        down=linears.linear(projection, width, hidden, False, linears.shard.columns(width)),
        activation=plan.activation,
        columns=slice(index * width + held.start, index * width + held.stop),
    )
    output = norms.take(f"{prefix}.post_per_layer_input_norm", hidden)
    layers = [layer, Layer(None, Norms(), given, Norms(output=output, total=factor))]
    if plan.streams is None:
        return layers
    return among_streams(layers, plan.streams, plan, norms, linears, prefix)


def beside_experts(
    mlp: MLP,
    plan: Blueprint,
    mixture: Mixture,
    norms: NormReader,
    linears: LinearReader,
    prefix: str,
) -> WithExperts:
    """An MLP with the experts that are beside it."""
    hidden = plan.hidden_size
    scale = norms.weights.take_floats(f"{prefix}.router.scale", hidden) * hidden**-0.5
    return WithExperts(
        mlp=mlp,
        mlp_norms=norms.around(prefix, plan.names.mlp_before, "post_feedforward_layernorm_1"),
        experts=read_experts(plan, mixture, linears, prefix),
        expert_norms=norms.around(
            prefix, "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"
        ),
        router_norm=Norm(hidden, scale, plan.norm.eps),
    )
