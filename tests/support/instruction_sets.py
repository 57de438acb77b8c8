"""The instruction sets whose kernels can be tested on this machine."""

from __future__ import annotations

from quire.kernels.cpu import instruction_sets

TESTED = instruction_sets()
if "avx512_bf16" in TESTED:
    TESTED.append("amx_portable")  # what amx does, with its tiles in plain C++
