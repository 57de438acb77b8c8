"""What Quire and its peers have in common here."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.cache import Cache
from benchmarks.peers.workloads import Workload

BITS: Mapping[str, float] = {
    "bf16": 16,
    "int8": 8,
    "w8a8": 8,
    "int4": 4,
    "w4a8": 4,
    "Q8_0": 8.5,
    "Q4_K_M": 4.85,
    "Q4_0": 4.5,
}
"""Of Quire's weights. A peer has forms of its own, which go by the same names but for those in
``OF_PEERS``; those of GGUF are the same file for both, and have their scales counted in."""
OF_PEERS: Mapping[str, str] = {"w8a8": "int8", "w4a8": "int4"}
"""Who keeps such weights rounds activations as well, if at all, without being asked."""


class Setup(NamedTuple):
    """What all measurements have in common."""

    cache: Cache
    threads: int
    cpu_isa: str | None
    cache_gib: int = 1  # of keys, values and states


class Run(NamedTuple):
    """One measurement."""

    shape: str
    weights: str
    workload: Workload
    file: Path  # the workload's


class System(ABC):
    """Something that serves models."""

    title: str
    forms: Mapping[str, str]  # of weights / KV cache, for people; by the name of the weights

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def set_up(self, shape: str, weights: str) -> None:
        """Install and convert what a run needs, unless that is done. Raises PeerError."""

    @abstractmethod
    def command(self, run: Run) -> list[str]:
        """What serves the workload, and at last prints a report as ``quire bench`` does."""

    def environment(self) -> dict[str, str]:
        """Variables of the command."""
        return {**os.environ, "HF_HUB_OFFLINE": "1"}

    def form(self, weights: str, report: Mapping[str, Any]) -> str:
        """What of ``forms`` a report is of, where only the run can tell."""
        return self.forms[weights]


class Peer(System):
    """A system that a runner calls, ``benchmarks.peers.runners.RUNNER``."""

    runner: str

    @abstractmethod
    def python(self) -> Path:
        """Of the environment that the runner runs in; installed if it is not."""

    @abstractmethod
    def model(self, shape: str, weights: str) -> Path:
        """What the peer loads; converted if it is not."""

    def set_up(self, shape: str, weights: str) -> None:
        self.python()
        self.model(shape, weights)

    def command(self, run: Run) -> list[str]:
        command = [
            *(str(self.python()), "-m", f"benchmarks.peers.runners.{self.runner}"),
            *("--model", str(self.model(run.shape, run.weights)), "--workload", str(run.file)),
            *("--threads", str(self.setup.threads), "--cache-gib", str(self.setup.cache_gib)),
        ]
        return [*command, "--prefix-caching"] if run.workload.shares_a_prefix else command

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "OMP_NUM_THREADS": str(self.setup.threads)}
