"""Tokens that the GPU kernels draw, against a sampler in plain Python and float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from quire.execution.sampling.sampler import SampleRow
from quire.kernels.ops import Kernels
from support.gpu_kernels import INTERPRETED, TRITON, triton_kernels
from support.sampling_reference import expected_token, make_row, sample

pytestmark = pytest.mark.skipif(not TRITON, reason="Triton is not installed, or has no GPU")

ASKED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.4, "top_p": 0.95, "top_k": 20},
    {"temperature": 3.0, "top_k": 4},
    {"top_p": 0.8},
    {"top_p": 0.13},
    {"min_p": 0.2},
    {"min_p": 0.02, "top_p": 0.99},
    {"temperature": 1.7, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 2.5, "top_k": 1000, "top_p": 0.51},
    {"top_p": 1e-9},
    {"top_k": 1},
]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return triton_kernels()


def check(logits: torch.Tensor, rows: list[SampleRow], kernels: Kernels) -> None:
    for values, row, got in zip(logits.tolist(), rows, sample(logits, rows, kernels), strict=True):
        token, margin = expected_token(values, row)
        assert got is not None
        # Nearer to a bound than float32 tells apart, either side is right.
        assert got.token_id == token or margin < 2e-6, (row.params, margin)


@pytest.mark.parametrize("width", [7, 300, 6000, 40_000])
def test_tokens_are_those_of_the_definitions(width: int, kernels: Kernels) -> None:
    """Of flat logits and steep ones, with runs of equals, more near the peak than have room."""
    generator = torch.Generator().manual_seed(width)
    asked = ASKED[4::2] if width > 9999 and INTERPRETED else ASKED
    logits = torch.randn(len(asked), width, generator=generator).bfloat16().float()
    logits[::3] *= 4
    check(logits, [make_row(seed=i, **one) for i, one in enumerate(asked)], kernels)


def test_of_equals_the_lower_are_kept_and_each_is_drawn(kernels: Kernels) -> None:
    def kept(width: int, **asked: Any) -> list[int]:
        rows = [make_row(seed=seed, **asked) for seed in range(12)]
        found = sample(torch.zeros(12, width), rows, kernels)
        return sorted({one.token_id for one in found if one is not None})

    assert kept(3, min_p=1.0) == [0, 1, 2]
    assert kept(6, top_p=0.5) == [0, 1, 2]
    assert kept(9, top_k=2) == [0, 1]
    assert kept(9, top_k=4, top_p=0.5) == [0, 1]


@pytest.mark.parametrize(
    ("number", "whole", "narrow"), [(0.0, 1, 2), (1 - 2**-53, 2, 1)], ids=["0", "almost 1"]
)
def test_the_ends_of_the_random_numbers(
    monkeypatch: pytest.MonkeyPatch, number: float, whole: int, narrow: int, kernels: Kernels
) -> None:
    monkeypatch.setattr("quire.execution.sampling.rows.uniform", lambda *_: number)
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]] * 2)
    found = sample(logits, [make_row(), make_row(top_k=3)], kernels)
    assert [one and one.token_id for one in found] == [whole, narrow]


def test_almost_1_is_at_the_end_and_not_at_the_likeliest(
    monkeypatch: pytest.MonkeyPatch, kernels: Kernels
) -> None:
    monkeypatch.setattr("quire.execution.sampling.rows.uniform", lambda *_: 1 - 2**-53)
    logits = torch.randn(5, 30_000, generator=torch.Generator().manual_seed(0))
    logits[:, -1] = -torch.inf
    for one in sample(logits, [make_row()] * 5, kernels):
        assert one is not None and 29_990 < one.token_id < 29_999


def test_rows_without_a_distribution_are_none_and_harm_no_other(kernels: Kernels) -> None:
    inf, nan = math.inf, math.nan
    bad = [[nan, 0, 1], [nan] * 3, [-inf] * 3, [0, inf, 1], [-nan, -nan, 0]]
    batch = torch.tensor([values for one in bad for values in (one, [0.0, 1.0, 3.0])])
    for asked in ({}, {"temperature": 0.0}, {"top_k": 2, "top_p": 0.9}):
        rows = [make_row(seed=i, **asked) for i in range(10)]
        found = sample(batch, rows, kernels)
        assert found[::2] == [None] * 5
        assert found[1::2] == [
            sample(batch[i : i + 1], [rows[i]], kernels)[0] for i in range(1, 10, 2)
        ]
        tokens, _ = kernels.draw(batch, None)
        assert ((tokens >= 0) & (tokens < 3)).all()


def test_what_is_masked_is_never_drawn(kernels: Kernels) -> None:
    logits = torch.full((500,), -torch.inf)
    logits[[0, 257, 499]] = torch.tensor([0.0, 1.0, 0.5])
    kinds: list[dict[str, Any]] = [{"top_k": 40, "top_p": 0.99999}, {"temperature": 1e300}]
    rows = [make_row(seed=seed, **asked) for seed in range(6) for asked in kinds]
    found = sample(logits.expand(12, -1).contiguous(), rows, kernels)
    assert {one.token_id for one in found if one is not None} == {0, 257, 499}
