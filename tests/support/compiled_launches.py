"""Compile what ``GPUKernels`` launches for GPUs that need not be there.

A program, since Triton decides on import whether it interprets. Prints for each launch, as JSON,
the family of the device, what was launched and the bytes of shared memory it takes.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from quire.kernels.gpu.kernels import GPUKernels
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    LaneTables,
    LayerKV,
    Norm,
    Rotation,
)

_TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int8: "i8",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int32: "i32",
    torch.int64: "i64",
}
_OPTIONS = ("num_warps", "num_stages")

Launch = tuple[JITFunction, dict[str, Any]]


def catch_launches(launches: list[Launch]) -> None:
    """From now on, launches are kept in the list in place of being carried out."""

    def run(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        launches.append((self, dict(zip(self.arg_names, arguments, strict=False)) | named))

    JITFunction.run = run


def compile_launch(launch: Launch, target: GPUTarget) -> int:
    """The bytes of shared memory that a program takes."""
    function, arguments = launch
    options = {name: arguments[name] for name in _OPTIONS if name in arguments}
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(function.params):
        name, value = parameter.name, arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[name] = "constexpr"
            constants[place,] = value
        elif isinstance(value, torch.Tensor):
            signature[name] = f"*{_TYPES[value.dtype]}"
            attributes[place,] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(function, signature, constants, attributes)
    compiled = triton.compile(source, target=target, options=options)
    return int(compiled.metadata.shared)


class Case(NamedTuple):
    capability: tuple[int, int]
    dtype: torch.dtype
    kv_dtype: torch.dtype
    dim: int
    windowed: bool  # with sinks and capped scores; else with normalised heads


CASES = (
    Case((9, 0), torch.bfloat16, torch.bfloat16, 128, False),
    Case((8, 0), torch.bfloat16, torch.bfloat16, 128, True),
    Case((8, 9), torch.bfloat16, torch.bfloat16, 256, False),
    Case((9, 0), torch.bfloat16, torch.float8_e4m3fn, 256, True),
    Case((8, 0), torch.float16, torch.int8, 80, False),
    Case((8, 9), torch.float32, torch.float32, 64, False),
)


def launch_attention(kernels: GPUKernels, case: Case) -> None:
    """For a mixed batch, of a layer with 32 heads that share 8."""
    dtype, kv_dtype, dim = case.dtype, case.kv_dtype, case.dim
    lengths = torch.tensor([5, 1000])
    lane = LaneTables(
        torch.zeros(6, dtype=torch.int64),
        torch.zeros(2, 63, dtype=torch.int64),
        torch.zeros(2, dtype=torch.int64),
    )
    batch = AttentionBatch(torch.zeros(6), (0, 5, 6), lengths, lengths, (lane,), 16)
    pool = torch.zeros(2, 8, 16, dim, dtype=kv_dtype)
    scales = None if kv_dtype == dtype else torch.zeros(2, 8, 16)
    query, key, value = (torch.zeros(6, heads, dim, dtype=dtype) for heads in (32, 8, 8))
    norm = Norm(dim, torch.zeros(dim, dtype=dtype), 1e-6)
    rotation = Rotation(torch.zeros(6, dim // 2), torch.zeros(6, dim // 2))
    spec = AttentionSpec(1.0, query_norm=norm, key_norm=norm)
    if case.windowed:
        spec = AttentionSpec(1.0, window=100, sinks=4, softcap=30.0)
    kv = LayerKV(pool, pool, 0, scales, scales)
    kernels.attend(query, key, value, kv, spec, kernels.plan(batch), rotation)
    kernels.copy_blocks(kv, kv, [(0, 1)])


def launch_others(kernels: GPUKernels, dtype: torch.dtype) -> None:
    x = torch.zeros(6, 4096, dtype=dtype)
    kernels.add_norm(x, x, Norm(4096, torch.zeros(4096, dtype=dtype), 1e-6))
    for name in ("silu", "gelu", "gelu_new", "relu"):
        kernels.activate(x, name, gated=True)


def main() -> None:
    launches: list[Launch] = []
    catch_launches(launches)
    for case in CASES:
        launches.clear()
        kernels = GPUKernels(case.capability, 132)
        launch_attention(kernels, case)
        if case is CASES[0]:
            launch_others(kernels, case.dtype)
        major, minor = case.capability
        for launch in launches:
            shared = compile_launch(launch, GPUTarget("cuda", 10 * major + minor, 32))
            found = {
                "capability": case.capability,
                "program": launch[0].__name__,
                "shared": shared,
            }
            print(json.dumps(found))


if __name__ == "__main__":
    main()
