"""Quire serves large language models from paged memory.

``LLM``, or ``AsyncLLM`` in an event loop, and ``SamplingParams`` are the way in; see the README.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire import moved
from quire.core.version import __version__

if TYPE_CHECKING:
    from quire.capabilities.adapters.named import LoRARequest
    from quire.engine.async_llm import AsyncLLM
    from quire.engine.beams import BeamSearchParams
    from quire.engine.llm import LLM
    from quire.text.params import PoolingParams, SamplingParams

moved.install()

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "LoRARequest",
    "PoolingParams",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # On first use: importing quire.core.memory or `quire --help` must not load torch.
    if name in ("LLM", "AsyncLLM", "BeamSearchParams", "LoRARequest"):
        from quire.kernels.threads import wait_briefly

        wait_briefly()  # before torch is loaded
        from quire.engine import async_llm, llm

        return getattr(async_llm if name == "AsyncLLM" else llm, name)
    if name in ("PoolingParams", "SamplingParams"):
        from quire.text import params

        return getattr(params, name)
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
