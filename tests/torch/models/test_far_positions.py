"""Angles at positions of many millions, against rotations multiplied up one by one."""

from __future__ import annotations

import cmath
from dataclasses import replace

import pytest
import torch

from quire.kernels.ops import AttentionBatch
from quire.models.config import ConfigFields
from quire.models.rope import Rope, RopeConfig

FIELDS = ConfigFields({"max_position_embeddings": 2048}, "config.json")
POSITIONS = (0, 5, 19, 20, 2**24 + 1, 123_456_789, 2**31 + 7)


def rope() -> Rope:
    return replace(RopeConfig.read(FIELDS, 64).build(), reach=20)


def turn(frequency: float, position: int) -> complex:
    """e^(i frequency position) by squaring: its angle never grows, so it loses no digits."""
    power, result = cmath.exp(1j * frequency), 1 + 0j
    while position:
        if position & 1:
            result *= power
        power *= power
        position >>= 1
    return result


@pytest.mark.parametrize("position", POSITIONS)
def test_angles_are_exact_however_far(position: int) -> None:
    own = rope()
    batch = AttentionBatch(
        positions=torch.tensor([position]),
        query_starts=(0, 1),
        context_lens=torch.tensor([position + 1]),
        output_starts=torch.tensor([1]),
        kv_groups=(),
        block_size=16,
    )
    rotation = own.rotation(batch)
    assert rotation.sink_cos is not None and rotation.sink_sin is not None
    assert isinstance(own.frequencies, torch.Tensor)
    for where, cos, sin in (
        (position, rotation.cos, rotation.sin),
        (min(position, 19), rotation.sink_cos, rotation.sink_sin),
    ):
        wanted = [turn(frequency, where) for frequency in own.frequencies.tolist()]
        assert cos[0].tolist() == pytest.approx([z.real for z in wanted], abs=2e-6)
        assert sin[0].tolist() == pytest.approx([z.imag for z in wanted], abs=2e-6)
