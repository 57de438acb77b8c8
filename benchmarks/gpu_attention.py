"""Attention on an NVIDIA GPU: against the device's bandwidth, and against PyTorch's own.

    python benchmarks/gpu_attention.py            # the whole table
    python benchmarks/gpu_attention.py --tune     # which tile sizes are the fastest here

Llama-3-8B's shape: 32 heads that share 8, of 128 dimensions, bfloat16, blocks of 16 tokens in
random order, several layers one after the other. Everything that is compared is timed in turn, and
the medians are divided. Launches are recorded as a CUDA graph first, so that the host's speed plays
no part.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from quire.core.errors import QuireError
from quire.execution.device import choose_device
from quire.execution.gpu.graphs import CUDARecorder
from quire.kernels.gpu.kernels import GPUKernels
from quire.kernels.gpu.tiles import Tile, Tiles, choose_tiles
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionBatch, AttentionSpec, KVGroupTables

HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 16
SPEC = AttentionSpec(DIM**-0.5)
DECODES = [*product((1, 8, 64, 256), (512, 4096, 32_768))]
PREFILLS = [2048, 4096, 8192, 16_384]
ROUNDS = 25
MOST_LAYERS, MOST_BYTES = 8, 2**33  # of keys and values

Work = Callable[[], object]


def medians(works: Mapping[str, Work]) -> dict[str, float]:
    """Milliseconds of each, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(ROUNDS + 3):
        for name, work in works.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            if turn >= 3:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


def num_layers(tokens: int) -> int:
    """Layers of so many tokens that are computed in a row: work is listed once for all of them."""
    return max(1, min(MOST_LAYERS, MOST_BYTES // (tokens * KV_HEADS * DIM * 2 * 2)))


def paged_batch(contexts: list[int], new: int) -> tuple[AttentionBatch, list[LayerKV]]:
    """Each sequence's last ``new`` tokens, over blocks in random order."""
    counts = [-(-context // BLOCK) for context in contexts]
    order = torch.randperm(sum(counts), device="cuda")
    tables = torch.zeros(len(contexts), max(counts), dtype=torch.int64, device="cuda")
    for row, ids in enumerate(order.split(counts)):
        tables[row, : len(ids)] = ids
    lengths = torch.tensor(contexts, device="cuda")
    positions = torch.cat([torch.arange(c - new, c, device="cuda") for c in contexts])
    rows = torch.arange(len(contexts), device="cuda").repeat_interleave(new)
    slots = tables[rows, positions // BLOCK] * BLOCK + positions % BLOCK
    starts = tuple(range(0, new * len(contexts) + 1, new))
    kv_group = KVGroupTables(slots, tables, torch.zeros_like(lengths))
    batch = AttentionBatch(
        positions, starts, lengths, lengths, (kv_group,), BLOCK, torch.tensor(starts, device="cuda")
    )
    shape = (sum(counts), KV_HEADS, BLOCK, DIM)

    def pool() -> Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    return batch, [LayerKV(pool(), pool()) for _ in range(num_layers(sum(contexts)))]


def new_tokens(count: int) -> list[Tensor]:
    return [
        torch.randn(count, heads, DIM, device="cuda", dtype=torch.bfloat16)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]


def paged(kernels: GPUKernels, batch: AttentionBatch, layers: list[LayerKV]) -> Work:
    new = new_tokens(len(batch.positions))

    def attend() -> Tensor:
        plan = kernels.plan(batch)
        return [kernels.attend(*new, kv, SPEC, plan) for kv in layers][-1]

    return CUDARecorder().record(attend)


def dense(batch_size: int, queries: int, context: int, causal: bool) -> Work:
    """PyTorch's attention over contiguous keys and values, of as many layers."""

    def heads_of(heads: int, length: int) -> Tensor:
        return torch.randn(batch_size, heads, length, DIM, device="cuda", dtype=torch.bfloat16)

    query = heads_of(HEADS, queries)
    layers = [
        (heads_of(KV_HEADS, context), heads_of(KV_HEADS, context))
        for _ in range(num_layers(batch_size * context))
    ]

    def attend() -> Tensor:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
            return [
                F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
                for key, value in layers
            ][-1]

    return CUDARecorder().record(attend)


def copy_bandwidth() -> float:
    """Bytes a millisecond, read and written, of a large copy."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / medians({"copy": lambda: target.copy_(source)})["copy"]


def measure_decodes(kernels: GPUKernels, bandwidth: float) -> None:
    print("| batch | context | of the copy bandwidth | paged / contiguous |\n|---|---|---|---|")
    for size, context in DECODES:
        num_bytes = 2 * size * context * KV_HEADS * DIM * 2
        if 3 * num_bytes > torch.cuda.mem_get_info()[0]:
            print(f"| {size} | {context:,} | does not fit | |")
            continue
        batch, layers = paged_batch([context] * size, 1)
        times = medians(
            {"paged": paged(kernels, batch, layers), "dense": dense(size, 1, context, causal=False)}
        )
        share = len(layers) * num_bytes / times["paged"] / bandwidth
        print(f"| {size} | {context:,} | {share:.0%} | {times['paged'] / times['dense']:.3f} |")
        del batch, layers
        torch.cuda.empty_cache()


def measure_prefills(kernels: GPUKernels) -> None:
    print("\n| prompt | rate / that of PyTorch's flash attention |\n|---|---|")
    for length in PREFILLS:
        batch, layers = paged_batch([length], length)
        times = medians(
            {"paged": paged(kernels, batch, layers), "dense": dense(1, length, length, causal=True)}
        )
        print(f"| {length:,} | {times['dense'] / times['paged']:.0%} |")


def tune(capability: tuple[int, int], num_processors: int) -> None:
    """The fastest tiles for one decode batch and one prompt."""
    known = choose_tiles(capability, torch.bfloat16, DIM)
    decodes, prefill = paged_batch([4096] * 64, 1), paged_batch([8192], 8192)
    for name, choices, (batch, layers) in (
        ("single", product((16,), (32, 64, 128), (2, 4, 8), (3, 4, 5, 7), (4, 12)), decodes),
        ("several", product((64, 128), (32, 64, 128), (4, 8), (3, 4, 5, 7), (2,)), prefill),
    ):
        works: dict[str, Work] = {}
        for choice in choices:
            tiles: Tiles = known._replace(**{name: Tile(*choice)})
            try:
                works[str(Tile(*choice))] = paged(
                    GPUKernels(capability, num_processors, tiles), batch, layers
                )
            except Exception as error:  # too large for this device
                print(f"{name} {choice}: {str(error).splitlines()[0]}")
        for tile, time in sorted(medians(works).items(), key=lambda found: found[1])[:5]:
            print(f"{name}: {time:.3f} ms with {tile}")


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="try tile sizes instead")
    arguments = parser.parse_args()
    try:
        device = choose_device("cuda")
    except QuireError as error:
        print(f"gpu_attention.py needs an NVIDIA GPU: {error}", file=sys.stderr)
        return 1
    traits = torch.cuda.get_device_properties(device)
    capability = traits.major, traits.minor
    if arguments.tune:
        tune(capability, traits.multi_processor_count)
        return 0
    kernels, bandwidth = GPUKernels.on(device), copy_bandwidth()
    print(f"{traits.name}: a copy moves {bandwidth / 1e6:.0f} GB/s, read and written\n")
    measure_decodes(kernels, bandwidth)
    measure_prefills(kernels)
    return 0


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
