"""What of a decoder adapters can change, by the names of modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from quire.kernels.adapters import Site
from quire.models.base import Model
from quire.models.decoder import DecoderModel
from quire.models.layers import MLP, Attention, Layer, LayerInputMLP, LowRank, WithExperts
from quire.models.linear import Linear
from quire.models.parts import WHOLE, TensorPart, count_of
from quire.models.transformers_model import TransformersModel


class Adaptable(NamedTuple):
    """A projection of the checkpoint, and where it is among the products."""

    layer: int
    site: Site
    first: int  # of its outputs among the product's
    inputs: int
    outputs: int
    product: Linear
    dtype: torch.dtype  # of the product's x
    part: TensorPart = WHOLE  # of outputs and inputs, those that the product has, in its order

    @property
    def held(self) -> tuple[int, int]:
        """Outputs and inputs of the part."""
        rows, columns = self.part.rows, self.part.columns
        return count_of(rows, self.outputs), count_of(columns, self.inputs)


def adaptable(model: Model) -> dict[str, Adaptable]:
    """The products that adapters can change, by module; none of a model that PyTorch multiplies."""
    if isinstance(model, TransformersModel):
        return dict(_joined(model))
    assert isinstance(model, DecoderModel), "there is no third"
    found = {}
    for number, layer in enumerate(model.decoder.layers):
        for site, product in products(layer):
            named = model.named.get(id(product))
            if named is None:
                continue
            first = 0
            for name, outputs, rows in named.parts:
                part = TensorPart(rows, named.columns)
                sizes = first, named.inputs, outputs
                found[name] = Adaptable(number, site, *sizes, product, model.dtype, part)
                first += count_of(rows, outputs)
    return found


class Replaceable(NamedTuple):
    """The embedding or the head, which an adapter may have another one for."""

    is_head: bool
    shape: tuple[int, int]  # tokens, numbers of each
    tied: bool  # both are one


def tables(model: Model) -> dict[str, Replaceable]:
    """The tables that adapters can replace, by module; none where ranks divide them."""
    if not isinstance(model, DecoderModel) or model.decoder.ranks is not None:
        return {}
    decoder, found = model.decoder, {}
    for is_head, table in ((False, decoder.embed), (True, decoder.head)):
        named = model.named[id(table)]
        name, size, _ = named.parts[-1 if is_head else 0]
        found[name] = Replaceable(is_head, (size, named.inputs), decoder.embed is decoder.head)
    return found


def num_layers(model: Model) -> int:
    """The number of layers, as adapters count them."""
    if isinstance(model, DecoderModel):
        return len(model.decoder.layers)
    return 1 + max(one.layer for one in adaptable(model).values())


def _joined(model: TransformersModel) -> Iterator[tuple[str, Adaptable]]:
    for one in model.products:
        first = 0
        for (name, (outputs, inputs)), rows in zip(one.parts.items(), one.held, strict=True):
            sizes, part = (first, inputs, outputs), TensorPart(rows, one.columns)
            yield name, Adaptable(one.layer, one.site, *sizes, one.product, model.dtype, part)
            first += count_of(rows, outputs)


def products(layer: Layer) -> Iterator[tuple[Site, Linear]]:
    """The products of a layer but for experts'."""
    if isinstance(layer.mixer, Attention):
        yield Site.qkv, layer.mixer.qkv.product
        yield Site.output, layer.mixer.output
    elif layer.mixer is not None:
        yield Site.qkv, layer.mixer.inputs.product
        yield Site.output, layer.mixer.output
    if isinstance(layer.mlp, MLP):
        yield Site.up, layer.mlp.up.product
        yield Site.down, layer.mlp.down
    elif isinstance(layer.mlp, WithExperts):
        yield Site.up, layer.mlp.mlp.up.product
        yield Site.down, layer.mlp.mlp.down
    elif isinstance(layer.mlp, LayerInputMLP):
        yield Site.up, layer.mlp.up
        yield Site.down, layer.mlp.down
    elif isinstance(layer.mlp, LowRank):
        yield Site.up, layer.mlp.left
        yield Site.down, layer.mlp.right
    elif isinstance(layer.mlp, Attention):
        yield Site.up, layer.mlp.qkv.product
        yield Site.down, layer.mlp.output
