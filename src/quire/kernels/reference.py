"""Paged attention and what goes with it in plain torch: the reference for faster kernels.

Everything is gathered through the block table and multiplied in float32 (float64 for float64
inputs). Slots after a sequence's context are never read, and may hold anything, even NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.adapters import AdaptedRows, Site, Updates
from quire.kernels.layer_memory import LayerKV, LayerMemory, LayerState, counterparts
from quire.kernels.mlps import Activation, Experts
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    ColumnBias,
    IndexSpec,
    Kernels,
    Norm,
    Rotation,
)
from quire.kernels.plain import activate, allow, mixed
from quire.kernels.recurrence import RecurrentSpec
from quire.kernels.reference_plan import Decodes, Prefill, ReferencePlan, plan_kv_group
from quire.kernels.reference_recurrence import Run, plan_runs, recur
from quire.kernels.rounded_cache import (
    balance,
    codes_of,
    key_bytes,
    key_codes,
    levels_of,
    spread,
    value_bytes,
    value_codes,
    whole_numbers,
)
from quire.kernels.streams import StreamCorrection, StreamPrediction, correct, predict

# Scores of a prefill slice, or gathered keys and values of a decode slice, in elements: 32 MiB of
# float32. More is cut into slices, so that memory does not grow with the batch.
_SLICE_ELEMENTS = 1 << 23


class StepPlan(NamedTuple):
    """What layers share: by KV group, and of states."""

    kv_groups: list[ReferencePlan]
    runs: list[Run]


class ReferenceKernels(Kernels):
    """``Kernels`` for any device that torch has."""

    def plan(self, batch: AttentionBatch) -> StepPlan:
        """Index arrays that layers share; reads ``context_lens`` on the host."""
        contexts: list[int] = batch.context_lens.tolist()
        kv_groups = [plan_kv_group(batch, kv_group, contexts) for kv_group in batch.kv_groups]
        return StepPlan(kv_groups, plan_runs(batch, contexts))

    def attend(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv: LayerKV,
        spec: AttentionSpec,
        plan: StepPlan,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """See ``Kernels.attend``; the result has the query's dtype."""
        query, sink_query, key = self._prepared(query, key, spec, rotation)
        if value is not None and spec.value_norm is not None:
            value = self.norm(value, spec.value_norm)
        own = plan.kv_groups[kv.kv_group]
        dtype, run = query.dtype, _run(kv)
        if kv.key_scales is not None:
            half = 0 if rotation is None else rotation.cos.shape[1]
            factors = _balance(spec, half).to(query.device)
            query, sink_query = (spread(_wide(x) * factors, run) for x in (query, sink_query))
            key = None if key is None else spread(_wide(key) / factors, run)
        if key is not None and value is not None:
            _store(key, value, kv, own)
        output = query.new_empty(*query.shape[:2], kv.dims[1])
        for prefill in own.prefills:
            rows = prefill.rows
            output[rows] = _attend_prefill(query[rows], sink_query[rows], kv, spec, prefill)
        if own.decodes is not None:
            index = own.decodes.rows
            output[index] = _attend_decodes(query[index], sink_query[index], kv, spec, own.decodes)
        return output if kv.key_scales is None else spread(output, run).to(dtype)

    def _prepared(
        self, query: Tensor, key: Tensor | None, spec: AttentionSpec, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries, those for sinks, and keys: normalised and turned."""

        def made(x: Tensor, norm: Norm | None, cos: Tensor | None, sin: Tensor | None) -> Tensor:
            if norm is not None and not spec.norm_turned:
                x = self.norm(x, norm)
            if cos is not None and sin is not None:
                x = _turn(x, cos, sin)
            return self.norm(x, norm) if norm is not None and spec.norm_turned else x

        cos, sin, sink_cos, sink_sin, scale = rotation or (None,) * 5
        near = far = made(query, spec.query_norm, cos, sin)
        if sink_cos is not None:
            far = made(query, spec.query_norm, sink_cos, sink_sin)
        if scale is not None:
            near, far = ((_wide(x) * scale[:, None, None]).to(x.dtype) for x in (near, far))
        return near, far, None if key is None else made(key, spec.key_norm, cos, sin)

    def choose(
        self,
        query: Tensor,
        key: Tensor,
        weights: Tensor,
        kv: LayerKV,
        spec: IndexSpec,
        plan: StepPlan,
        rotation: Rotation | None = None,
    ) -> StepPlan:
        """See ``Kernels.choose``."""
        assert kv.index_keys is not None, "the layer has an index"
        own, turned = plan.kv_groups[kv.kv_group], self.norm(key, spec.key_norm)[:, None]
        if rotation is not None:
            query, turned = (_turn(x, rotation.cos, rotation.sin) for x in (query, turned))
        if kv.index_scales is not None:
            run = turned.shape[2] & -turned.shape[2]
            query, turned = (spread(_wide(x), run) for x in (query, turned))
        _put(turned, kv.index_keys, kv.index_scales, own, key_bytes)
        slots = own.by_row(len(query))
        for row, seen in enumerate(slots):
            if len(seen) <= spec.most:
                continue
            places = _places(kv, seen[None])
            # So exactly that what is equal stays so, wherever it stands in a product.
            exact = torch.float64
            keys = _numbers(kv.index_keys, kv.index_scales, places, exact, key_codes)[0, 0]
            products = (query[row].to(exact) @ keys.T).relu_()
            scores = (weights[row].to(exact) @ products).float()
            best = scores.argsort(descending=True, stable=True)[: spec.most]
            slots[row] = seen[best.sort().values]
        kv_groups = [*plan.kv_groups]
        kv_groups[kv.kv_group] = own.among(slots)
        return StepPlan(kv_groups, plan.runs)

    def recur(self, x: Tensor, state: LayerState, spec: RecurrentSpec, plan: StepPlan) -> Tensor:
        return recur(x, state, spec, plan.runs)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        if norm.centred:
            return F.layer_norm(x, (norm.width,), norm.weight, norm.bias, norm.eps)
        if norm.weight is not None and norm.weight.dtype != x.dtype:
            return F.rms_norm(x.float(), (norm.width,), norm.weight.float(), norm.eps).to(x.dtype)
        return F.rms_norm(x, (norm.width,), norm.weight, norm.eps)

    def add_norm(self, x: Tensor, delta: Tensor, norm: Norm) -> Tensor:
        return self.norm(x.add_(delta), norm)

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        return activate(x, activation)

    def gate(self, x: Tensor, gates: Tensor) -> None:
        heads = x.view(*gates.shape, -1)
        heads.mul_(gates.to(torch.promote_types(x.dtype, torch.float32)).sigmoid()[..., None])

    def predict(self, streams: Tensor, prediction: StreamPrediction) -> Tensor:
        return predict(streams, prediction)

    def correct(self, streams: Tensor, x: Tensor, correction: StreamCorrection) -> Tensor:
        return correct(streams, x, correction)

    def mix(self, x: Tensor, experts: Experts, routed: Tensor | None = None) -> Tensor:
        return mixed(x, experts, self, routed)

    def argmax(self, x: Tensor) -> Tensor:
        return x.argmax(-1)

    def allow(self, x: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
        return allow(x, masks, rows)

    def keep_adapter(self, updates: Updates, num_layers: int, dtype: torch.dtype) -> Updates:
        return {
            place: [one._replace(down=one.down.to(dtype), up=one.up.to(dtype)) for one in several]
            for place, several in updates.items()
        }

    def adapt(
        self, adapted: Sequence[AdaptedRows], layer: int, site: Site, x: Tensor, out: Tensor
    ) -> None:
        for ranges, updates, _ in adapted:
            for (first, last), update in product(ranges, updates.get((layer, site), ())):
                ranks = x[first:last].float() @ update.down.float().T * update.scale
                part = out[first:last, update.first_output :][:, : len(update.up)]
                total = part.float() + ranks @ update.up.float().T
                if update.rescaling is not None:
                    gains, shifts = update.rescaling
                    total = total * gains + shifts
                part.copy_(total)

    def copy_blocks(
        self,
        source: Sequence[LayerMemory],
        target: Sequence[LayerMemory],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        """See ``Kernels.copy_blocks``. One by one: a block may be copied onwards."""
        for part, other in counterparts(source, target):
            for origin, destination in pairs:
                other[destination].copy_(part[origin])


def _balance(spec: AttentionSpec, half: int) -> Tensor:
    """What queries are multiplied by and keys divided by: 1, unless their norms tell more."""
    norms = (spec.query_norm, spec.key_norm)
    query, key = (None if norm is None else norm.weight for norm in norms)
    if query is None or key is None or spec.shared:
        return torch.ones(1)
    return balance(query, key, half)


def _run(kv: LayerKV) -> int:
    """Numbers that are spread together, where values are a part of keys; else 0."""
    both = kv.dims[0] | kv.latent
    return both & -both if kv.latent else 0


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _store(key: Tensor, value: Tensor, kv: LayerKV, plan: ReferencePlan) -> None:
    """Put a step's new keys [T, Hkv, D] and values [T, Hkv, Dv] into the pool.

    Keys that are to be rounded are spread already.
    """
    if kv.value_scales is not None:
        value = spread(_wide(value))
    _put(key, kv.keys, kv.key_scales, plan, key_bytes)
    if not kv.latent:
        _put(value, kv.values, kv.value_scales, plan, value_bytes)


def _put(
    new: Tensor,
    pool: Tensor,
    scales: Tensor | None,
    plan: ReferencePlan,
    packed: Callable[[Tensor], Tensor],
) -> None:
    where = (plan.slots // plan.block_size, slice(None), plan.slots % plan.block_size)
    if scales is None:
        pool[where] = new.to(pool.dtype)
    elif pool.dtype == torch.uint8:
        codes, scales[where] = codes_of(new)
        pool[where] = packed(codes)
    else:
        numbers, scales[where] = whole_numbers(new)
        pool[where] = numbers.to(pool.dtype)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, D] with the pairs of each head turned; cos and sin are [T, R]."""
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*(part.to(x.dtype) for part in turned), rest), dim=-1)


def _attend_prefill(
    query: Tensor, sink_query: Tensor, kv: LayerKV, spec: AttentionSpec, prefill: Prefill
) -> Tensor:
    """query [Q, H, D] -> [Q, H, Dv], a slice of queries at a time."""
    end = prefill.start + len(query)
    oldest = _oldest_in_window(prefill.start, spec)
    sinks = _sinks_beyond_window(end - 1, spec)
    slots = torch.cat((prefill.sink_slots[:sinks], prefill.slots[oldest - prefill.first :]))
    keys, values = _gather(kv, slots[None], query.dtype)
    step = max(1, _SLICE_ELEMENTS // (query.shape[1] * len(slots)))
    outputs = []
    # Masks are made per slice: for the whole chunk they would be as large as one head's scores.
    for first in range(prefill.start, end, step):
        last = min(first + step, end)
        seen_from = _oldest_in_window(first, spec)
        q = torch.arange(first, last, device=query.device)[:, None]
        k = torch.arange(seen_from, last, device=query.device)
        visible = k <= q
        if spec.window is not None:
            oldest_seen = q // spec.window * spec.window if spec.by_chunks else q - spec.window + 1
            visible &= k >= oldest_seen
        visible = torch.cat((_sinks_visible(q, sinks, spec), visible), dim=1)
        columns = torch.cat((torch.arange(sinks), k - oldest + sinks))
        part = slice(first - prefill.start, last - prefill.start)
        rows = q[:, 0] - prefill.start + prefill.rows.start
        outputs.append(
            _attention(
                query[None, part],
                sink_query[None, part],
                keys[:, :, columns],
                values[:, :, columns],
                visible[None],
                spec,
                sinks,
                _added(prefill.bias, rows, sinks, k[None]),
            )
        )
    return torch.cat(outputs, dim=1)[0]


def _attend_decodes(
    query: Tensor, sink_query: Tensor, kv: LayerKV, spec: AttentionSpec, decodes: Decodes
) -> Tensor:
    """query [R, H, D] -> [R, H, Dv], a slice of sequences at a time."""
    longest = min(decodes.kept[-1], spec.window or decodes.kept[-1])
    sinks = _sinks_beyond_window(int(decodes.positions.max()), spec)
    width = (longest + sinks) * kv.keys.shape[1] * sum(kv.dims)
    step = max(1, _SLICE_ELEMENTS // width)
    outputs = []
    for first in range(0, len(query), step):
        part = slice(first, min(first + step, len(query)))
        columns = slice(-min(decodes.kept[part.stop - 1], longest), None)
        slots = torch.cat((decodes.sink_slots[part, :sinks], decodes.slots[part, columns]), dim=1)
        keys, values = _gather(kv, slots, query.dtype)
        newest = decodes.positions[part, None]
        seen = _sinks_visible(newest, sinks, spec)
        near = newest + torch.arange(columns.start + 1, 1, device=newest.device)
        visible = decodes.visible[part, columns]
        if spec.window is not None and spec.by_chunks:
            visible = visible & (near >= newest // spec.window * spec.window)
        visible = torch.cat((seen, visible), dim=1)[:, None]
        added = _added(decodes.bias, decodes.rows[part], sinks, near)
        both = query[part, None], sink_query[part, None]
        outputs.append(_attention(*both, keys, values, visible, spec, sinks, added))
    return torch.cat(outputs)[:, 0]


def _oldest_in_window(position: int, spec: AttentionSpec) -> int:
    if spec.window is None:
        return 0
    if spec.by_chunks:
        return position // spec.window * spec.window
    return max(0, position - spec.window + 1)


def _sinks_beyond_window(position: int, spec: AttentionSpec) -> int:
    """Sinks that the token at ``position``, or one before it, sees although its window does not."""
    return min(spec.sinks, _oldest_in_window(position, spec))


def _sinks_visible(q: Tensor, sinks: int, spec: AttentionSpec) -> Tensor:
    """q [Q, 1] -> [Q, sinks]: those that are not in the window, where they are seen anyway."""
    return torch.arange(sinks, device=q.device) <= q - (spec.window or 0)


def _added(bias: ColumnBias | None, rows: Tensor, sinks: int, near: Tensor) -> Tensor | None:
    """Numbers to add to the scores of these rows, for sinks and keys at ``near`` -> [R, C]."""
    if bias is None:
        return None
    far = torch.arange(sinks, device=near.device).expand(len(near), -1)
    return bias.of(rows, torch.cat((far, near), dim=1))


def _gather(kv: LayerKV, slots: Tensor, query_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """slots [R, C] -> keys [R, Hkv, C, D] and values [R, Hkv, C, Dv], ready to multiply."""
    places, dtype = _places(kv, slots), torch.promote_types(query_dtype, torch.float32)
    keys = _numbers(kv.keys, kv.key_scales, places, dtype, key_codes)
    if kv.latent:
        return keys, keys[..., -kv.latent :]
    return keys, _numbers(kv.values, kv.value_scales, places, dtype, value_codes)


def _places(kv: LayerKV, slots: Tensor) -> Tensor:
    """slots [R, C] -> rows of the layer's memory [R, Hkv, C]."""
    _, kv_heads, block_size, _ = kv.keys.shape
    heads = torch.arange(kv_heads, device=slots.device)[:, None]
    tiles = (slots // block_size)[:, None] * kv.block_rows + heads * block_size
    return tiles + (slots % block_size)[:, None]


def _numbers(
    pool: Tensor,
    scales: Tensor | None,
    places: Tensor,
    dtype: torch.dtype,
    codes: Callable[[Tensor], Tensor],
) -> Tensor:
    """What is in these rows of a layer's memory."""
    found = _in_rows(pool)[places]
    found = (levels_of(codes(found)) if pool.dtype == torch.uint8 else found).to(dtype)
    return found if scales is None else found * _in_rows(scales)[places][..., None]


def _in_rows(pool: Tensor) -> Tensor:
    """[B, Hkv, N, ...] -> [rows, ...]: the pool's memory, whatever a block's number stands for."""
    blocks, heads, tokens, *row = pool.shape
    width = pool.stride(2)
    count = (blocks - 1) * pool.stride(0) // width + heads * tokens
    return pool.as_strided((count, *row), pool.stride()[2:])


def _attention(
    query: Tensor,
    sink_query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    spec: AttentionSpec,
    sinks: int,
    added: Tensor | None,
) -> Tensor:
    """Softmax attention of padded sequences; the first ``sinks`` columns meet ``sink_query``.

    query [R, Q, H, D], keys [R, Hkv, C, D], values [R, Hkv, C, Dv], visible [R, Q, C] bool,
    added [R * Q, C] to scores -> [R, Q, H, Dv]. The H / Hkv query heads that share a key head make
    one product.
    """
    rows, queries, heads, _ = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads

    def grouped(x: Tensor) -> Tensor:  # [R, Hkv, group * Q, D]
        x = x.to(keys.dtype).reshape(rows, queries, kv_heads, group, -1)
        return x.permute(0, 2, 3, 1, 4).flatten(2, 3)

    scores = grouped(query) @ keys.transpose(2, 3)  # [R, Hkv, group * Q, C]
    if sinks:
        scores[..., :sinks] = grouped(sink_query) @ keys[:, :, :sinks].transpose(2, 3)
    scores *= spec.scale
    if spec.softcap is not None:
        scores = scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
    by_query = scores.view(rows, kv_heads, group, queries, -1)
    if added is not None:
        by_query += added.view(rows, 1, 1, queries, -1)
    by_query.masked_fill_(~visible[:, None, None], -torch.inf)
    if spec.sink_logits is not None:
        sink = spec.sink_logits.to(scores).view(kv_heads, group, 1, 1)
        sink = sink.expand(rows, -1, -1, queries, -1).flatten(2, 3)
        weights = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    output = (weights @ values).view(rows, kv_heads, group, queries, -1)
    return output.permute(0, 3, 1, 2, 4).reshape(rows, queries, heads, -1).to(query.dtype)
