"""The GPU kernels compile for GPUs that are not here, fit there, and fetch ahead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.gpu_kernels import TRITON
from support.slow import random_runs

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu_compiled.py"
# Bytes of shared memory that a program may have (CUDA programming guide).
SHARED_MEMORY = {"H100": 232_448, "A100": 166_912, "L4": 101_376}
# The L4 has the least room, and wide heads take the most; the others wait for the long runs.
DEVICES = [*SHARED_MEMORY] if random_runs(0) else ["L4"]
DIMS = [] if random_runs(0) else ["--dims", "64", "256"]
PROGRAMS = {
    "list_items", "store", "attend", "merge", "norm", "activate", "draw", "copy_blocks",
    "prepare", "recur", "gate", "convolve", "keep", "keep_drafts",
    "choose", "sort_pairs", "list_tiles", "multiply", "add_up",
}  # fmt: skip
FEW_BYTES = 128  # that a thread may keep outside its registers


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("device", DEVICES)
def test_every_launch_compiles_and_fits(device: str) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", "--device", device, *DIMS],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONWARNINGS": "ignore"},
    )
    assert run.returncode == 0, run.stderr
    launches = [json.loads(line) for line in run.stdout.splitlines()]
    assert {launch["program"] for launch in launches} == PROGRAMS
    for launch in launches:
        assert launch["shared"] <= SHARED_MEMORY[device], launch
        # Caches of 8 bits take many registers to convert, and compilers differ in what they do.
        assert launch["spilled"] <= FEW_BYTES or launch["kv_dtype"] in ("i8", "fp8e4nv"), launch
        if launch["program"] == "attend":
            assert launch["at_once"] > 0, launch
            # Another program computes, or there are copies under way, while one waits for its own.
            assert launch["at_once"] > 1 or launch["copies_ahead"] > 0, launch
