"""Quire itself, by ``quire bench``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.models import directory_of
from benchmarks.peers.systems.llama_cpp import GGUF, LlamaCpp
from benchmarks.peers.systems.system import Run, System
from quire import __version__

_FLAGS: Mapping[str, tuple[str, ...]] = {
    "bf16": (),
    "int8": ("--quantization", "int8", "--kv-cache-dtype", "int8"),
    "w8a8": ("--quantization", "w8a8", "--kv-cache-dtype", "int8"),
    "int4": ("--quantization", "int4", "--kv-cache-dtype", "int8"),
    "w4a8": ("--quantization", "w4a8", "--kv-cache-dtype", "int8"),
}


class Quire(System):
    title = f"Quire {__version__}"
    forms: Mapping[str, str] = {
        "bf16": "bf16 / bf16",
        "int8": "int8 / int8",
        "w8a8": "w8a8 / int8",
        "int4": "int4 / int8",
        "w4a8": "w4a8 / int8",
        **{form: f"{form} / bf16" for form in GGUF},
    }

    def set_up(self, shape: str, weights: str) -> None:
        self._model(shape, weights)

    def _model(self, shape: str, weights: str) -> Path:
        if weights in GGUF:
            return LlamaCpp(self.setup).model(shape, weights)
        return directory_of(self.setup.cache, shape)

    def command(self, run: Run) -> list[str]:
        model = self._model(run.shape, run.weights)
        isa = self.setup.cpu_isa
        return [
            *(sys.executable, "-m", "quire", "bench", "throughput", str(model), "--json"),
            *("--workload", str(run.file), "--num-prompts", str(len(run.workload.requests))),
            *("--dtype", "bfloat16", "--kv-cache-memory-bytes", f"{self.setup.cache_gib}GiB"),
            *("--warm-up", "--threads", str(self.setup.threads), *_FLAGS.get(run.weights, ())),
            *(() if isa is None else ("--cpu-isa", isa)),
        ]
