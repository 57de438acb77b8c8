"""What comes back from a device is what was there."""

from __future__ import annotations

import torch

from quire.execution.sampling.rows import Readback, unpacked


def test_tensors_are_read_as_they_are() -> None:
    tokens, peaks = torch.tensor([5, 2**40]), torch.tensor([[0.5], [float("-inf")]])
    assert Readback(tokens, peaks).tolist() == [[5, 2**40], [[0.5], [float("-inf")]]]


def test_bytes_that_came_together_are_taken_apart() -> None:
    tensors = [torch.arange(-3, 4), torch.randn(7, 1), torch.randn(2, 3, dtype=torch.float16)]
    together = torch.cat([tensor.flatten().view(torch.uint8) for tensor in tensors])
    for found, tensor in zip(unpacked(together, tensors), tensors, strict=True):
        assert torch.equal(found, tensor)
