"""``Kernels`` for NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from quire.kernels.gpu.experts import GPUExperts, choose
from quire.kernels.gpu.moves import BlockMover, Route
from quire.kernels.gpu.programs import attention, draw, rows, store
from quire.kernels.gpu.recurrence import recur
from quire.kernels.gpu.tiles import Tiles, choose_product_tile, choose_tiles
from quire.kernels.gpu.work import NO_WINDOW, GPUPlan, WorkList
from quire.kernels.layer_memory import LayerKV, LayerMemory, LayerState, counterparts
from quire.kernels.mlps import Activation, Experts
from quire.kernels.ops import AttentionBatch, AttentionSpec, Kernels, Norm, Rotation
from quire.kernels.plain import allow
from quire.kernels.recurrence import RecurrentSpec

_ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "clamped_swiglu": "clamped_swiglu",
    "xielu": "xielu",
}
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # of quantised caches
_HEADS_AT_ONCE = 4  # of the program that stores
_ELEMENTS_AT_ONCE = 1024  # of the program that activates
_ROWS_AT_ONCE = 16  # of the program that merges, at most
_PARTIAL_ELEMENTS_AT_ONCE = 8192
_TOKENS_AT_ONCE = 8192  # of the program that draws
_NEAR_TOKENS = 8192  # that it looks at in place of all, at most


class _Shape(NamedTuple):
    """The shape of a layer's attention, in the programs' names."""

    HEADS: int
    KV_HEADS: int
    BLOCK: int
    BLOCK_ROWS: int
    DK: int
    DV: int
    DK_PAD: int
    DV_PAD: int

    @classmethod
    def of(cls, query: Tensor, kv: LayerKV) -> _Shape:
        _, kv_heads, block_size, key_dim = kv.keys.shape
        dims = key_dim, kv.values.shape[3]
        padded = (max(16, triton.next_power_of_2(dim)) for dim in dims)
        rows = kv.block_rows
        return cls(query.shape[1], kv_heads, block_size, rows, *dims, *padded)


class GPUKernels(Kernels):
    """``Kernels`` in Triton, for tensors of the types ``support.DTYPES`` on one device.

    The KV cache may also be int8 or float8_e4m3fn, if it has scales. Slots of -1 are not written;
    a sequence of no tokens gives zeros: so a batch can be padded to a fixed size.
    """

    draws = True

    def __init__(
        self,
        capability: tuple[int, int],
        num_processors: int,
        tiles: Tiles | None = None,
    ) -> None:
        """``tiles`` None: from the table for the device's compute capability."""
        self._capability = capability
        self._num_processors = num_processors
        self._tiles = tiles
        self._experts: dict[int, GPUExperts] = {}

    @classmethod
    def on(cls, device: torch.device) -> GPUKernels:
        """The kernels for a CUDA device."""
        traits = torch.cuda.get_device_properties(device)
        return cls((traits.major, traits.minor), traits.multi_processor_count)

    def plan(self, batch: AttentionBatch) -> GPUPlan:
        """See ``Kernels.plan``. Does not wait for the device."""
        assert batch.bias is None, "sessions on GPUs refuse soft cuts"
        return GPUPlan(batch, self._num_processors)

    def attend(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv: LayerKV,
        spec: AttentionSpec,
        plan: GPUPlan,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """See ``Kernels.attend``; the result has the query's dtype."""
        assert key is not None and value is not None, "no model here has others' keys"
        assert spec.value_norm is None, "nor norms of values"
        shape = _Shape.of(query, kv)
        queries = _store(query, key, value, kv, spec, plan, rotation, shape)
        out = query.new_empty(*query.shape[:2], shape.DV)
        tiles = self._tiles or choose_tiles(self._capability, query.dtype, shape.DK_PAD)
        window = spec.window or NO_WINDOW
        for work in plan.work(shape.HEADS, shape.KV_HEADS, window, spec.by_chunks, tiles):
            _attend(*queries, out, kv, spec, plan, work, shape)
        return out

    def recur(self, x: Tensor, state: LayerState, spec: RecurrentSpec, plan: GPUPlan) -> Tensor:
        """See ``Kernels.recur``. Does not wait for the device."""
        return recur(x, state, spec, plan)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return _norm(x, None, norm)

    def add_norm(self, x: Tensor, delta: Tensor, norm: Norm) -> Tensor:
        return _norm(x, delta, norm)

    def gate(self, x: Tensor, gates: Tensor) -> None:
        x.view(*gates.shape, -1).mul_(gates.float().sigmoid()[..., None])

    def mix(self, x: Tensor, experts: Experts, routed: Tensor | None = None) -> Tensor:
        """See ``Kernels.mix``. Does not wait for the device; see ``programs.experts``."""
        known = self._experts.get(id(experts))
        if known is None or known.experts is not experts:
            assert experts.activation.factor == 1.0, "no mixture has others"
            kind = _kind(experts.activation)
            known = self._experts[id(experts)] = GPUExperts(experts, kind)
        logits = experts.router.floats(x if routed is None else routed)
        chosen, shares = choose(logits[:, : len(experts.up)], experts.routing)
        rows_each = chosen.numel() / len(experts.up)
        tile = choose_product_tile(self._capability, x.dtype, rows_each)
        parts = known.parts(x.contiguous(), chosen, shares, tile)
        shared, mlp = None, experts.shared
        if mlp is not None:
            shared = mlp.down(self.activate(mlp.up(x), mlp.activation))
        gates = logits[:, -1] if experts.shared_gate else None
        return known.add_up(parts, shares, shared, gates)

    def argmax(self, x: Tensor) -> Tensor:
        return x.argmax(-1)

    def draw(self, x: Tensor, filters: Tensor | None) -> tuple[Tensor, Tensor]:
        num_rows, width = x.shape
        tokens = x.new_empty(num_rows, dtype=torch.int64)
        peaks = x.new_empty(num_rows)
        draw.draw[(num_rows,)](
            x,
            x.stride(0),
            filters,
            None if filters is None else x.new_empty(num_rows, _NEAR_TOKENS),
            tokens,
            peaks,
            width,
            ROOM=_NEAR_TOKENS,
            STEP=min(_TOKENS_AT_ONCE, triton.next_power_of_2(width)),
            num_warps=16,
        )
        return tokens, peaks

    def allow(self, x: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
        return allow(x, masks, rows)

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        gated = activation.gated
        num_rows, width = x.shape
        width = width // 2 if gated else width
        out = x.new_empty(num_rows, width)
        rows.activate[(num_rows, triton.cdiv(width, _ELEMENTS_AT_ONCE))](
            x,
            x.stride(0),
            out,
            width,
            *(activation.alphas or (0.0, 0.0)),
            activation.factor,
            KIND=_kind(activation),
            GATED=gated,
            STEP=_ELEMENTS_AT_ONCE,
        )
        return out

    def copy_blocks(
        self,
        source: Sequence[LayerMemory],
        target: Sequence[LayerMemory],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        routes = [Route.between(*tensors) for tensors in counterparts(source, target)]
        same = any(route.source == route.target for route in routes)
        BlockMover(routes, target[0].parts[0].device, same).move(pairs)


def _kind(activation: Activation) -> str:
    """An activation by the programs' name."""
    assert activation.cut is None, "no model here has others"
    return _ACTIVATIONS[activation.name]


def _pools(kv: LayerKV) -> tuple[Tensor | None, ...]:
    return kv.keys, kv.values, kv.key_scales, kv.value_scales


def _store(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kv: LayerKV,
    spec: AttentionSpec,
    plan: GPUPlan,
    rotation: Rotation | None,
    shape: _Shape,
) -> tuple[Tensor, Tensor | None]:
    """Write keys and values; the queries [T, H, DK] to attend with, and those for the sinks."""
    query, key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (query, key, value))
    query_out = query.new_empty(query.shape)
    cos, sin, sink_cos, sink_sin, query_scale = rotation or (None,) * 5
    sink_query_out = None if sink_cos is None else torch.empty_like(query_out)
    query_norm, key_norm = (norm or Norm(0, None, 0.0) for norm in (spec.query_norm, spec.key_norm))
    parts = triton.cdiv(shape.HEADS, _HEADS_AT_ONCE) + 2 * triton.cdiv(
        shape.KV_HEADS, _HEADS_AT_ONCE
    )
    store.store[(len(query), parts)](
        query,
        key,
        value,
        query_out,
        sink_query_out,
        *_pools(kv),
        plan.batch.kv_groups[kv.kv_group].slots,
        cos,
        sin,
        sink_cos,
        sink_sin,
        query_scale,
        query_norm.weight,
        query_norm.bias,
        query_norm.eps,
        key_norm.weight,
        key_norm.bias,
        key_norm.eps,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        **shape._asdict(),
        HALF=0 if cos is None else cos.shape[1],
        QUERY_NORM=spec.query_norm is not None,
        QUERY_CENTRED=query_norm.centred,
        KEY_NORM=spec.key_norm is not None,
        KEY_CENTRED=key_norm.centred,
        TURNED_FIRST=spec.norm_turned,
        LIMIT=_LARGEST.get(kv.keys.dtype, 0.0),
        WHOLE=kv.keys.dtype == torch.int8,
        STEP=_HEADS_AT_ONCE,
        num_warps=1,
    )
    return query_out, sink_query_out


def _attend(
    query: Tensor,
    sink_query: Tensor | None,
    out: Tensor,
    kv: LayerKV,
    spec: AttentionSpec,
    plan: GPUPlan,
    work: WorkList,
    shape: _Shape,
) -> None:
    """Compute the rows of ``out`` that ``work`` is about."""
    kv_group, tile = plan.batch.kv_groups[kv.kv_group], work.tile
    programs = (len(work.items), shape.KV_HEADS)
    num_parts = (*programs, tile.rows) if work.split else (0, 0, 0)
    parts = out.new_empty((*num_parts, shape.DV), dtype=torch.float32)
    stats = out.new_empty((*num_parts, 2), dtype=torch.float32)
    has_sinks = spec.sinks > 0 and spec.window is not None
    attention.attend[programs](
        query,
        query if sink_query is None else sink_query,
        *_pools(kv),
        out,
        parts,
        stats,
        work.items,
        plan.starts,
        plan.batch.context_lens,
        kv_group.block_tables,
        *kv_group.block_tables.stride(),
        kv_group.num_dropped,
        kv_group.num_sink_blocks,
        spec.scale,
        spec.softcap or 0.0,
        spec.window or NO_WINDOW,
        spec.sinks,
        spec.sink_logits,
        **shape._asdict(),
        TILE=work.tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        SOFTCAP=spec.softcap is not None,
        WINDOW=spec.window is not None,
        BY_CHUNKS=spec.by_chunks,
        SINKS=has_sinks,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if work.split:
        _merge(parts, stats, out, plan, work, shape)


def _merge(
    parts: Tensor, stats: Tensor, out: Tensor, plan: GPUPlan, work: WorkList, shape: _Shape
) -> None:
    """Put together what programs have made of segments of one row."""
    rows_of_tile = work.tokens * shape.HEADS // shape.KV_HEADS
    step = min(_ROWS_AT_ONCE, triton.next_power_of_2(rows_of_tile))
    attention.merge[len(work.items), shape.KV_HEADS, triton.cdiv(rows_of_tile, step)](
        out,
        parts,
        stats,
        work.items,
        plan.starts,
        HEADS=shape.HEADS,
        KV_HEADS=shape.KV_HEADS,
        DV=shape.DV,
        DV_PAD=shape.DV_PAD,
        TILE=work.tokens,
        ROWS=work.tile.rows,
        STEP=step,
        PARTS=max(1, _PARTIAL_ELEMENTS_AT_ONCE // (step * shape.DV_PAD)),
    )


def _norm(x: Tensor, delta: Tensor | None, norm: Norm) -> Tensor:
    num_rows, width = x.shape
    padded = triton.next_power_of_2(width)
    out = x.new_empty(num_rows, width)
    rows.norm[(num_rows,)](
        x,
        x.stride(0),
        delta,
        0 if delta is None else delta.stride(0),
        out,
        norm.weight,
        norm.bias,
        norm.eps,
        width,
        CENTRED=norm.centred,
        WIDTH_PAD=padded,
        num_warps=min(max(padded // 512, 1), 16),
    )
    return out
