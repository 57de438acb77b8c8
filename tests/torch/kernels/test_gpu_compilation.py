"""The GPU kernels compile for GPUs that are not here, and fit in their shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import gpu_kernels
from support.gpu_kernels import TRITON

# Bytes of shared memory that a program may have, by compute capability (CUDA programming guide).
SHARED_MEMORY = {(9, 0): 232_448, (8, 0): 166_912, (8, 9): 101_376}
PROGRAMS = {"list_items", "store", "attend", "merge", "norm", "activate", "copy_blocks"}


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
def test_every_launch_compiles_and_fits() -> None:
    support = Path(gpu_kernels.__file__).parent
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONWARNINGS": "ignore"}
    run = subprocess.run(
        [sys.executable, str(support / "compiled_launches.py")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    launches = [json.loads(line) for line in run.stdout.splitlines()]
    assert {launch["program"] for launch in launches} == PROGRAMS
    for launch in launches:
        assert launch["shared"] <= SHARED_MEMORY[tuple(launch["capability"])], launch
