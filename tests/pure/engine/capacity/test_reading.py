"""What a token reads of keys and values, by which a benchmark tells how fast memory was read."""

from __future__ import annotations

import pytest

from quire.engine.capacity import Capacity
from support.limits import make_limits


@pytest.mark.parametrize(("context", "seen"), [(6, 6 + 3 * 6), (100, 100 + 3 * 8)])
def test_layers_with_a_window_read_no_more_than_it(context: int, seen: int) -> None:
    capacity = Capacity(
        model_name="",
        dtype="float32",
        quantization=None,
        weight_bytes=0,
        kv_dtype="float32",
        kv_bytes_per_token=4 * 10,
        pool_bytes=0,
        limits=make_limits(64, 256, windows=(None, 8, 8, 8)),
        host_blocks="",
        kernels="",
    )
    assert capacity.kv_bytes_read(context) == 10 * seen
