"""Layers with a state on the device, in the shapes of real models, equal float64."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from quire.kernels.layer_memory import LayerState
from quire.kernels.recurrence import RecurrentSpec
from quire.kernels.reference import ReferenceKernels
from support.gpu_kernels import triton_kernels
from support.recurrences import convolution, rand, recurrence, run, run_drafted, state_space

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
SPECS: Mapping[str, RecurrentSpec] = {
    "qwen3.5": recurrence(16, 16, 128, 128),
    "qwen3-next": recurrence(32, 16, 128, 128),
    "granite": state_space(48, 1, 128, 64),
    "falcon-h1": state_space(24, 1, 256, 64),
}
STEPS = [{0: 300, 1: 1, 2: 65}, {0: 1, 1: 1, 2: 1}, {0: 130, 1: 40, 2: 1}, {0: 1, 1: 1, 2: 33}]
LENGTHS = {0: 432, 1: 43, 2: 100}


def memory(spec: RecurrentSpec, drafts: int = 0) -> LayerState:
    channels, kept = spec.convolution.kept
    shapes = (3, channels, kept), (3, *spec.state), (3, drafts, spec.columns)
    return LayerState(*(torch.full(shape, torch.nan) for shape in shapes))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_chunks_and_decodes(name: str, dtype: torch.dtype) -> None:
    spec = SPECS[name]
    texts = {s: rand(n, spec.columns, seed=s).to(dtype) for s, n in LENGTHS.items()}
    found = run(triton_kernels(), spec, texts, STEPS, memory(spec))
    wide = {slot: text.double() for slot, text in texts.items()}
    expected = run(ReferenceKernels(), spec, wide, STEPS, memory(spec))
    for slot, out in found.items():
        error = (out.double() - expected[slot]).abs() / (1 + expected[slot].abs())
        assert error.max() < TOLERANCE[dtype]
    again = run(triton_kernels(), spec, texts, STEPS, memory(spec))
    assert all(torch.equal(out, again[slot]) for slot, out in found.items())


def test_drafts_that_are_right_and_wrong() -> None:
    spec = SPECS["qwen3-next"]
    texts = {s: rand(n, spec.columns, seed=s) for s, n in {0: 30, 1: 20}.items()}
    steps = [
        {0: (17, 3, 2), 1: (1, 5, 0)},
        {0: (1, 5, 4), 1: (12, 0, 0)},
        {0: (1, 0, 0), 1: (1, 2, 1)},
        {0: (5, 0, 0), 1: (5, 0, 0)},
    ]
    found = run_drafted(triton_kernels(), spec, texts, steps, memory(spec, 5))
    wide = {slot: text.double() for slot, text in texts.items()}
    whole = [{slot: len(text) for slot, text in texts.items()}]
    expected = run(ReferenceKernels(), spec, wide, whole, memory(spec))
    for slot, out in found.items():
        error = (out.double() - expected[slot]).abs() / (1 + expected[slot].abs())
        assert len(out) == len(texts[slot]) and error.max() < 1e-4


def test_a_short_convolution_between_gates() -> None:
    from quire.kernels.recurrence import GatedConvolution

    spec = GatedConvolution(convolution(2048, kernel=3))
    state = LayerState(
        torch.full((3, 2048, 2), torch.nan), torch.zeros(3, 0), torch.zeros(3, 0, spec.columns)
    )
    texts = {s: rand(n, spec.columns, seed=s) for s, n in LENGTHS.items()}
    found = run(triton_kernels(), spec, texts, STEPS, state)
    wide = {slot: text.double() for slot, text in texts.items()}
    expected = run(ReferenceKernels(), spec, wide, STEPS, state)
    for slot, out in found.items():
        assert (out.double() - expected[slot]).abs().max() < 1e-4
