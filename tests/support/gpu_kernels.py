"""The GPU kernels on tensors in main memory: in Triton's interpreter, or by way of a GPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from quire.kernels.gpu.support import DTYPES
from quire.kernels.layer_memory import LayerKV, LayerMemory, LayerState
from quire.kernels.mlps import Activation
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    Kernels,
    KVGroupTables,
    Norm,
    Rotation,
    StateSlots,
)
from quire.kernels.recurrence import RecurrentSpec
from support.memory_watch import watch_interpreter

__all__ = ["DTYPES", "TRITON", "ByWayOfTheGPU", "triton_kernels"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# A parameter of tests over kernels, where they can run.
TRITON = ("triton",) if find_spec("triton") and (INTERPRETED or torch.cuda.is_available()) else ()


def triton_kernels() -> Kernels:
    """Cut so fine that the short sequences of tests are split, and their parts merged."""
    from quire.kernels.gpu.kernels import GPUKernels
    from quire.kernels.gpu.tiles import Tile, Tiles

    tiles = Tiles(Tile(16, 16, 4, 2, 4), Tile(32, 32, 4, 2, 4), 32)
    if INTERPRETED:
        _mend_the_interpreter()
        return GPUKernels((9, 0), 16, tiles)
    traits = torch.cuda.get_device_properties()
    return ByWayOfTheGPU(GPUKernels((traits.major, traits.minor), 16, tiles))


class ByWayOfTheGPU:
    """``Kernels`` that carry everything to the GPU and back."""

    draws = True

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def plan(self, batch: AttentionBatch) -> Any:
        kv_groups = tuple(
            KVGroupTables(*(table.cuda() for table in kv_group[:3]), kv_group.num_sink_blocks)
            for kv_group in batch.kv_groups
        )
        moved = replace(
            batch,
            positions=batch.positions.cuda(),
            context_lens=batch.context_lens.cuda(),
            output_starts=batch.output_starts.cuda(),
            kv_groups=kv_groups,
            states=None if batch.states is None else StateSlots(*map(_on_gpu, batch.states)),
        )
        return self._kernels.plan(moved)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv: LayerKV,
        spec: AttentionSpec,
        plan: Any,
        rotation: Rotation | None = None,
    ) -> Tensor:
        storages = _Storages()
        moved = storages.moved(kv)
        out = self._kernels.attend(
            query.cuda(),
            key.cuda(),
            value.cuda(),
            moved,
            replace(
                spec,
                sink_logits=_on_gpu(spec.sink_logits),
                query_norm=_norm_on_gpu(spec.query_norm),
                key_norm=_norm_on_gpu(spec.key_norm),
            ),
            plan,
            None if rotation is None else Rotation(*map(_on_gpu, rotation)),
        )
        storages.copy_back()
        return out.cpu()

    def recur(self, x: Tensor, state: LayerState, spec: RecurrentSpec, plan: Any) -> Tensor:
        moved = LayerState(*(part.cuda() for part in state))
        out = self._kernels.recur(x.cuda(), moved, everything_on_gpu(spec), plan)
        for mine, theirs in zip(moved, state, strict=True):
            theirs.copy_(mine)
        return out.cpu()

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return self._kernels.norm(x.cuda(), _norm_on_gpu(norm) or norm).cpu()

    def add_norm(self, x: Tensor, delta: Tensor, norm: Norm) -> Tensor:
        total = x.cuda()
        out = self._kernels.add_norm(total, delta.cuda(), _norm_on_gpu(norm) or norm)
        x.copy_(total)
        return out.cpu()

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        return self._kernels.activate(x.cuda(), activation).cpu()

    def argmax(self, x: Tensor) -> Tensor:
        return self._kernels.argmax(x.cuda()).cpu()

    def draw(self, x: Tensor, filters: Tensor | None) -> tuple[Tensor, Tensor]:
        tokens, peaks = self._kernels.draw(x.cuda(), _on_gpu(filters))
        return tokens.cpu(), peaks.cpu()

    def copy_blocks(
        self,
        source: Sequence[LayerMemory],
        target: Sequence[LayerMemory],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        pools, others = (
            [layer for layer in layers if isinstance(layer, LayerKV)] for layers in (source, target)
        )
        storages = _Storages()
        origin, destination = (
            [storages.moved(layer) for layer in layers] for layers in (pools, others)
        )
        self._kernels.copy_blocks(origin, destination, pairs)
        storages.copy_back()


class _Storages:
    """What tensors lie in, on the GPU: they keep their strides, and may share what they lie in."""

    def __init__(self) -> None:
        self._moved: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def moved(self, kv: LayerKV) -> LayerKV:
        return kv._replace(
            keys=self._tensor(kv.keys),
            values=self._tensor(kv.values),
            key_scales=None if kv.key_scales is None else self._tensor(kv.key_scales),
            value_scales=None if kv.value_scales is None else self._tensor(kv.value_scales),
        )

    def _tensor(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), tensor.dtype
        if key not in self._moved:
            whole = tensor.new_empty(0).set_(storage)
            self._moved[key] = whole, whole.cuda()
        place = tensor.size(), tensor.stride(), tensor.storage_offset()
        return self._moved[key][1].as_strided(*place)

    def copy_back(self) -> None:
        for here, there in self._moved.values():
            here.copy_(there)


def _mend_the_interpreter() -> None:
    """Let it do to bfloat16 what GPUs do, and say nothing of infinities.

    As it comes, it cuts numbers off where they should be rounded, and multiplies matrices as if
    their bits were integers.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.interpreter_builder
    if "create_dot" in vars(builder):
        return
    cast, convert, multiply = builder.cast_impl, builder.create_fp_to_fp, builder.create_dot

    narrow = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn}

    def rounded(source: Any, dtype: Any, *rest: Any) -> Any:
        known = narrow.get(dtype.scalar)
        if source.dtype.scalar != tl.float32 or known is None:
            return (convert if rest else cast)(source, dtype, *rest)
        bits = torch.from_numpy(np.array(source.data)).to(known)
        raw = bits.view(torch.int16 if known.itemsize == 2 else torch.uint8).numpy()
        return interpreter.TensorHandle(raw.view(f"u{known.itemsize}"), dtype.scalar)

    def create_dot(a: Any, b: Any, *rest: Any) -> Any:
        wide = (cast(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return multiply(*wide, *rest)

    watch_interpreter()
    builder.cast_impl = builder.create_fp_to_fp = rounded
    builder.create_dot = create_dot
    run = interpreter.GridExecutor.__call__

    def quietly(*arguments: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN")
            return run(*arguments, **named)

    interpreter.GridExecutor.__call__ = quietly


def everything_on_gpu(spec: Any) -> Any:
    """The same with all tensors of its fields, and of theirs, on the GPU."""
    if isinstance(spec, Tensor):
        return spec.cuda()
    if isinstance(spec, tuple) and hasattr(spec, "_fields"):
        return type(spec)(*map(everything_on_gpu, spec))
    if is_dataclass(spec) and not isinstance(spec, type):
        moved = {one.name: everything_on_gpu(getattr(spec, one.name)) for one in fields(spec)}
        return replace(spec, **moved)
    return spec


def _on_gpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cuda()


def _norm_on_gpu(norm: Norm | None) -> Norm | None:
    if norm is None:
        return None
    return norm._replace(weight=_on_gpu(norm.weight), bias=_on_gpu(norm.bias))
