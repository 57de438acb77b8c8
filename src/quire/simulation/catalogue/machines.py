"""Machines by the figures on which a step's time depends, from their makers' data sheets."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from quire.errors import ConfigError

GB = 10**9
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """One accelerator, or a CPU box. Bytes, and bytes or operations per second.

    memory: what the driver reports, which is less than the name says.
    flops: dense, in 16 bits with 32-bit sums.
    host_bandwidth: one way, over which blocks are swapped.
    link_bandwidth: one way, to the others of a tensor-parallel group.
    compute_share, bandwidth_share: what large matrix products and long reads attain of the peaks.
    step_seconds: a step's fixed cost: launches, scheduling, sampling.
    is_cpu: others use its memory too, so that a pool takes less of it by default.
    """

    name: str
    memory: int
    flops: float
    bandwidth: float
    host_bandwidth: float
    link_bandwidth: float
    compute_share: float = 0.6
    bandwidth_share: float = 0.8
    step_seconds: float = 0.003
    is_cpu: bool = False


MACHINES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine("a100-40", 40 * GIB, 312e12, 1555 * GB, 25 * GB, 300 * GB),
        Machine("a100-80", 80 * GIB, 312e12, 2039 * GB, 25 * GB, 300 * GB),
        Machine("h100", 80 * GIB, 989e12, 3350 * GB, 50 * GB, 450 * GB),
        Machine("h200", 141 * GB, 989e12, 4800 * GB, 50 * GB, 450 * GB),
        Machine("l4", 24 * GB, 121e12, 300 * GB, 25 * GB, 25 * GB),
        # 32 cores with AVX-512 and eight channels of DDR5-4800; swapping is a copy in memory.
        Machine("cpu", 256 * GIB, 4e12, 307 * GB, 100 * GB, 50 * GB, is_cpu=True),
    )
}


def find_machine(name: str) -> Machine:
    """A machine of the catalogue, or ConfigError with its neighbours."""
    machine = MACHINES.get(name.lower())
    if machine is None:
        close = difflib.get_close_matches(name.lower(), MACHINES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"unknown machine {name!r}; {hint}known: {', '.join(MACHINES)}")
    return machine
