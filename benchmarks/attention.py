"""Attention alone: over blocks against over contiguous memory, and against the machine's limits.

    python benchmarks/attention.py [--threads 2] [--instruction-set avx2] [--only sizes]

Paged: blocks of 16 tokens in random order. Contiguous: the same code, one block for each sequence.
Shared: most of the contexts is in the same blocks for all sequences, as of forks; its time is
compared with that of sequences that have blocks of their own.
Read: summing a large tensor, the memory bandwidth. Product: a square bf16 or float32 matrix product
by torch. All of one line are measured in turns in one run; the figures are medians, the last column
is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.kernels.threads import usable_cores, wait_briefly

wait_briefly()

import torch  # noqa: E402

from quire.core.kv_groups import KVGroup  # noqa: E402
from quire.execution.kv.cache import KVCache  # noqa: E402
from quire.execution.kv.layers import bytes_per_token  # noqa: E402
from quire.kernels.cpu import CPUKernels, instruction_sets  # noqa: E402
from quire.kernels.layer_memory import KVShape  # noqa: E402
from quire.kernels.ops import AttentionBatch, AttentionSpec, KVGroupTables  # noqa: E402

BLOCK_SIZE = 16
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = 1.0  # for all measurements of a line


class Load(NamedTuple):
    """A batch of equal sequences, and the layer's shape."""

    sequences: int
    context: int
    new_tokens: int
    heads: int
    kv_heads: int
    dim: int
    latent: int = 0  # numbers of a key that are its value; 0: values of their own

    @property
    def shape(self) -> KVShape:
        return KVShape(self.kv_heads, self.dim, self.latent or self.dim, bool(self.latent))

    def kv_bytes(self, kv_dtype: torch.dtype) -> int:
        return self.sequences * self.context * bytes_per_token([self.shape], kv_dtype)

    @property
    def operations(self) -> int:
        """Of the products that a causal mask leaves."""
        older = self.context - self.new_tokens
        seen = self.new_tokens * older + self.new_tokens * (self.new_tokens + 1) // 2
        return 2 * self.sequences * seen * self.heads * (self.dim + self.shape.value_dim)


DECODES = (
    Load(64, 4096, 1, 9, 3, 64),
    Load(1, 65536, 1, 9, 3, 64),
    Load(64, 4096, 1, 14, 2, 64),
    Load(16, 4096, 1, 32, 8, 128),
    Load(64, 275, 1, 9, 3, 64),
    Load(16, 4096, 1, 16, 1, 576, 512),  # DeepSeek-V2-Lite's latents
    Load(16, 4096, 1, 20, 1, 576, 512),  # GLM-4.7-Flash's
)
LAYERS = 30  # of a model: none of its keys is still in the caches when its turn comes again
LAYERED = (
    Load(1, 1000, 1, 9, 3, 64),
    Load(4, 800, 1, 9, 3, 64),
    Load(16, 400, 1, 9, 3, 64),
    Load(64, 180, 1, 9, 3, 64),
)
SHARED = (  # and how many columns
    (Load(64, 320, 1, 9, 3, 64), 256),
    (Load(64, 2560, 1, 9, 3, 64), 2048),
    (Load(4, 4608, 1, 32, 8, 128), 4096),
)
PREFILLS = (
    Load(1, 2048, 2048, 9, 3, 64),
    Load(1, 4096, 512, 9, 3, 64),
    Load(1, 2048, 2048, 32, 8, 128),
    Load(1, 2048, 2048, 16, 1, 576, 512),
)
CACHES = (
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.bfloat16, torch.int4),
    (torch.float32, torch.float32),
)


def attention(
    kernels: CPUKernels,
    load: Load,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    block_size: int,
    shared: int = 0,
    layers: int = 1,
) -> Callable[[], object]:
    """Attention over a pool whose blocks lie in random order.

    shared: of the context, what all sequences have in the same blocks.
    layers: one after the other, each with keys and values of its own.
    """
    blocks = -(-load.context // block_size)
    tables = torch.randperm(load.sequences * blocks).view(load.sequences, blocks)
    tables[:, : shared // block_size] = tables[0, : shared // block_size]
    positions = torch.arange(load.context - load.new_tokens, load.context)
    slots = tables[:, positions // block_size] * block_size + positions % block_size
    batch = AttentionBatch(
        positions=positions.repeat(load.sequences),
        query_starts=tuple(range(0, slots.numel() + 1, load.new_tokens)),
        context_lens=torch.full((load.sequences,), load.context),
        output_starts=torch.full((load.sequences,), load.context),
        kv_groups=(
            KVGroupTables(slots.flatten(), tables, torch.zeros(load.sequences, dtype=torch.int64)),
        ),
        block_size=block_size,
    )
    kv_group = KVGroup(tuple(range(layers)), tables.numel())
    pools = KVCache([load.shape] * layers, [kv_group], block_size, kv_dtype, kernels).layers
    for part in (part for kv in pools for part in kv.parts):
        part.copy_(torch.randint(-99, 99, part.shape[1:]))
    tokens = slots.numel()
    query = torch.randn(tokens, load.heads, load.dim).to(dtype)
    key, value = torch.randn(2, tokens, load.kv_heads, load.dim).to(dtype)
    value = key[..., -load.latent :] if load.latent else value
    plan, spec = kernels.plan(batch), AttentionSpec(load.dim**-0.5 / 10000)
    return lambda: [kernels.attend(query, key, value, kv, spec, plan) for kv in pools]


def in_turns(
    works: Sequence[Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median seconds of each."""
    times: list[list[float]] = [[] for _ in works]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0]) < 5:
        for work, own in zip(works, times, strict=True):
            start = clock()
            work()
            own.append(clock() - start)
    return [statistics.median(own[1:]) for own in times]


def name(load: Load, dtype: torch.dtype, kv_dtype: torch.dtype) -> str:
    new = f"{load.new_tokens:,} new of " if load.new_tokens > 1 else ""
    types = " / ".join(str(t).removeprefix("torch.") for t in (dtype, kv_dtype))
    return (
        f"{load.sequences} x {new}{load.context:,}, {load.heads}/{load.kv_heads} heads of "
        f"{load.dim}, {types}"
    )


def decodes(kernels: CPUKernels) -> None:
    print("decode | paged | contiguous | read | paged / contiguous | of read bandwidth")
    memory = torch.randn(1 << 26)
    for load in DECODES:
        for dtype, kv_dtype in CACHES:
            paged = attention(kernels, load, dtype, kv_dtype, BLOCK_SIZE)
            contiguous = attention(kernels, load, dtype, kv_dtype, load.context)
            seconds = in_turns((paged, contiguous, memory.sum))
            num_bytes = load.kv_bytes(kv_dtype)
            rates = [num_bytes / t / 1e9 for t in seconds[:2]]
            rates.append(memory.nbytes / seconds[2] / 1e9)
            print(
                f"{name(load, dtype, kv_dtype)} | {rates[0]:.1f} GB/s | {rates[1]:.1f} | "
                f"{rates[2]:.1f} | {seconds[0] / seconds[1]:.3f} | {rates[0] / rates[2]:.0%}",
                flush=True,
            )


def layers(kernels: CPUKernels) -> None:
    """Short contexts, as in a decoding step: each layer's keys and values come from memory."""
    print(f"decode, {LAYERS} layers | a layer | read | of read bandwidth")
    memory = torch.randn(1 << 26)
    for load in LAYERED:
        for dtype, kv_dtype in CACHES[:3]:
            work = attention(kernels, load, dtype, kv_dtype, BLOCK_SIZE, layers=LAYERS)
            seconds = in_turns((work, memory.sum))
            rate = LAYERS * load.kv_bytes(kv_dtype) / seconds[0] / 1e9
            read = memory.nbytes / seconds[1] / 1e9
            print(
                f"{name(load, dtype, kv_dtype)} | {seconds[0] / LAYERS * 1e6:.0f} us, "
                f"{rate:.1f} GB/s | {read:.1f} | {rate / read:.0%}",
                flush=True,
            )


def sizes(kernels: CPUKernels) -> None:
    """The paper's figure 18 (a): processor time over blocks of each size and contiguous memory."""
    print("decode | " + " | ".join(map(str, BLOCK_SIZES)) + ", paged / contiguous by block size")
    for load in (DECODES[0], *DECODES[2:4]):  # a context that is no multiple of 16 is read slowly
        for dtype, kv_dtype in CACHES[:3]:
            works = [
                attention(kernels, load, dtype, kv_dtype, size)
                for size in (load.context, *BLOCK_SIZES)
            ]
            contiguous, *paged = in_turns(works, time.process_time)
            ratios = " | ".join(f"{seconds / contiguous:.2f}" for seconds in paged)
            print(f"{name(load, dtype, kv_dtype)} | {ratios}", flush=True)


def forks(kernels: CPUKernels) -> None:
    print("shared | own blocks | shared blocks | own / shared")
    for load, shared in SHARED:
        for dtype, kv_dtype in CACHES:
            works = [
                attention(kernels, load, dtype, kv_dtype, BLOCK_SIZE, columns)
                for columns in (0, shared)
            ]
            seconds = in_turns(works)
            print(
                f"{shared:,} of {name(load, dtype, kv_dtype)} | {seconds[0] * 1e6:,.0f} us | "
                f"{seconds[1] * 1e6:,.0f} | {seconds[0] / seconds[1]:.2f}",
                flush=True,
            )


def prefills(kernels: CPUKernels) -> None:
    print("prefill | paged | contiguous | product | paged / contiguous | of product")
    for load in PREFILLS:
        for dtype, kv_dtype in CACHES:
            paged = attention(kernels, load, dtype, kv_dtype, BLOCK_SIZE)
            contiguous = attention(kernels, load, dtype, kv_dtype, load.context)
            square = torch.randn(1024, 1024).to(dtype)
            seconds = in_turns((paged, contiguous, lambda x=square: x @ x))  # type: ignore[misc]
            rates = [load.operations / t / 1e9 for t in seconds[:2]]
            rates.append(2 * 1024**3 / seconds[2] / 1e9)
            print(
                f"{name(load, dtype, kv_dtype)} | {rates[0]:.0f} GFLOP/s | {rates[1]:.0f} | "
                f"{rates[2]:.0f} | {seconds[0] / seconds[1]:.3f} | {rates[0] / rates[2]:.0%}",
                flush=True,
            )


TABLES = (decodes, layers, sizes, forks, prefills)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--instruction-set", choices=instruction_sets(), default="")
    parser.add_argument("--only", choices=tuple(table.__name__ for table in TABLES), default="")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kernels = CPUKernels(arguments.instruction_set)
    print(f"{kernels.instruction_set}, {arguments.threads} threads")
    for table in TABLES:
        if arguments.only in ("", table.__name__):
            table(kernels)


if __name__ == "__main__":
    main()
