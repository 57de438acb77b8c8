"""What the keys of a trained model have in common, seen while it reads a text.

Keys of few bits are rounded as differences from it (``Centring``). A mean of keys after rotation
would not do: it holds near the positions where it was seen, and is wrong elsewhere. Before rotation
it holds everywhere, and turned as the middle of a few neighbours it is right for all dimensions
that turn slowly, which are those that have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from quire.kernels.dispatch import choose_kernels
from quire.kernels.layer_memory import KVShape, LayerKV
from quire.kernels.ops import (
    CENTRED_TOGETHER,
    AttentionBatch,
    AttentionSpec,
    Centring,
    Kernels,
    Norm,
    Rotation,
)
from quire.kernels.rounded_cache import DEVIATION, FINE, FINE_DEVIATION, spread
from quire.models.decoder import DecoderModel
from quire.models.layers import Attention
from quire.models.observing import read_tokens
from quire.models.rope import Rope

_FIRST = 4  # tokens, whose keys are unlike those of others
_LEAST = 0.03  # of the mean energy of a head's numbers, that each is taken to have
_DAMPED = 0.01  # of that mean, which is added where queries have little
_PLACES = 2**12  # in the largest number of a head; so an order of additions seldom shows


def centre_keys(
    model: DecoderModel, token_ids: Sequence[int], instruction_set: str = ""
) -> DecoderModel:
    """The model with a ``Centring`` in each attention, by what it makes of a text.

    A model whose rotations hang on more than positions has none, nor one whose attention sinks
    are turned by themselves, nor one of latents, which are values too.
    """
    ropes = model.decoder.ropes
    fixed = all(isinstance(rope.frequencies, Tensor) and rope.reach is None for rope in ropes)
    latent = any(isinstance(shape, KVShape) and shape.latent for shape in model.kv_shapes)
    if latent or not fixed or len(token_ids) <= _FIRST:
        return model
    kernels = choose_kernels(model.dtype, instruction_set)
    watching = _Watching(kernels)
    read_tokens(model, torch.tensor(token_ids), cast(Kernels, watching))
    longest = max(model.max_positions, len(token_ids))
    tables = [_turns(rope, longest) for rope in ropes]
    seen, found = iter(watching.seen), list[Centring]()

    def centred(part: Any) -> Any:
        if not isinstance(part, Attention):
            return part
        if part.source is None:
            query, key, rotation = next(seen)
            table = None if part.rope is None else tables[part.rope]
            found.append(centring_of(query, key, rotation, table))
        own = found[-1 if part.source is None else part.source]
        return replace(part, spec=replace(part.spec, centring=own))

    layers = (
        replace(layer, mixer=centred(layer.mixer), mlp=centred(layer.mlp))
        for layer in model.decoder.layers
    )
    return model.with_layers(tuple(layers))


def centrings(model: DecoderModel) -> list[Centring]:
    """The centrings of a model, in the order of its attentions."""
    mixers = [mixer for layer in model.decoder.layers for mixer in layer.mixers]
    found = [mixer.spec.centring for mixer in mixers if isinstance(mixer, Attention)]
    return [one for one in found if one is not None]


class _Watching:
    """Kernels that keep what attention is given: queries and keys, normalised but not turned."""

    def __init__(self, kernels: Kernels) -> None:
        self.seen: list[tuple[Tensor, Tensor, Rotation | None]] = []
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def fuse(self, decoder: Any, kv: Any) -> None:
        """Go through the layers one by one."""

    def attend(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv: LayerKV,
        spec: AttentionSpec,
        plan: Any,
        rotation: Rotation | None = None,
    ) -> Tensor:
        if key is not None:
            normed = self._normed(query, spec.query_norm), self._normed(key, spec.key_norm)
            self.seen.append((*normed, rotation))
        return self._kernels.attend(query, key, value, kv, spec, plan, rotation)

    def _normed(self, x: Tensor, norm: Norm | None) -> Tensor:
        if norm is not None:
            x = self._kernels.norm(x.reshape(-1, x.shape[2]), norm).view(x.shape)
        return x.double()


def _turns(rope: Rope, longest: int) -> tuple[Tensor, Tensor]:
    """The cosines and sines of the middles of all chunks of positions."""
    count = -(-longest // CENTRED_TOGETHER)
    middles = torch.arange(count) * CENTRED_TOGETHER + CENTRED_TOGETHER // 2
    nothing = torch.zeros(0, dtype=torch.long)
    batch = AttentionBatch(middles, (), nothing, nothing, (), CENTRED_TOGETHER)
    cos, sin, *_ = rope.rotation(batch)
    return cos.contiguous(), sin.contiguous()


def centring_of(
    query: Tensor,
    key: Tensor,
    rotation: Rotation | None,
    table: tuple[Tensor, Tensor] | None,
) -> Centring:
    """query [T, H, D], key [T, Hkv, D], before they are turned by ``rotation``."""
    tokens, kv_heads, dim = key.shape
    common = _coarse(key[_FIRST:].mean(0))
    left, half = key - common, 0
    cos = sin = None
    if rotation is not None and table is not None:
        cos, sin = table
        half = cos.shape[1]
        chunks = torch.arange(tokens) // CENTRED_TOGETHER
        turned = _turn(common.expand_as(key), cos[chunks], sin[chunks])
        left = _turn(key, rotation.cos, rotation.sin) - turned
    energy = _by_pair(left[_FIRST:].square().mean(0), half)
    by_head = query.view(tokens, kv_heads, -1, dim)
    wanted = _by_pair(by_head.square().mean((0, 2)), half)
    wanted, energy = wanted + _least(wanted), energy + _least(energy)
    order = (wanted * energy).argsort(dim=1, descending=True, stable=True)
    factors = _even(energy, (wanted / energy).sqrt().sqrt(), order)
    usable = (factors > 1e-9) & (factors < 1e9)  # and is a number
    factors = _coarse(torch.where(usable, factors, 1))
    shares = shares_of((wanted / factors.square()).gather(1, order), min(dim & -dim, FINE))
    first = key[0] if rotation is None else _turn(key[:1], rotation.cos[:1], rotation.sin[:1])[0]
    kept = (x.float().contiguous() for x in (factors, 1 / factors, common, _coarse(first), shares))
    own, inverse, shared, alone, given = kept
    return Centring(own, inverse, shared, alone, given, order.int().contiguous(), cos, sin)


def _even(energy: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """The factors [heads, D], times what makes the first of an order as large as the levels of five
    bits are for them, and the others as those of four.
    """
    size = (energy * factors.square()).gather(1, order)
    parts = [(size[:, :FINE], FINE_DEVIATION), (size[:, FINE:], DEVIATION)]
    scales = [
        (deviation / part.mean(1, keepdim=True).sqrt()).expand_as(part) for part, deviation in parts
    ]
    return factors * torch.empty_like(size).scatter(1, order, torch.cat(scales, 1)) / DEVIATION


def shares_of(wanted: Tensor, run: int) -> Tensor:
    """How numbers make up for what is lost of others, so that scores lose least.

    wanted [heads, D]: the energy of what queries have for each number before runs are spread ->
    [heads, D, D in whole 16]: times what is lost of a number, that is added to those before it.

    Of what is lost of a key, e, scores lose e' Q e in squares, where Q is of queries that are
    spread. If Q = L D L', with ones in the diagonal of L, that is the sum of D (L' e)^2: each is
    least if its number is rounded after those behind it, and with what these leave to it.
    """
    heads, dim = wanted.shape
    ones = torch.eye(dim, dtype=torch.float64)
    matrix = spread(ones, run)
    energy = wanted + _DAMPED * wanted.mean(1, keepdim=True)
    lower, _ = torch.linalg.cholesky_ex(matrix @ torch.diag_embed(energy) @ matrix)
    lower = lower / lower.diagonal(dim1=1, dim2=2)[:, None]
    ones = ones.expand_as(lower)
    shares = ones - torch.linalg.solve_triangular(lower, ones, upper=False, unitriangular=True)
    shares = _coarse(shares.flatten(1)).view(heads, dim, dim)
    return torch.nn.functional.pad(shares, (0, -dim % 16))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, D], cos and sin [T, R]."""
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def _by_pair(energy: Tensor, half: int) -> Tensor:
    """[heads, D]; those that are turned together have the same."""
    pairs = (energy[:, :half] + energy[:, half : 2 * half]) / 2
    return torch.cat((pairs, pairs, energy[:, 2 * half :]), 1)


def _least(energy: Tensor) -> Tensor:
    return _LEAST * energy.mean(1, keepdim=True)


def _coarse(x: Tensor) -> Tensor:
    """x [heads, D] to some places of each head's largest number; zeros where it has none."""
    largest = x.abs().amax(1, keepdim=True)
    step = torch.exp2(torch.ceil(torch.log2(largest))) / _PLACES
    usable = (largest > 1e-30) & (largest < 1e30)
    return torch.where(usable, (x / step).round() * step, 0)
