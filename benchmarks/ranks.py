"""What ranks of one machine cost each other beside their products.

    python benchmarks/ranks.py                 # two ranks of one thread
    python benchmarks/ranks.py --ranks 4 --threads 2

Microseconds of rank 0, the fastest of several turns, since other work on the machine only ever
makes it slower: a sum of one decode step's rows; a message to all and their answers; and a layer
of a decoder that runs as one, with its two sums and without, both in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import LayerKV
from quire.kernels.mlps import Activation, DenseMLP
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    DecoderLayer,
    DecoderStack,
    KVGroupTables,
    Norm,
    Norms,
    SelfAttention,
)
from quire.kernels.products import PackedWeight, Products
from quire.kernels.ranks import Ranks
from quire.kernels.shared_ranks import SharedMemoryRanks

_ROWS = (1, 8, 64)
_MESSAGES = (1 << 10, 1 << 14, 1 << 17)
_MODELS = {  # width, heads, KV heads, size of a head, inner width
    "smollm-135m": (576, 9, 3, 64, 1536),
    "qwen2-0.5b": (896, 14, 2, 64, 4864),
    "llama-8b": (4096, 32, 8, 128, 14336),
}
_LAYERS, _CONTEXT, _BLOCK = 4, 256, 16
_TURNS, _TURN_SECONDS = 60, 0.003  # short, so that some of them have the cores to themselves


def fastest(bodies: Sequence[Callable[[], object]], ranks: SharedMemoryRanks) -> list[float]:
    """Microseconds a call of each, in turn; so many calls as rank 0 decides."""
    best = [float("inf")] * len(bodies)
    for turn in range(_TURNS):
        for number, body in enumerate(bodies):
            calls = torch.ones(1)
            if ranks.rank == 0 and turn:
                calls.fill_(max(1, _TURN_SECONDS * 1e6 // best[number]))
            elif ranks.rank:
                calls.zero_()
            ranks.add_up(calls)
            start = time.perf_counter()
            for _ in range(int(calls)):
                body()
            best[number] = min(best[number], (time.perf_counter() - start) / int(calls) * 1e6)
    return best


def sums(ranks: SharedMemoryRanks) -> None:
    """Of bfloat16, as the operation by itself."""
    print("\nsum of      " + "".join(f"{rows:>5} rows" for rows in _ROWS))
    for width, *_ in _MODELS.values():
        x = [torch.ones(rows, width, dtype=torch.bfloat16) for rows in _ROWS]
        found = [fastest([partial(ranks.add_up, each)], ranks)[0] for each in x]
        print(f"{width:>11} " + "".join(f"{each:10.1f}" for each in found))


def messages(ranks: SharedMemoryRanks) -> None:
    """From rank 0 to the others, and an empty answer back."""
    print("\nmessage of     told and answered    told")
    for size in _MESSAGES:
        message = bytes(size)

        def told(message: bytes = message) -> None:
            if ranks.rank == 0:
                ranks.tell(message)
            else:
                ranks.hear()

        def answered(told: Callable[[], None] = told) -> None:
            told()
            if ranks.rank == 0:
                ranks.answers(10)
            else:
                ranks.answer(b"")

        both, one = fastest([answered, told], ranks)
        print(f"{size:>9} B {both:>20.1f} {one:>7.1f}")


def layers(ranks: SharedMemoryRanks, dtype: torch.dtype) -> None:
    """A decoder that runs as one, each rank with its share of heads and inner width."""
    print(f"\na layer in {dtype}: beside the products, of all")
    for name, model in _MODELS.items():
        steps = [_Step(model, ranks, dtype, rows) for rows in _ROWS]
        for rows, step in zip(_ROWS, steps, strict=True):
            alone, together = fastest([step.alone, step.together], ranks)
            beside = (together - alone) / _LAYERS
            print(f"{name:>12} {rows:>3} rows {beside:8.1f} {together / _LAYERS:8.1f}")


class _Step:
    """One decode step of so many sequences."""

    def __init__(
        self, model: tuple[int, ...], ranks: SharedMemoryRanks, dtype: torch.dtype, rows: int
    ) -> None:
        self._kernels, self._products = CPUKernels(), Products()
        width, heads, kv_heads, dim, inner = model
        heads, kv_heads, inner = (-(-each // ranks.size) for each in (heads, kv_heads, inner))

        def weight(inputs: int, outputs: int) -> PackedWeight:
            values = torch.randn(outputs, inputs) / inputs**0.5
            return PackedWeight.from_floats(self._products, values.to(dtype), None)

        norm = Norms(before=Norm(width, torch.ones(width, dtype=dtype), 1e-5))
        layer = DecoderLayer(
            SelfAttention(
                weight(width, (heads + 2 * kv_heads) * dim),
                weight(heads * dim, width),
                heads,
                AttentionSpec(dim**-0.5),
                None,
                None,
                None,
            ),
            norm,
            DenseMLP(
                weight(width, 2 * inner), weight(inner, width), Activation("silu", gated=True)
            ),
            norm,
            1.0,
            False,
        )
        blocks = _CONTEXT // _BLOCK
        pool = torch.zeros(2, rows * blocks, kv_heads, _BLOCK, dim, dtype=dtype)
        self._kv = [LayerKV(*pool) for _ in range(_LAYERS)]
        self._x = torch.randn(rows, width).to(dtype)
        tables = torch.arange(rows * blocks).view(rows, blocks)
        lengths = torch.full((rows,), _CONTEXT)
        slots = tables[:, -1] * _BLOCK + _BLOCK - 1
        kv_group = KVGroupTables(slots, tables, torch.zeros(rows, dtype=torch.int64))
        self._batch = AttentionBatch(
            lengths - 1, tuple(range(rows + 1)), lengths, lengths, (kv_group,), _BLOCK
        )
        self._plan = self._kernels.plan(self._batch)
        self.alone, self.together = self._run(layer, None), self._run(layer, ranks)

    def _run(self, layer: DecoderLayer, ranks: Ranks | None) -> Callable[[], object]:
        decoder = DecoderStack((layer,) * _LAYERS, None, self._x.dtype, ranks)
        run = self._kernels.fuse(decoder, self._kv)
        assert run is not None
        return lambda: run(self._x.clone(), self._plan, [])


def measure(rank: int, size: int, name: str, threads: int, dtype: str) -> None:
    """All of it, as one of the ranks."""
    torch.set_num_threads(threads)
    if rank == 0:
        ranks = SharedMemoryRanks.create(size, 60.0)
        context = multiprocessing.get_context("spawn")
        arguments = [(other, size, ranks.name, threads, dtype) for other in range(1, size)]
        others = [context.Process(target=measure, args=each) for each in arguments]
        for other in others:
            other.start()
    else:
        ranks = SharedMemoryRanks.join(name, rank, size, 60.0)
    with contextlib.redirect_stdout(io.StringIO()) if rank else contextlib.nullcontext():
        sums(ranks)
        messages(ranks)
        layers(ranks, getattr(torch, dtype))


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    arguments = parser.parse_args()
    measure(0, arguments.ranks, "", arguments.threads, arguments.dtype)


if __name__ == "__main__":
    main()
