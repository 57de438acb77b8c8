"""llama.cpp's llama-server, built here of the sources that llama-cpp-python brings."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.cache import TORCH, PeerError
from benchmarks.peers.models import description_of, directory_of, folder_of, shape_of
from benchmarks.peers.systems.system import Peer, Run

_VERSION = "0.3.36"
_SOURCES = f"llama_cpp_python-{_VERSION}"
_CONVERTER = (TORCH, "transformers==5.23.0", "gguf", "sentencepiece", "protobuf")
_QUANTIZED_AS: Mapping[str, str] = {"int8": "Q8_0", "int4": "Q4_0"}
GGUF = ("Q8_0", "Q4_K_M", "Q4_0")
_DRAWN = "Q4_K_M"  # of large shapes
_UNKNOWN = ("OPTConfig",)

_TARGETS = ("llama-server", "llama-quantize")
_BUILD = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "EXAMPLES", "APP", "UI")),
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
_AVX2 = ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")
_AVX512 = (*_AVX2, "AVX512")
_AVX512_BF16 = (*_AVX512, "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")
_INSTRUCTIONS: Mapping[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_bf16": _AVX512_BF16,
}
"""By Quire's ``--cpu-isa``; for others it is built for this processor, with all that it has."""


class LlamaCpp(Peer):
    title = f"llama.cpp server (of llama-cpp-python {_VERSION}), 16 slots (alone: 1)"
    runner = "llama_server"
    forms: Mapping[str, str] = {
        "bf16": "bf16 / f16",
        "int8": "Q8_0 / f16",
        "int4": "Q4_0 / f16",
        **{form: f"{form} / f16" for form in GGUF},
    }

    def python(self) -> Path:
        return self.setup.cache.environment("llama.cpp", _CONVERTER)

    def set_up(self, shape: str, weights: str) -> None:
        if shape_of(shape).config in _UNKNOWN:
            raise PeerError(f"llama.cpp does not know the architecture of {shape}")
        self._build()
        super().set_up(shape, weights)

    def model(self, shape: str, weights: str) -> Path:
        if weights == "bf16":
            return self._converted(shape)
        cache, form = self.setup.cache, _QUANTIZED_AS.get(weights, weights)
        drawn = form == _DRAWN and shape_of(shape).large

        def quantize(path: Path) -> None:
            if drawn:
                return self._convert(description_of(cache, shape), path, "--drawn")
            cache.run([self._program("llama-quantize"), self._converted(shape), path, form])

        inputs = f"{_VERSION} drawn" if drawn else _VERSION
        return cache.once(f"{folder_of(shape)}/{form}.gguf", inputs, quantize)

    def command(self, run: Run) -> list[str]:
        return [*super().command(run), "--program", str(self._program("llama-server"))]

    def _converted(self, shape: str) -> Path:
        cache = self.setup.cache
        return cache.once(
            f"{folder_of(shape)}/bf16.gguf",
            _VERSION,
            lambda path: self._convert(directory_of(cache, shape), path),
        )

    def _convert(self, model: Path, path: Path, *flags: str) -> None:
        script = "benchmarks.peers.runners.gguf"
        self.setup.cache.run([self.python(), "-m", script, self._sources(), model, path, *flags])

    def _sources(self) -> Path:
        def download(path: Path) -> None:
            flags = ("--no-deps", "--no-binary", ":all:", "--dest", str(path))
            requirement = f"llama-cpp-python=={_VERSION}"
            self.setup.cache.pip(self.python(), "download", *flags, requirement)
            with tarfile.open(path / f"{_SOURCES}.tar.gz") as archive:
                archive.extractall(path, filter="data")

        path = self.setup.cache.once(f"sources/llama.cpp-{_VERSION}", _VERSION, download)
        return path / _SOURCES / "vendor" / "llama.cpp"

    def _program(self, name: str) -> Path:
        return self._build() / "bin" / name

    def _build(self) -> Path:
        cache, isa = self.setup.cache, self.setup.cpu_isa
        name = f"builds/llama.cpp-{isa if isa in _INSTRUCTIONS else 'native'}"
        flags = [*_BUILD, *instruction_flags(isa)]

        def compile(path: Path) -> None:
            cache.run(["cmake", "-S", self._sources(), "-B", path, *flags])
            threads = str(self.setup.threads)
            cache.run(["cmake", "--build", path, "--parallel", threads, "--target", *_TARGETS])

        return cache.once(name, "\n".join([_VERSION, *flags]), compile)


def instruction_flags(isa: str | None) -> list[str]:
    """CMake's flags for the instruction set; each is told, as some are on by default."""
    chosen = _INSTRUCTIONS.get(isa or "auto")
    if chosen is None:
        return ["-DGGML_NATIVE=ON"]
    switches = [f"-DGGML_{one}={'ON' if one in chosen else 'OFF'}" for one in _AVX512_BF16]
    return ["-DGGML_NATIVE=OFF", *switches]
