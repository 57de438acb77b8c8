"""Quire serves large language models from paged memory.

``LLM`` and ``SamplingParams`` are the way in; see the README.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.version import __version__

if TYPE_CHECKING:
    from quire.engine import BeamSearchParams, LoRARequest
    from quire.llm import LLM
    from quire.protocol import PoolingParams, SamplingParams

__all__ = [
    "LLM",
    "BeamSearchParams",
    "LoRARequest",
    "PoolingParams",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # On first use: importing quire.memory or `quire --help` must not load torch.
    if name in ("LLM", "BeamSearchParams", "LoRARequest"):
        from quire.threads import wait_briefly

        wait_briefly()  # before torch is loaded
        from quire import llm

        return getattr(llm, name)
    if name in ("PoolingParams", "SamplingParams"):
        import quire.protocol

        return getattr(quire.protocol, name)
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
