"""What the GPU kernels are compiled to, for GPUs that need not be there.

    python benchmarks/gpu_compiled.py                  # attention, a table
    python benchmarks/gpu_compiled.py --device A100    # for one of H100 (and H200), A100, L4
    python benchmarks/gpu_compiled.py --json           # every launch, a line each

A program's registers and shared memory bound how many of them a processor runs at once, and with
the rounds of keys and values that are fetched ahead how many bytes are under way; what it spills
goes through memory. Needs Triton, whose compiler brings the assembler and disassembler of CUDA.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime.jit import JITFunction

from quire.kernels.gpu.kernels import GPUKernels
from quire.kernels.layer_memory import LayerKV, LayerState
from quire.kernels.mlps import Activation, Experts, Routing
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    KVGroupTables,
    Norm,
    Rotation,
    StateSlots,
)
from quire.kernels.recurrence import (
    Convolution,
    GatedConvolution,
    OutputGate,
    Recurrence,
    RecurrentSpec,
    StepRange,
)
from quire.models.linear import PlainLinear

_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int8: "i8",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
_OPTIONS = ("num_warps", "num_stages")
_HEADS, _KV_HEADS = 32, 8

Launch = tuple[JITFunction, dict[str, Any]]


class Processor(NamedTuple):
    """A streaming multiprocessor (CUDA programming guide, "Compute Capabilities")."""

    name: str
    shared: int  # bytes, for all programs that run at once
    warps: int
    registers: int = 65_536


PROCESSORS = {
    (9, 0): Processor("H100", 233_472, 64),
    (8, 0): Processor("A100", 167_936, 64),
    (8, 9): Processor("L4", 102_400, 48),
}


class Case(NamedTuple):
    capability: tuple[int, int]
    dtype: torch.dtype
    kv_dtype: torch.dtype
    dim: int
    windowed: bool = False  # with sinks and capped scores; else with normalised heads
    value_dim: int = 0  # 0: as many as a key has


def cases() -> Iterator[Case]:
    """What is compiled: every device, type and table of sizes."""
    wide, half, tiny = torch.float32, torch.bfloat16, torch.float8_e4m3fn
    for capability in PROCESSORS:
        for dim in (64, 128, 256):
            yield Case(capability, half, half, dim)
        yield Case(capability, half, torch.int8, 128)
    yield Case((9, 0), half, tiny, 128)
    yield Case((8, 9), half, tiny, 256, True)
    yield Case((9, 0), half, half, 128, True)
    yield Case((8, 0), torch.float16, torch.float16, 80)
    yield Case((8, 9), half, half, 96, value_dim=64)
    for dim in (64, 128, 256):
        yield Case((8, 9), wide, wide, dim)


def catch_launches(launches: list[Launch]) -> None:
    """From now on, launches are kept in the list in place of being carried out."""

    def run(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        launches.append((self, dict(zip(self.arg_names, arguments, strict=False)) | named))

    JITFunction.run = run


def launch_attention(kernels: GPUKernels, case: Case) -> None:
    """For a mixed batch, of a layer with 32 heads that share 8."""
    dtype, kv_dtype, dim = case.dtype, case.kv_dtype, case.dim
    lengths = torch.tensor([5, 1000])
    kv_group = KVGroupTables(
        torch.zeros(6, dtype=torch.int64),
        torch.zeros(2, 63, dtype=torch.int64),
        torch.zeros(2, dtype=torch.int64),
    )
    batch = AttentionBatch(torch.zeros(6), (0, 5, 6), lengths, lengths, (kv_group,), 16)
    value_dim = case.value_dim or dim
    keys, values = (torch.zeros(2, _KV_HEADS, 16, d, dtype=kv_dtype) for d in (dim, value_dim))
    scales = None if kv_dtype == dtype else torch.zeros(2, _KV_HEADS, 16)
    query, key, value = (
        torch.zeros(6, heads, d, dtype=dtype)
        for heads, d in ((_HEADS, dim), (_KV_HEADS, dim), (_KV_HEADS, value_dim))
    )
    norm = Norm(dim, torch.zeros(dim, dtype=dtype), 1e-6)
    rotation = Rotation(torch.zeros(6, dim // 2), torch.zeros(6, dim // 2))
    spec = AttentionSpec(1.0, query_norm=norm, key_norm=norm)
    if case.windowed:
        spec = AttentionSpec(1.0, window=100, sinks=4, softcap=30.0)
    kv = LayerKV(keys, values, 0, scales, scales)
    kernels.attend(query, key, value, kv, spec, kernels.plan(batch), rotation)
    kernels.copy_blocks([kv], [kv], [(0, 1)])


def launch_others(kernels: GPUKernels, dtype: torch.dtype) -> None:
    x = torch.zeros(6, 4096, dtype=dtype)
    kernels.add_norm(x, x, Norm(4096, torch.zeros(4096, dtype=dtype), 1e-6))
    for name in ("silu", "gelu", "gelu_new", "relu"):
        kernels.activate(x, Activation(name, gated=True))
    kernels.draw(x.float(), None)
    kernels.draw(x.float(), torch.zeros(6, 5, dtype=torch.float64))


def recurrences() -> Iterator[RecurrentSpec]:
    """Layers as Qwen3.5's (heads that share keys as its larger ones), Kimi's, Mamba's, LFM2's."""

    def taps(channels: int, bias: bool = False) -> Convolution:
        return Convolution(torch.zeros(4, channels), torch.zeros(channels) if bias else None)

    of_head = OutputGate(torch.zeros(32 * 128), 128, 1e-6, False)
    heads, each = torch.zeros(32), torch.zeros(32 * 128)
    yield Recurrence(32, 16, 128, 128, taps(64 * 128), heads, heads, of_head, True)
    yield Recurrence(32, 32, 128, 128, taps(96 * 128), heads, each, of_head, True, True)
    whole = OutputGate(torch.zeros(32 * 64), 32 * 64, 1e-5, True)
    skip, steps = torch.zeros(32), StepRange(1.0, 0.0, 1.0)
    values = taps(2 * 256 + 32 * 64, True)
    yield Recurrence(32, 1, 256, 64, values, heads, heads, whole, False, skip=skip, steps=steps)
    yield GatedConvolution(taps(2048))


def launch_recurrences(kernels: GPUKernels, dtype: torch.dtype) -> None:
    """Of a step without drafts, and of the first layer with some."""
    lengths = torch.tensor([5, 1000])
    counts = torch.zeros(2, dtype=torch.int64)
    for number, spec in enumerate(recurrences()):
        channels, kept = spec.convolution.kept
        for most in (0,) if number else (0, 5):
            states = StateSlots(counts, *((counts, counts) if most else ()))
            batch = AttentionBatch(
                torch.zeros(6), (0, 5, 6), lengths, lengths, (), 16, states=states
            )
            state = LayerState(
                torch.zeros(2, channels, kept),
                torch.zeros(2, *(spec.state or (0,))),
                torch.zeros(2, most, spec.columns),
            )
            x = torch.zeros(6, spec.columns, dtype=dtype)
            kernels.recur(x, state, spec, kernels.plan(batch))


def launch_experts(kernels: GPUKernels, dtype: torch.dtype) -> None:
    """Of rows that are so many for each of eight experts that every table's sizes are met."""
    width, inner, many = 2048, 768, 8

    def stack(outputs: int, inputs: int) -> tuple[PlainLinear, ...]:
        return tuple(map(PlainLinear, torch.zeros(many, outputs, inputs, dtype=dtype)))

    router = PlainLinear(torch.zeros(many, width, dtype=dtype))
    plain = Experts(
        router, stack(inner, width), stack(width, inner), Activation("relu2"), Routing(1, True)
    )
    gated = replace(plain, up=stack(2 * inner, width), activation=Activation("silu", True))
    for rows in (1, 9, 70, 200, 2100):
        for experts in (plain, gated):
            kernels.mix(torch.zeros(rows, width, dtype=dtype), experts)


def compile_launch(launch: Launch, capability: tuple[int, int]) -> CompiledKernel:
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
            if not parameter.do_not_specialize_on_alignment:
                attributes[place,] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            alike = parameter.do_not_specialize or parameter.do_not_specialize_on_alignment
            if isinstance(value, int) and value % 16 == 0 and not alike:
                attributes[place,] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constants, attributes)
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    return triton.compile(source, target=target, options=options)


def read_back(kernel: CompiledKernel) -> dict[str, int]:
    """Registers of a thread, bytes that it spills, and instructions of the first inner loop."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        usage, code = (
            subprocess.run([*command, file.name], capture_output=True, text=True, check=True).stdout
            for command in (
                [tools / "cuobjdump", "--dump-resource-usage"],
                [tools / "nvdisasm", "-c"],
            )
        )
    registers, stack = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK"))
    return {"registers": registers, "spilled": stack, "loop": _first_loop(code)}


def _first_loop(code: str) -> int:
    """Instructions of the innermost loop that comes first; 0: there is none."""
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    count = 0
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = count
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
            count += 1
            jump = re.search(r"BRA.*?`\((\.L_x_\d+)\)", line)
            if jump and labels.get(jump[1], count) < count - 1:
                loops.append((labels[jump[1]], count))
    return next((last - first for first, last in loops), 0)


def _copies_ahead(kernel: CompiledKernel) -> int:
    """Copies that may still be under way when the first loop begins a round; 0: there are none."""
    loop = kernel.asm["ttgir"].partition("scf.for")[2]
    waits = re.search(r"async_wait.*?num = (\d+)", loop)
    return int(waits[1]) if waits else 0


def measure(case: Case, launch: Launch) -> dict[str, Any]:
    kernel = compile_launch(launch, case.capability)
    found = {
        "capability": case.capability,
        "dtype": _TYPES[case.dtype],
        "kv_dtype": _TYPES[case.kv_dtype],
        "dim": case.dim,
        "windowed": case.windowed,
        "program": launch[0].__name__,
        "shared": int(kernel.metadata.shared),
        **read_back(kernel),
    }
    arguments, limits = launch[1], PROCESSORS[case.capability]
    if launch[0].__name__ == "multiply":
        sizes = ("ROWS", "COLUMNS", "DEPTH", *_OPTIONS)
        return found | {"tile": [arguments[name] for name in sizes], "gated": arguments["GATED"]}
    if launch[0].__name__ != "attend":
        return found
    warps, columns = arguments["num_warps"], arguments["COLUMNS"]
    registers = -(-found["registers"] * 32 // 256) * 256 * warps
    at_once = (
        limits.shared // (found["shared"] + 1024),
        limits.registers // registers,
        limits.warps // warps,
    )
    kibibytes = columns * (case.dim + (case.value_dim or case.dim)) * case.kv_dtype.itemsize / 1024
    return found | {
        "tile": [arguments[name] for name in ("ROWS", "COLUMNS", *_OPTIONS)],
        "at_once": min(at_once),
        "copies_ahead": _copies_ahead(kernel),
        # Each of a processor's four parts issues one of them a cycle.
        "cycles_per_kibibyte": found["loop"] * warps / 4 / kibibytes,
    }


def launches_of(device: str | None, dims: Collection[int]) -> Iterator[dict[str, Any]]:
    """What is launched on the devices of that name, or on all, for heads as wide; or for any."""
    launches: list[Launch] = []
    catch_launches(launches)
    chosen = (
        case
        for case in cases()
        if device in (None, PROCESSORS[case.capability].name) and (not dims or case.dim in dims)
    )
    for number, case in enumerate(chosen):
        launches.clear()
        kernels = GPUKernels(case.capability, 132)
        launch_attention(kernels, case)
        if case.dim == 64 and case.dtype != torch.float16:
            launch_experts(kernels, case.dtype)
        if number == 0:
            launch_others(kernels, case.dtype)
            launch_recurrences(kernels, case.dtype)
        yield from (measure(case, launch) for launch in launches)


def show(found: Iterable[dict[str, Any]]) -> None:
    print(
        "| device | model / cache | dim | tile: rows × keys, warps, stages | registers | spilled "
        "| shared KiB | programs at once | copies ahead | cycles a KiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for one in found:
        if one["program"] != "attend":
            continue
        rows, columns, warps, stages = one["tile"]
        window = ", window" if one["windowed"] else ""
        print(
            f"| {PROCESSORS[one['capability']].name} | {one['dtype']} / {one['kv_dtype']}{window} "
            f"| {one['dim']} | {rows} × {columns}, {warps}, {stages} | {one['registers']} "
            f"| {one['spilled']} | {one['shared'] / 1024:.0f} | {one['at_once']} "
            f"| {one['copies_ahead']} | {one['cycles_per_kibibyte']:.1f} |",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    names = [processor.name for processor in PROCESSORS.values()]
    parser.add_argument("--device", choices=names, help="(default: all)")
    parser.add_argument("--json", action="store_true", help="every launch, a line each")
    parser.add_argument(
        "--dims", type=int, nargs="+", default=(), help="widths of heads (default: all)"
    )
    arguments = parser.parse_args()
    found = launches_of(arguments.device, arguments.dims)
    if arguments.json:
        for one in found:
            print(json.dumps(one), flush=True)
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
