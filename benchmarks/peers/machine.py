"""What the figures were taken on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import read_bandwidth
from quire_lab.bench.report import machine_facts

_INSTRUCTIONS = (
    *("amx_bf16", "amx_int8", "amx_tile", "avx512_bf16", "avx512_vnni", "avx512f"),
    *("avx_vnni", "avx2", "fma", "f16c"),  # as Linux calls them on x86, then on 64-bit ARM
    *("sve", "i8mm", "bf16", "asimddp", "asimd"),
)
"""Those that decide how fast products are."""


def facts(threads: int) -> dict[str, Any]:
    return {
        **machine_facts(),
        "instructions": instructions(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "threads": threads,
        "read_bytes_per_second": read_bandwidth(threads),
    }


def instructions(cpuinfo: str) -> list[str]:
    """The instruction sets that matter, of ``/proc/cpuinfo``."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    told = next((flags for name, _, flags in lines if name.strip() in ("flags", "Features")), "")
    return [name for name in _INSTRUCTIONS if name in told.split()]


def describe(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB, "
        f"memory reads {facts['read_bytes_per_second'] / 1e9:.1f} GB/s\n"
        f"{' '.join(facts['instructions'])}\n"
        f"Python {facts['python']}, torch {facts['torch']}"
    )
