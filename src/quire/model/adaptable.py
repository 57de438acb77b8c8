"""What of a decoder adapters can change, by the names of modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from quire.kernels.adapters import Site
from quire.model.decoder import MLP, DecoderModel, Layer
from quire.model.linear import Linear


class Adaptable(NamedTuple):
    """A projection of the checkpoint, and where it is among the products."""

    layer: int
    site: Site
    first: int  # of its outputs among the product's
    inputs: int
    outputs: int
    order: Tensor | None = None  # the product's outputs, by the checkpoint's; None: the same


def adaptable(model: DecoderModel) -> dict[str, Adaptable]:
    """By module."""
    found = {}
    for number, layer in enumerate(model.decoder.layers):
        for site, product, order in _products(layer):
            parts = model.named.get(id(product))
            if parts is None:
                continue
            first = 0
            for name, outputs in parts.outputs.items():
                own = None if order is None else order[first : first + outputs] - first
                found[name] = Adaptable(number, site, first, parts.inputs, outputs, own)
                first += outputs
    return found


def _products(layer: Layer) -> Iterator[tuple[Site, Linear, Tensor | None]]:
    yield Site.qkv, layer.attention.qkv.product, layer.attention.qkv.order
    yield Site.output, layer.attention.output, None
    if isinstance(layer.mlp, MLP):
        yield Site.up, layer.mlp.up.product, layer.mlp.up.order
        yield Site.down, layer.mlp.down, None
