"""Layers with a state alone: Qwen3.5-0.8B's, Mamba-2's and LFM2's shapes.

    python benchmarks/recurrence.py [--threads 2] [--instruction-set avx2]

Decoding is of many texts at once: each token reads and rewrites its text's states, whose bytes
over the time are the column in GB/s. A prompt's tokens keep theirs near: what counts there is the
time of a token. Times are of all layers of a model, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import NamedTuple

from quire.kernels.threads import usable_cores, wait_briefly

wait_briefly()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from quire.kernels.cpu import CPUKernels, instruction_sets  # noqa: E402
from quire.kernels.layer_memory import LayerState, StateShape  # noqa: E402
from quire.kernels.ops import AttentionBatch, StateSlots  # noqa: E402
from quire.kernels.recurrence import (  # noqa: E402
    Convolution,
    GatedConvolution,
    OutputGate,
    Recurrence,
    RecurrentSpec,
)

ROUNDS = 7


class Load(NamedTuple):
    """Texts that take so many new tokens each."""

    texts: int
    new_tokens: int


LOADS = (Load(1, 1), Load(8, 1), Load(64, 1), Load(1, 512), Load(1, 4096))


def delta_rule() -> RecurrentSpec:
    """Of Qwen3.5-0.8B."""
    heads, dim = 16, 128
    return Recurrence(
        heads, heads, dim, dim, Convolution(torch.randn(4, 3 * heads * dim)),
        decay=-torch.rand(heads), bias=torch.randn(heads), delta=True,
        gate=OutputGate(torch.ones(heads * dim), dim, 1e-6, first=False),
    )  # fmt: skip


def state_space() -> RecurrentSpec:
    """Of Granite 4.0 H micro."""
    heads, dim, keys = 48, 64, 128
    width = heads * dim
    return Recurrence(
        heads, 1, keys, dim, Convolution(torch.randn(4, 2 * keys + width)),
        decay=-torch.rand(heads), bias=torch.randn(heads), delta=False, skip=torch.ones(heads),
        gate=OutputGate(torch.ones(width), width, 1e-5, first=True),
    )  # fmt: skip


MODELS = {
    "delta rule": (18, delta_rule()),
    "state space": (36, state_space()),
    "convolution": (10, GatedConvolution(Convolution(torch.randn(3, 1024)))),
}


def measure(kernels: CPUKernels, spec: RecurrentSpec, layers: int, load: Load) -> float:
    """Seconds of all layers."""
    shape = StateShape(spec.convolution.kept, spec.state)
    states = [
        LayerState(
            torch.zeros(load.texts, *shape.rows),
            torch.zeros(load.texts, *(shape.state or (0,))),
            torch.zeros(load.texts, 0, 0),
        )
        for _ in range(layers)
    ]
    tokens = load.texts * load.new_tokens
    x = torch.randn(tokens, spec.columns).bfloat16()
    starts = tuple(range(0, tokens + 1, load.new_tokens))
    ends = torch.full((load.texts,), load.new_tokens + 1)
    positions = torch.arange(tokens)
    batch = AttentionBatch(
        positions, starts, ends, ends, (), 16, states=StateSlots(torch.arange(load.texts))
    )
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        plan = kernels.plan(batch)
        for state in states:
            out: Tensor = kernels.recur(x, state, spec, plan)
        times.append(time.perf_counter() - start)
    assert not out.isnan().any()
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--instruction-set", choices=instruction_sets(), default="")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kernels = CPUKernels(arguments.instruction_set)
    print(f"{kernels.instruction_set}, {arguments.threads} threads, bfloat16")
    for name, (layers, spec) in MODELS.items():
        size = layers * StateShape(spec.convolution.kept, spec.state).nbytes
        print(f"{name}: {layers} layers, {size / 2**20:.1f} MiB a text")
        for load in LOADS:
            seconds = measure(kernels, spec, layers, load)
            each = seconds / load.texts / load.new_tokens
            moved = 2 * load.texts * size / seconds / 1e9
            print(
                f"  {load.texts:3} x {load.new_tokens:5} tokens: {seconds * 1e3:9.2f} ms, "
                f"{each * 1e6:8.1f} us a token, {moved:6.1f} GB/s"
            )


if __name__ == "__main__":
    main()
