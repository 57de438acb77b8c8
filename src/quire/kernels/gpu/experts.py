"""Launches what a mixture of experts computes; see ``programs.experts``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import torch
import triton
from torch import Tensor

from quire.kernels.gpu.programs import experts as programs
from quire.kernels.gpu.tiles import ProductTile
from quire.kernels.mlps import Experts, Projection, Routing
from quire.kernels.plain import route

_TILES_AT_ONCE = 32  # of the program that lists them
_PAIRS_AT_ONCE, _COMPARED_AT_ONCE = 32, 128  # of the program that sorts
_MOST_COMPARED = 4096  # pairs; more are sorted by PyTorch
_ELEMENTS_AT_ONCE = 1024  # of the program that adds up


class _Stored(Protocol):
    """A projection as PyTorch has it."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]


class ExpertWeights(NamedTuple):
    """The same projection of all experts."""

    weights: Tensor  # [E, out, in], each expert's as they come
    biases: Tensor | None  # [E, out]

    @classmethod
    def of(cls, projections: Sequence[Projection]) -> ExpertWeights:
        """Of weights that lie at equal distances in one tensor, as they are read: none is copied.

        Biases are.
        """
        stored = cast(Sequence[_Stored], projections)
        first, memory = stored[0].weight, stored[0].weight.untyped_storage().data_ptr()
        step = first.numel()
        assert first.is_contiguous()
        for number, one in enumerate(stored):
            weight, place = one.weight, first.storage_offset() + number * step
            assert weight.untyped_storage().data_ptr() == memory, "experts lie in one tensor"
            assert weight.storage_offset() == place and weight.shape == first.shape
        biases = [one.bias for one in stored if one.bias is not None]
        weights = first.as_strided((len(stored), *first.shape), (step, *first.stride()))
        return cls(weights, torch.stack(biases).contiguous() if biases else None)


class Pairs(NamedTuple):
    """The rows of a step and the experts that each chose, sorted by expert."""

    order: Tensor  # [T * chosen] int64: row * chosen + rank
    tiles: Tensor  # [capacity, fields] int32
    tile: ProductTile

    @classmethod
    def of(cls, chosen: Tensor, num_experts: int, tile: ProductTile) -> Pairs:
        """Of the experts that rows chose, int16 [T, chosen]. Does not wait for the device."""
        found, order = _sorted(chosen)
        count = len(order)
        # Each expert's last tile may hold a single pair.
        capacity = min(count, count // tile.rows + min(count, num_experts))
        tiles = order.new_empty((capacity, programs.FIELDS.value), dtype=torch.int32)
        programs.list_tiles[(triton.cdiv(capacity, _TILES_AT_ONCE),)](
            tiles,
            found,
            count,
            capacity,
            num_experts,
            ROWS=tile.rows,
            EXPERTS=triton.next_power_of_2(num_experts),
            ROUNDS=count.bit_length(),
            CHUNK=_TILES_AT_ONCE,
        )
        return cls(order, tiles, tile)


class GPUExperts:
    """The products of one ``Experts``."""

    def __init__(self, experts: Experts, kind: str) -> None:
        """kind: the activation, by the programs' name."""
        self.experts = experts
        self._up, self._down = ExpertWeights.of(experts.up), ExpertWeights.of(experts.down)
        self._kind, self._chosen = kind, experts.routing.chosen
        self._gated, self._before = experts.activation.gated, experts.routing.before
        self._alphas = experts.activation.alphas or (0.0, 0.0)

    def parts(self, x: Tensor, chosen: Tensor, shares: Tensor, tile: ProductTile) -> Tensor:
        """What the experts chosen by each row, int16 [T, chosen], give -> [T * chosen, d]."""
        num_experts, width, _ = self._up.weights.shape
        pairs = Pairs.of(chosen, num_experts, tile)
        inner = x.new_empty(chosen.numel(), width // 2 if self._gated else width)
        _multiply(
            x,
            self._up,
            inner,
            pairs,
            shares if self._before else None,
            share=self._chosen,
            kind=self._kind,
            gated=self._gated,
            alphas=self._alphas,
        )
        out = x.new_empty(chosen.numel(), self._down.weights.shape[1])
        _multiply(inner, self._down, out, pairs)
        return out

    def add_up(
        self, parts: Tensor, shares: Tensor, shared: Tensor | None, gates: Tensor | None
    ) -> Tensor:
        """parts [T * chosen, d], by their shares, and what all rows go through -> [T, d]."""
        count, width = len(parts) // self._chosen, parts.shape[1]
        out = parts.new_empty(count, width)
        programs.add_up[(count, triton.cdiv(width, _ELEMENTS_AT_ONCE))](
            parts,
            None if self._before else shares,
            shared,
            gates,
            0 if gates is None else gates.stride(0),
            out,
            width,
            CHOSEN=self._chosen,
            STEP=min(_ELEMENTS_AT_ONCE, triton.next_power_of_2(width)),
        )
        return out


def choose(numbers: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """The router's numbers [T, E] -> experts, int16 [T, chosen], and the share of each: what
    ``plain.route`` gives, in one launch where no group or nearness matters.
    """
    if routing.groups_chosen < routing.groups or routing.nearness:
        found, weights = route(numbers, routing)
        return found.to(torch.int16).contiguous(), weights.contiguous()
    count, num_experts = numbers.shape
    chosen = numbers.new_empty((count, routing.chosen), dtype=torch.int16)
    shares = numbers.new_empty((count, routing.chosen))
    programs.choose[(count,)](
        numbers,
        numbers.stride(0),
        routing.bias,
        routing.factors,
        chosen,
        shares,
        num_experts,
        routing.scale,
        BY_SOFTMAX=routing.by_softmax,
        SIGMOID=routing.sigmoid,
        RENORMALISE=routing.renormalise,
        CHOSEN=routing.chosen,
        CHOSEN_PAD=triton.next_power_of_2(routing.chosen),
        EXPERTS=triton.next_power_of_2(num_experts),
        num_warps=1,
    )
    return chosen, shares


def _sorted(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The experts of all pairs, sorted, and which pairs they are."""
    pairs = chosen.flatten()
    if len(pairs) > _MOST_COMPARED:
        return pairs.sort(stable=True)
    found, order = torch.empty_like(pairs), pairs.new_empty(len(pairs), dtype=torch.int64)
    programs.sort_pairs[(triton.cdiv(len(pairs), _PAIRS_AT_ONCE),)](
        pairs, order, found, len(pairs), CHUNK=_PAIRS_AT_ONCE, ROUND=_COMPARED_AT_ONCE
    )
    return found, order


def _multiply(
    x: Tensor,
    stack: ExpertWeights,
    out: Tensor,
    pairs: Pairs,
    shares: Tensor | None = None,
    *,
    share: int = 0,
    kind: str = "",
    gated: bool = False,
    alphas: tuple[float, float] = (0.0, 0.0),
) -> None:
    tile, (outputs, inputs) = pairs.tile, (out.shape[1], x.shape[1])
    columns = tile.columns // 2 if gated else tile.columns
    programs.multiply[(len(pairs.tiles) * triton.cdiv(outputs, columns),)](
        x,
        x.stride(0),
        pairs.order,
        shares,
        stack.weights,
        stack.weights.stride(0),
        stack.biases,
        out,
        pairs.tiles,
        inputs,
        outputs,
        *alphas,
        SHARE=share,
        KIND=kind,
        GATED=gated,
        ROWS=tile.rows,
        COLUMNS=columns,
        DEPTH=tile.depth,
        WHOLE=inputs % tile.depth == 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
