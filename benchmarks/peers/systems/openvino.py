"""OpenVINO GenAI, with models that optimum-intel exports in an environment of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.cache import TORCH
from benchmarks.peers.models import directory_of, folder_of
from benchmarks.peers.systems.system import Peer

_VERSION = "2026.4.1"
_LIBRARIES = (f"openvino=={_VERSION}", f"openvino-tokenizers=={_VERSION}.0")
_EXPORTER = "optimum-intel==2.2.0"
_EXPORTED_AS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("fp16",),
    "int8": ("int8",),
    "int4": ("int4", "--group-size-fallback", "adjust"),  # smaller where 128 does not divide
}


class OpenVino(Peer):
    title = f"OpenVINO GenAI {_VERSION}"
    runner = "openvino"
    forms: Mapping[str, str] = {"bf16": "bf16 / bf16", "int8": "int8 / u8", "int4": "int4 / u8"}

    def python(self) -> Path:
        requirements = (*_LIBRARIES, f"openvino-genai=={_VERSION}.0")
        return self.setup.cache.environment("openvino", requirements)

    def model(self, shape: str, weights: str) -> Path:
        cache = self.setup.cache
        name = f"{folder_of(shape)}/openvino-{weights}"

        def export(path: Path) -> None:
            requirements = (TORCH, _EXPORTER, *_LIBRARIES, "nncf")
            python = cache.environment("openvino-export", requirements)
            exporter = [str(python.with_name("optimum-cli")), "export", "openvino"]
            task = ["--task", "text-generation-with-past"]
            form = ["--weight-format", *_EXPORTED_AS[weights]]
            model = directory_of(cache, shape)
            cache.run([*exporter, "--model", str(model), *task, *form, str(path)])

        return cache.once(name, f"{_EXPORTER} {_VERSION}", export)

    def form(self, weights: str, report: Mapping[str, Any]) -> str:
        """It computes 16-bit weights in whatever its plugin prefers on this processor."""
        return f"{report['computing'] if weights == 'bf16' else weights} / {report['cache']}"
