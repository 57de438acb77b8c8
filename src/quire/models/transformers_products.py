"""The products of an architecture in ``transformers``, multiplied as our own models' are.

Its linear layers are a weight and perhaps a bias, whatever is made of them. So each is packed, and
those that are given one input are one product. Which these are is seen in a run in which nothing is
multiplied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quire.core.errors import reason
from quire.kernels.adapters import AdaptedRows, Site
from quire.kernels.ops import Kernels
from quire.kernels.ranks import Ranks
from quire.models.linear import Given, Linear, LinearReader
from quire.models.parts import ALL, Rows, count_of
from quire.models.transformers_loading import LeftInFiles

_LOG = logging.getLogger(__name__)

# In the names of what chooses experts: an error there is another choice.
_CHOOSING = {"gate", "router", "shared_expert_gate"}
_WIDER = 16  # columns beside a result, to see whether it may be a part of another


@dataclass
class Running:
    """A step under way, for modules that the architecture's code calls with their input alone."""

    kernels: Kernels
    ranks: Ranks | None = None  # each has a part of some modules
    adapted: Sequence[AdaptedRows] = ()


class JoinedProduct:
    """The product of all modules that are given the same x, in the order of their calls."""

    def __init__(
        self,
        product: Linear,
        source: Callable[[], Mapping[str, Given]],
        parts: Mapping[str, tuple[int, int]],
        number: int,
        running: Running,
    ) -> None:
        """source: its weights, once more. parts: outputs and inputs of each module, by name.
        number: of the product, among all.
        """
        self.product, self.source, self.parts = product, source, parts
        self.sizes = [outputs for outputs, _ in parts.values()]
        self.inputs = next(inputs for _, inputs in parts.values())
        self.held: Sequence[Rows] = [ALL] * len(parts)  # of the outputs of each
        self.columns = ALL  # of the inputs, those that are held
        self._running = running
        self.layer, self.site = number // len(Site), Site(number % len(Site))  # as adapters have it
        self._x: Tensor | None = None  # what was multiplied, until the last has its part
        self._outs: Sequence[Tensor] = ()

    def rows(self, x: Tensor) -> Tensor:
        """x [rows, in] -> the outputs of all [rows, out]. ValueError: it has other inputs."""
        if x.shape[-1] != self.inputs:
            raise ValueError(f"{x.shape[-1]} inputs of a product that has {self.inputs}")
        out = self.product(x)
        if self._running.adapted:
            self._running.kernels.adapt(self._running.adapted, self.layer, self.site, x, out)
        if self.columns is not ALL and self._running.ranks is not None:
            self._running.ranks.add_up(out)
        return out

    def hold(self, product: Linear, held: Sequence[Rows], columns: slice) -> None:
        """Keep a part of the weights: these outputs of each module, these inputs."""
        inputs = next(inputs for _, inputs in self.parts.values())
        self.product, self.held, self.columns = product, held, columns
        self.inputs = count_of(columns, inputs)
        self.sizes = [
            count_of(rows, outputs)
            for rows, (outputs, _) in zip(held, self.parts.values(), strict=True)
        ]

    def part(self, number: int, x: Tensor) -> Tensor:
        """x [..., in] -> the outputs of one of them [..., out], perhaps a view."""
        if x is not self._x:
            out = self.rows(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)
            self._x, self._outs = x, torch.split(out, self.sizes, dim=-1)
        part = self._outs[number]
        if number + 1 == len(self.sizes):
            self._x, self._outs = None, ()
        return part


class Product(nn.Module):
    """Replaces a linear layer."""

    def __init__(self, joined: JoinedProduct, number: int) -> None:
        super().__init__()
        self.joined, self.number = joined, number
        self.in_features, self.out_features = joined.inputs, joined.sizes[number]

    def forward(self, x: Tensor) -> Tensor:
        return self.joined.part(self.number, x)


class Head(nn.Module):
    """Replaces a head: logits as they are added up."""

    def __init__(self, product: Linear, inputs: int) -> None:
        super().__init__()
        self.product, self.in_features = product, inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.product.floats(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


class HeadRows(nn.Module):
    """Replaces an embedding whose weight the head packs."""

    def __init__(self, product: Linear, num_embeddings: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.product, self.num_embeddings, self.dtype = product, num_embeddings, dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.product.rows(token_ids.flatten(), self.dtype).view(*token_ids.shape, -1)


class _Call(NamedTuple):
    """A linear layer's input: the same tensor, unless it was written to since."""

    x: Tensor  # so that its id is nobody else's
    version: int


@dataclass
class _Notes:
    """What a run shows of linear layers, by their ids."""

    calls: dict[int, _Call] = field(default_factory=dict)  # in their order; the first of each
    looked_at: set[int] = field(default_factory=set)  # whose tensors are used in other ways
    several: set[int] = field(default_factory=set)  # called more than once


class _Noting(nn.Module):
    """Multiplies nothing, and notes what it is given."""

    layer: nn.Module

    def __init__(self, layer: nn.Module, notes: _Notes, wider: int) -> None:
        super().__init__()
        self.__dict__["layer"] = layer  # no part of this module
        self.notes, self.wider = notes, wider
        sizes: Sequence[int] = layer.get_parameter("weight").shape
        self.out_features, self.in_features = sizes if isinstance(layer, nn.Linear) else sizes[::-1]

    @property
    def weight(self) -> Any:
        self.notes.looked_at.add(id(self.layer))
        return self.layer._parameters["weight"]

    @property
    def bias(self) -> Any:
        self.notes.looked_at.add(id(self.layer))
        return self.layer._parameters["bias"]

    def forward(self, x: Tensor) -> Tensor:
        key = id(self.layer)
        if key in self.notes.calls:
            self.notes.several.add(key)
        self.notes.calls.setdefault(key, _Call(x, x._version))
        out = x.new_zeros(*x.shape[:-1], self.out_features + self.wider)
        return out[..., : self.out_features]


Places = dict[int, tuple[nn.Module, list[tuple[nn.Module, str]], str]]
"""Linear layers by their ids: with the modules whose they are, by which attribute, and a name."""


def put_products(
    causal_lm: Any,
    run: Callable[[], object],
    linears: LinearReader,
    left: LeftInFiles,
    running: Running,
) -> list[JoinedProduct]:
    """Put products in the place of linear layers, and of the head; gives those of the layers.

    run: the architecture's code. Layers whose tensors it takes are left as they are, with them.
    """
    head = causal_lm.get_output_embeddings()
    _keep_type(causal_lm)
    places = _linear_layers(causal_lm, head)
    notes, may_join = _noted(places, run)
    kept = [place for key, place in places.items() if key in notes.looked_at]
    for layer, _, _ in kept:
        own = nn.Parameter(left.weight(layer), requires_grad=False)
        layer.register_parameter("weight", own)
    if kept:
        _LOG.info("%d linear layers stay transformers' own, such as %s", len(kept), kept[0][2])
    found = []
    for number, group in enumerate(_groups(places, notes, may_join)):
        layers = {places[key][2]: _source(places[key][0], left, running) for key in group}
        given = _all_of(layers)
        product = linears.given(given, exact=any(map(_chooses, given)))
        parts = {name: (len(one.weight), one.weight.shape[1]) for name, one in given.items()}
        found.append(JoinedProduct(product, partial(_all_of, layers), parts, number, running))
        for index, key in enumerate(group):
            layer, parents, _ = places[key]
            for parent, attribute in parents:
                setattr(parent, attribute, Product(found[-1], index))
            layer.register_parameter(
                "weight", None
            )  # its memory is free, though the layer is still known here
    _put_head(causal_lm, head, linears)
    return found


def _all_of(layers: Mapping[str, Callable[[], Given]]) -> dict[str, Given]:
    return {name: read() for name, read in layers.items()}


def _source(layer: Any, left: LeftInFiles, running: Running) -> Callable[[], Given]:
    """Reads a layer's weight, more than once where there are ranks."""
    held, bias = layer.weight.data, None if layer.bias is None else layer.bias.data
    turned = not isinstance(layer, nn.Linear)

    def read() -> Given:
        weight = left.read(held)
        return Given(weight.T.contiguous() if turned else weight, bias)

    return read


def _chooses(name: str) -> bool:
    """Whether it is a layer that chooses experts, or how much of them there is."""
    return not _CHOOSING.isdisjoint(name.split("."))


def _keep_type(causal_lm: Any) -> None:
    """Give models an empty parameter, from which they tell their type when all others are gone."""
    from transformers import PreTrainedModel

    nothing = torch.empty(0, dtype=causal_lm.dtype)
    for module in causal_lm.modules():
        if isinstance(module, PreTrainedModel):
            kept = nn.Parameter(nothing, requires_grad=False)
            module.register_parameter("of_this_type", kept)


def _linear_layers(causal_lm: Any, head: nn.Module | None) -> Places:
    from transformers.pytorch_utils import Conv1D

    places: Places = {}
    for parent_name, parent in causal_lm.named_modules():
        for attribute, layer in parent.named_children():
            if type(layer) not in (nn.Linear, Conv1D) or layer is head:
                continue
            if layer.weight.dtype != causal_lm.dtype:
                continue
            name = f"{parent_name}.{attribute}"
            places.setdefault(id(layer), (layer, [], name))[1].append((parent, attribute))
    return places


def _noted(places: Places, run: Callable[[], object]) -> tuple[_Notes, bool]:
    """What is noted in a run, and whether results may be parts of wider ones."""
    for wider in (_WIDER, 0):
        try:
            return _run(places, run, wider), bool(wider)
        except Exception as error:  # the architecture's code may raise anything
            _LOG.debug("linear layers cannot be noted: %s", reason(error))
    return _Notes(looked_at=set(places)), False


def _run(places: Places, run: Callable[[], object], wider: int) -> _Notes:
    notes = _Notes()
    try:
        for layer, parents, _ in places.values():
            for parent, attribute in parents:
                setattr(parent, attribute, _Noting(layer, notes, wider))
        with torch.no_grad():
            run()
    finally:
        for layer, parents, _ in places.values():
            for parent, attribute in parents:
                setattr(parent, attribute, layer)
    return notes


def _groups(places: Places, notes: _Notes, may_join: bool) -> Iterator[list[int]]:
    """The layers of each product: those that one tensor is given to, and others by themselves."""
    found: dict[tuple[object, ...], list[int]] = {}
    for key in [*notes.calls, *(key for key in places if key not in notes.calls)]:
        if key in notes.looked_at:
            continue
        call, (layer, _, name) = notes.calls.get(key), places[key]
        alone = call is None or key in notes.several or not may_join
        kind = (key,) if alone or call is None else (id(call.x), call.version, layer.bias is None)
        found.setdefault((*kind, _chooses(name)), []).append(key)
    yield from found.values()


def _put_head(causal_lm: Any, head: Any, linears: LinearReader) -> None:
    """An embedding that is the head's gives its rows; with a scale of its own it stays beside."""
    if type(head) is not nn.Linear or head.weight.dtype != causal_lm.dtype:
        return
    table = causal_lm.get_input_embeddings()
    bias = None if head.bias is None else head.bias.data
    product = linears.given_table(Given(head.weight.data, bias))
    if table.weight is head.weight and type(table) is nn.Embedding:
        _replace(causal_lm, table, HeadRows(product, len(head.weight), causal_lm.dtype))
    _replace(causal_lm, head, Head(product, head.weight.shape[1]))


def plain_head(causal_lm: Any) -> Callable[[Tensor], Tensor] | None:
    """The head of a model that has its decoder's states given, if nothing else makes logits."""
    head = causal_lm.get_output_embeddings()
    if not isinstance(head, Head):
        return None
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(4, head.in_features, generator=generator).to(causal_lm.dtype)
    logits = causal_lm(inputs_embeds=states[None], use_cache=False).logits[0]
    return head if torch.equal(head(states), logits.float()) else None


def _replace(causal_lm: Any, module: nn.Module, own: nn.Module) -> None:
    for parent in list(causal_lm.modules()):
        for attribute, child in list(parent.named_children()):
            if child is module:
                setattr(parent, attribute, own)
