"""A step's batch as C++ sees it, made once for all layers."""

from __future__ import annotations

import math
from copy import copy

import torch
from torch import Tensor

from quire.kernels import _native
from quire.kernels.ops import AttentionBatch, Rotation


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
            kept = [one.contiguous() for one in batch.states if one is not None]
            self._tensors += kept
            self.native.set_state_slots(kept[0].data_ptr())
            if len(kept) > 1:
                self.native.set_drafts(kept[1].data_ptr(), kept[2].data_ptr())
        for ranges, adapter, _ in batch.adapted:
            self.native.add_adapted(adapter.native, ranges)
        self._rotations: dict[int, tuple[Rotation, _native.Rotation]] = {}

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
            known = self._rotations[id(rotation)] = rotation, native_rotation(rotation)
        return known[1]


def native_rotation(rotation: Rotation) -> _native.Rotation:
    cos, sin, sink_cos, sink_sin, scale = rotation
    sinks = (0, 0)
    if sink_cos is not None and sink_sin is not None:
        sinks = sink_cos.data_ptr(), sink_sin.data_ptr()
    factor = 0 if scale is None else scale.data_ptr()
    return _native.Rotation(cos.data_ptr(), sin.data_ptr(), *sinks, factor, cos.shape[1])
