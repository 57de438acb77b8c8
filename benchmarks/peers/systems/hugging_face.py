"""Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.cache import TORCH
from benchmarks.peers.models import directory_of
from benchmarks.peers.systems.system import Peer

_VERSION = "5.23.0"


class Transformers(Peer):
    title = f"transformers {_VERSION}"
    runner = "transformers"
    forms: Mapping[str, str] = {"bf16": "bf16 / bf16"}

    def python(self) -> Path:
        requirements = (TORCH, f"transformers=={_VERSION}", "psutil")
        return self.setup.cache.environment("transformers", requirements)

    def model(self, shape: str, weights: str) -> Path:
        return directory_of(self.setup.cache, shape)
