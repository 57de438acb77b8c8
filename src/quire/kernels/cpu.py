"""``Kernels`` in C++ (csrc/), for the vector instructions that the processor has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

# First, so that the module below finds torch's OpenMP loaded and shares its threads.
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.kernels import _native
from quire.kernels.adapters import AdaptedRows, PackedUpdates, Site, Updates
from quire.kernels.layer_memory import LayerKV, LayerMemory, LayerState, OwnMemory, counterparts
from quire.kernels.mlps import Activation, Experts
from quire.kernels.native import (
    CODES,
    activation_numbers,
    native_experts,
    native_layer,
    native_memory,
    native_norm,
    native_norms,
    native_part,
    native_recurrence,
    native_streams,
    width_of,
)
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    Continuing,
    DecoderStack,
    Few,
    Fused,
    IndexSpec,
    Kernels,
    Norm,
    Rotation,
    SelfAttention,
    StateSlots,
    Texts,
)
from quire.kernels.plain import mixed
from quire.kernels.recurrence import RecurrentSpec
from quire.kernels.shared_ranks import SharedMemoryRanks
from quire.kernels.streams import StreamCorrection, StreamPrediction

if not _native.usable():  # so that there are no kernels here, for whoever asks
    _reasons = "; ".join(f"{name}: {why}" for name, why in _native.refusals().items())
    raise ImportError(f"they were compiled for another processor ({_reasons})")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of activations. The cache may be of 8 and 4 bits as well."""


def instruction_sets() -> list[str]:
    """The instruction sets that this machine can run and the kernels were built for, best first."""
    return _native.usable()


def all_builds() -> list[str]:
    """The instruction sets that the kernels were built for, best first."""
    return _native.builds()


def refusals() -> dict[str, str]:
    """The instruction sets that cannot run here, with the reason."""
    return _native.refusals()


class CPUPlan:
    """A step's batch as C++ sees it; keeps the tensors alive that it points to."""

    def __init__(self, batch: AttentionBatch) -> None:
        self.threads = torch.get_num_threads()
        self.batch = batch
        self._tensors = [batch.context_lens]
        self.native = _native.Plan(
            batch.query_starts, batch.context_lens.data_ptr(), batch.block_size, self.threads
        )
        for kv_group in batch.kv_groups:
            slots, tables = kv_group.slots.contiguous(), kv_group.block_tables.contiguous()
            dropped = kv_group.num_dropped.contiguous()
            self._tensors += (slots, tables, dropped)
            self.native.add_kv_group(
                slots.data_ptr(),
                tables.data_ptr(),
                tables.shape[1],
                dropped.data_ptr(),
                kv_group.num_sink_blocks,
            )
        if batch.bias is not None:
            before = batch.bias.before.contiguous()
            bias = (batch.bias.bias.double() / math.log(2)).float().contiguous()
            self._tensors += (before, bias)
            self.native.set_bias(before.data_ptr(), bias.data_ptr(), bias.shape[1])
        if batch.states is not None:
            self._set_states(batch.states)
        for ranges, adapter, _ in batch.adapted:
            self.native.add_adapted(adapter.native, ranges)
        self._rotations: dict[int, tuple[Rotation, _native.Rotation]] = {}

    def _set_states(self, states: StateSlots) -> None:
        slots, confirmed, drafts, left = (
            None if one is None else one.contiguous() for one in states
        )
        assert slots is not None
        self._tensors.append(slots)
        self.native.set_state_slots(slots.data_ptr())
        if confirmed is not None and drafts is not None:
            self._tensors += (confirmed, drafts)
            self.native.set_drafts(confirmed.data_ptr(), drafts.data_ptr())
        if left is not None:
            self._tensors.append(left)
            self.native.set_left(left.data_ptr())

    def among(self, kv_group: int, chosen: Tensor, counts: Tensor) -> CPUPlan:
        """The plan of the same tokens, each of which attends to what is in the slots ``chosen``
        [T, most], so many of each row.
        """
        plan, slots = copy(self), self.batch.kv_groups[kv_group].slots.contiguous()
        dropped = torch.zeros_like(counts)
        plan._tensors = [chosen, counts, slots, dropped]
        starts, size = range(len(counts) + 1), self.batch.block_size
        plan.native = _native.Plan(starts, counts.data_ptr(), size, self.threads)
        for _ in range(kv_group + 1):
            plan.native.add_chosen(
                slots.data_ptr(), chosen.data_ptr(), chosen.shape[1], dropped.data_ptr()
            )
        return plan

    def rotation(self, rotation: Rotation) -> _native.Rotation:
        """The rotation as C++ sees it, made once for all layers."""
        known = self._rotations.get(id(rotation))
        if known is None:
            known = self._rotations[id(rotation)] = rotation, _rotation(rotation)
        return known[1]


def _rotation(rotation: Rotation) -> _native.Rotation:
    cos, sin, sink_cos, sink_sin, scale = rotation
    sinks = (0, 0)
    if sink_cos is not None and sink_sin is not None:
        sinks = sink_cos.data_ptr(), sink_sin.data_ptr()
    factor = 0 if scale is None else scale.data_ptr()
    return _native.Rotation(cos.data_ptr(), sin.data_ptr(), *sinks, factor, cos.shape[1])


class _Decoder(NamedTuple):
    """A decoder whose layers C++ runs as one, or None if it cannot."""

    decoder: DecoderStack
    kv: Sequence[LayerMemory]
    fused: Fused | None
    native: _native.Decoder


class _Layer(NamedTuple):
    """A layer as C++ sees it."""

    kv: LayerKV
    spec: AttentionSpec
    dtype: torch.dtype
    native: _native.Layer


class CPUKernels(Kernels):
    """``Kernels`` for tensors in main memory, of the types ``DTYPES``.

    ``instruction_set`` is one of ``instruction_sets()``; by default the best of them. A decoder
    whose weights are all packed runs in a single call. Layers, norms and decoders are remembered
    for as long as the kernels live. For one thread at a time.
    """

    def __init__(self, instruction_set: str = "") -> None:
        """ValueError if the machine lacks the instruction set."""
        self._native = _native.Kernels(instruction_set)
        self._layers: dict[int, _Layer] = {}
        self._norms: dict[int, tuple[Norm, _native.Norm]] = {}
        self._recurrences: dict[int, tuple[RecurrentSpec, _native.Recurrence]] = {}
        self._experts: dict[int, tuple[Experts, _native.Experts | None]] = {}
        self._streams: dict[int, tuple[StreamPrediction | StreamCorrection, _native.Streams]] = {}
        self._decoders: dict[int, _Decoder] = {}

    @property
    def instruction_set(self) -> str:
        """The one in use."""
        return self._native.name

    def plan(self, batch: AttentionBatch) -> CPUPlan:
        return CPUPlan(batch)

    def attend(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv: LayerKV,
        spec: AttentionSpec,
        plan: CPUPlan,
        rotation: Rotation | None = None,
    ) -> Tensor:
        layer = self._layers.get(id(kv))
        if layer is None or layer.spec is not spec or layer.kv is not kv:
            native = native_layer(kv, spec, query.dtype, query.shape[1])
            layer = self._layers[id(kv)] = _Layer(kv, spec, query.dtype, native)
        query, *new = (_rows(x) for x in (query, key, value) if x is not None)
        tokens, heads, _ = query.shape
        out = query.new_empty((tokens, heads, kv.dims[1]))
        stored = [(x.data_ptr(), x.stride(0)) for x in new] or [(0, 0)] * 2
        self._native.attend(
            plan.native,
            layer.native,
            query.data_ptr(),
            query.stride(0),
            *stored[0],
            *stored[1],
            out.data_ptr(),
            None if rotation is None else plan.rotation(rotation),
        )
        return out

    def choose(
        self,
        query: Tensor,
        key: Tensor,
        weights: Tensor,
        kv: LayerKV,
        spec: IndexSpec,
        plan: CPUPlan,
        rotation: Rotation | None = None,
    ) -> CPUPlan:
        assert kv.index_keys is not None, "the layer has an index"
        query, key, weights = _rows(query), key.contiguous(), weights.contiguous()
        most = min(spec.most, int(plan.batch.context_lens.max()))
        chosen = torch.empty((len(query), most), dtype=torch.int64)
        counts = torch.empty(len(query), dtype=torch.int64)
        self._native.choose(
            plan.native,
            kv.kv_group,
            spec.heads,
            spec.key_norm.width,
            spec.most,
            self._native_norm(spec.key_norm),
            kv.index_keys.stride(0) // kv.index_keys.shape[3],
            CODES[query.dtype],
            CODES[kv.index_keys.dtype],
            kv.index_keys.data_ptr(),
            0 if kv.index_scales is None else kv.index_scales.data_ptr(),
            None if rotation is None else plan.rotation(rotation),
            query.data_ptr(),
            query.stride(0),
            key.data_ptr(),
            key.stride(0),
            weights.data_ptr(),
            chosen.data_ptr(),
            counts.data_ptr(),
            most,
        )
        return plan.among(kv.kv_group, chosen, counts)

    def recur(self, x: Tensor, state: LayerState, spec: RecurrentSpec, plan: CPUPlan) -> Tensor:
        known = self._recurrences.get(id(spec))
        if known is None:
            known = self._recurrences[id(spec)] = (spec, native_recurrence(spec))
        x = x if x.stride(1) == 1 else x.contiguous()
        out = x.new_empty((len(x), spec.outputs))
        self._native.recur(
            plan.native,
            known[1],
            native_memory(state),
            x.data_ptr(),
            x.stride(0),
            CODES[x.dtype],
            out.data_ptr(),
        )
        return out

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return self._norm(x, None, norm)

    def add_norm(self, x: Tensor, delta: Tensor, norm: Norm) -> Tensor:
        return self._norm(x, delta, norm)

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        rows, width = x.shape
        width = width // 2 if activation.gated else width
        out = x.new_empty((rows, width))
        self._native.activate(
            x.data_ptr(),
            x.stride(0),
            out.data_ptr(),
            rows,
            width,
            CODES[x.dtype],
            *activation_numbers(activation),
            torch.get_num_threads(),
        )
        return out

    def gate(self, x: Tensor, gates: Tensor) -> None:
        self._native.gate(
            x.data_ptr(),
            x.stride(0),
            gates.data_ptr(),
            gates.stride(0),
            *(len(x), x.shape[1], x.shape[1] // gates.shape[1]),
            CODES[x.dtype],
            torch.get_num_threads(),
        )

    def predict(self, streams: Tensor, prediction: StreamPrediction) -> Tensor:
        x = streams.new_empty((len(streams), streams.shape[2]))
        self._native.predict(*self._stream_rows(streams, x, prediction))
        return x

    def correct(self, streams: Tensor, x: Tensor, correction: StreamCorrection) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        self._native.correct(*self._stream_rows(streams, x, correction))
        return x

    def _stream_rows(
        self, streams: Tensor, x: Tensor, mixing: StreamPrediction | StreamCorrection
    ) -> tuple[_native.Streams, int, int, int, int, int, int]:
        assert streams.is_contiguous(), "they are changed in place"
        known = self._streams.get(id(mixing))
        if known is None:
            known = self._streams[id(mixing)] = (mixing, native_streams(mixing))
        rows, threads = (len(x), x.shape[1]), torch.get_num_threads()
        return known[1], streams.data_ptr(), x.data_ptr(), *rows, CODES[x.dtype], threads

    def mix(self, x: Tensor, experts: Experts, routed: Tensor | None = None) -> Tensor:
        known = self._experts.get(id(experts))
        if known is None or known[0] is not experts:
            known = self._experts[id(experts)] = (experts, native_experts(experts))
        native = known[1]
        if native is None:
            return mixed(x, experts, self, routed)
        x = x.contiguous()
        routed = x if routed is None else routed.contiguous()
        out, threads = torch.empty_like(x), torch.get_num_threads()
        self._native.mix(
            native,
            x.data_ptr(),
            routed.data_ptr(),
            out.data_ptr(),
            len(x),
            CODES[x.dtype],
            threads,
        )
        return out

    def argmax(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        x = x if x.stride(1) == 1 else x.contiguous()
        out = torch.empty(rows, dtype=torch.int64)
        self._native.argmax(
            x.data_ptr(),
            x.stride(0),
            out.data_ptr(),
            rows,
            width,
            CODES[x.dtype],
            torch.get_num_threads(),
        )
        return out

    def choose_of_few(
        self,
        x: Tensor,
        masks: NDArray[np.uint32],
        rows: Sequence[int],
        temperature: Sequence[float],
        uniform: Sequence[float],
    ) -> Few | None:
        x, count = x if x.stride(1) == 1 else x.contiguous(), len(masks)
        masks, numbers = np.ascontiguousarray(masks), np.array(rows, dtype=np.int32)
        heat, aims = np.array(temperature, dtype=np.float64), np.array(uniform, dtype=np.float64)
        few = Few(torch.empty(count, dtype=torch.int64), torch.empty(count))
        _native.choose_of_few(
            x.data_ptr(),
            x.stride(0),
            masks.ctypes.data,
            masks.shape[1],
            numbers.ctypes.data,
            heat.ctypes.data,
            aims.ctypes.data,
            count,
            x.shape[1],
            few.chosen.data_ptr(),
            few.peaks.data_ptr(),
            torch.get_num_threads(),
        )
        return few

    def allow(self, x: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
        if not len(masks):
            return x.clone()
        x, masks = x if x.stride(1) == 1 else x.contiguous(), masks.contiguous()
        out = torch.empty(x.shape, dtype=torch.float32)
        numbers = torch.full((len(x),), -1, dtype=torch.int32)
        numbers[rows] = torch.arange(len(masks), dtype=torch.int32)
        _native.mask(
            x.data_ptr(),
            x.stride(0),
            masks.data_ptr(),
            masks.shape[1],
            numbers.data_ptr(),
            out.data_ptr(),
            len(x),
            x.shape[1],
            torch.get_num_threads(),
        )
        return out

    def keep_adapter(self, updates: Updates, num_layers: int, dtype: torch.dtype) -> PackedUpdates:
        return PackedUpdates(_native.Adapter(num_layers), updates, dtype)

    def adapt(
        self, adapted: Sequence[AdaptedRows], layer: int, site: Site, x: Tensor, out: Tensor
    ) -> None:
        self._native.adapt(
            [(adapter.native, ranges) for ranges, adapter, _ in adapted],
            len(Site) * layer + site,
            x.data_ptr(),
            x.stride(0),
            out.data_ptr(),
            out.stride(0),
            CODES[x.dtype],
            torch.get_num_threads(),
        )

    def fuse(self, decoder: DecoderStack, kv: Sequence[LayerMemory]) -> Fused | None:
        known = self._decoders.get(id(decoder))
        if known is None or known.decoder is not decoder or known.kv is not kv:
            native = _native.Decoder(CODES[decoder.dtype], width_of(decoder))
            fused = _fuse(self._native, native, decoder, kv)
            known = self._decoders[id(decoder)] = _Decoder(decoder, kv, fused, native)
        return known.fused

    def go_on(
        self,
        decoder: DecoderStack,
        kv: Sequence[LayerMemory],
        texts: Texts,
        rotations: Sequence[Rotation],
        vocabulary: Continuing,
    ) -> Tensor | None:
        if self.fuse(decoder, kv) is None:
            return None
        native, embedding = self._decoders[id(decoder)].native, vocabulary.embedding
        plain = isinstance(embedding, Tensor)
        out = torch.empty((texts.counts[0], len(texts.counts)), dtype=torch.int64)
        self._native.go_on(
            native,
            None if plain else embedding.native,
            embedding.data_ptr() if plain else 0,
            vocabulary.head.native,
            vocabulary.size,
            len(texts.counts),
            texts.num_given,
            texts.numbers.data_ptr(),
            texts.block_size,
            texts.kv_groups,
            texts.has_states,
            [_rotation(rotation) for rotation in rotations],
            torch.get_num_threads(),
            out.data_ptr(),
        )
        return out

    def copy_blocks(
        self,
        source: Sequence[LayerMemory],
        target: Sequence[LayerMemory],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        pools = [
            (
                part.data_ptr(),
                other.data_ptr(),
                part.stride(0) * part.itemsize,
                other.stride(0) * other.itemsize,
                part.nbytes // len(part),
            )
            for part, other in counterparts(source, target)
        ]
        _native.copy_blocks(pools, pairs, torch.get_num_threads())

    def _native_norm(self, norm: Norm) -> _native.Norm:
        known = self._norms.get(id(norm))
        if known is None:
            known = self._norms[id(norm)] = (norm, native_norm(norm))
        return known[1]

    def _norm(self, x: Tensor, delta: Tensor | None, norm: Norm) -> Tensor:
        rows, width = x.shape
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        data, stride = x.data_ptr(), x.stride(0)
        self._native.norm(
            self._native_norm(norm),
            data,
            stride,
            0 if delta is None else delta.data_ptr(),
            0 if delta is None else delta.stride(0),
            0 if delta is None else data,
            out.data_ptr(),
            rows,
            width,
            CODES[x.dtype],
            torch.get_num_threads(),
        )
        return out


def _rows(x: Tensor) -> Tensor:
    """x [T, heads, D] with contiguous tokens."""
    _, heads, dim = x.stride()
    return x if dim == 1 and heads == x.shape[2] else x.contiguous()


def _fuse(
    kernels: _native.Kernels,
    native: _native.Decoder,
    decoder: DecoderStack,
    kv: Sequence[LayerMemory],
) -> Fused | None:
    """Fill ``native`` with the decoder. None: a weight is not packed, or ranks are not reached from
    C++.
    """
    if decoder.ranks is not None:
        over_all_heads = any(
            isinstance(layer.mixer, SelfAttention) and layer.mixer.query_norm
            for layer in decoder.layers
        )
        streams = any(layer.streams is not None for layer in decoder.layers)
        if over_all_heads or streams or not isinstance(decoder.ranks, SharedMemoryRanks):
            return None
        native.add_up_over(decoder.ranks.native)
    memory = OwnMemory(kv)
    for layer in decoder.layers:
        native.add_layer(
            native_norms(layer.mixer_norms), native_norms(layer.mlp_norms), layer.parallel
        )
        for part, put in ((layer.mixer, native.set_mixer), (layer.mlp, native.set_mlp)):
            if part is None:
                continue
            made = native_part(part, memory, decoder.dtype)
            if made is None:
                return None
            put(made)
        if layer.streams is not None:
            put_streams = (
                native.predict if isinstance(layer.streams, StreamPrediction) else native.correct
            )
            put_streams(native_streams(layer.streams))
    if decoder.final_norm is not None:
        native.end(native_norm(decoder.final_norm))

    def fused(
        x: Tensor, plan: CPUPlan, rotations: Sequence[Rotation], given: Tensor | None
    ) -> Tensor:
        x = x.contiguous()
        streams = x if x.dim() == 3 else None
        x = x if streams is None else x.new_empty((len(x), x.shape[2]))
        out = torch.empty_like(x)
        turns = list(map(plan.rotation, rotations))
        beside = (0, 0) if given is None else (given.data_ptr(), given.stride(0))
        apart = 0 if streams is None else streams.data_ptr()
        kernels.run(native, plan.native, x.data_ptr(), out.data_ptr(), turns, *beside, apart)
        if streams is not None:
            return streams
        return x if decoder.final_norm is None else out

    return fused
