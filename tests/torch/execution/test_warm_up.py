"""The pool's memory is there before the first prompt, where that is asked for."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
from torch import Tensor

from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.http.application import build
from quire.http.config.server import ServerConfig
from quire.kernels.pages import HugePages, touch


def pages(tensor: Tensor) -> list[bool]:
    """Of each page that the tensor lies in, whether the system has given memory for it."""
    first = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    nbytes = tensor.data_ptr() + tensor.numel() * tensor.element_size() - first
    held = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(nbytes), held) == 0
    return [bool(page & 1) for page in held]


def pool(engine: Engine) -> list[Tensor]:
    parts = [part for layer in engine.executor.worker._kv_cache.layers for part in layer]
    return [part for part in parts if isinstance(part, Tensor)]


def test_every_page_is_touched_and_keeps_what_it_holds() -> None:
    memory = HugePages()
    held = memory.zeros((3 * mmap.PAGESIZE + 64,), torch.int8)
    torch.manual_seed(0)
    held.copy_(torch.randint(-128, 128, held.shape))
    before = held.clone()
    touch(held)
    assert held.equal(before)
    # Straight from the system: what malloc has kept of others' may be there already.
    large = torch.frombuffer(mmap.mmap(-1, 33 << 20), dtype=torch.uint8)[5 : (32 << 20) + 3]
    assert not any(pages(large))
    touch(large)
    assert all(pages(large))


@pytest.mark.parametrize(("asked", "warm"), [(None, True), (True, True), (False, False)])
def test_a_server_has_its_pool_before_the_first_prompt(asked: bool | None, warm: bool) -> None:
    config = EngineConfig(kv_cache_memory_bytes=24 << 20, kv_cache_dtype="int8", warm_up=asked)
    served = build(config, ServerConfig())
    given = [page for part in pool(served.engine) for page in pages(part)]
    served.engine.close()
    assert len(given) > 5000 and (all(given) or not warm)
    assert ("; its memory was touched in " in served.capacity.describe()) is warm
