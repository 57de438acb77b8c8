"""What of a machine's facts makes Quire slower than it could be, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from quire.kernels.compiled import REMEDY
from quire.kernels.instructions import NOT_COMPILED, lifted_by_nobody
from quire.tools.doctor.facts import Facts

_BUSY = 0.1  # of the processor's time
_LITTLE_MEMORY = 2 << 30  # bytes
_FEW_CONNECTIONS = 1024


class Advice(NamedTuple):
    """Something that costs speed, and what would end it."""

    finding: str
    remedy: str


def advise(facts: Facts) -> list[Advice]:
    """Advice, the most important first."""
    return [
        *_namesakes(facts),
        *(_computing(facts) if facts.torch_missing is None else _without_torch(facts)),
        *_memory(facts),
        *_limits(facts),
    ]


def _namesakes(facts: Facts) -> Iterator[Advice]:
    if facts.namesakes:
        others = " ".join(facts.namesakes)
        yield Advice(
            f"{others} has a module quire as well, and of two files with one name there is the one "
            "that was installed last",
            f"pip uninstall {others} quire-llm, and then install quire-llm again",
        )


def _without_torch(facts: Facts) -> Iterator[Advice]:
    yield Advice(
        f"PyTorch cannot be loaded ({facts.torch_missing}), without which no model runs",
        "pip install torch (where there is no GPU its CPU builds are a sixth as large: "
        "--index-url https://download.pytorch.org/whl/cpu)",
    )


def _computing(facts: Facts) -> Iterator[Advice]:
    yield from _kernels(facts)
    yield from _gpus(facts)
    yield from _cores(facts)


def _kernels(facts: Facts) -> Iterator[Advice]:
    if facts.kernels is None:
        yield Advice(
            f"there are no C++ kernels ({facts.kernels_missing}), so plain PyTorch computes, many "
            "times slower",
            f"{REMEDY}, or install a wheel of Quire, which carries them",
        )
    for build, why in facts.refusals.items():
        if not lifted_by_nobody(why):
            remedy = (
                "use a newer kernel (for AMX Linux 5.16 or later), or a container or virtual "
                "machine that passes it on"
            )
            if why.startswith(NOT_COMPILED):
                remedy = "install Quire again on this machine"
            yield Advice(f"the kernels for {build} do not run: {why}", remedy)


def _gpus(facts: Facts) -> Iterator[Advice]:
    if facts.gpus and not facts.uses_gpu:
        remedy = "look at what nvidia-smi and torch.cuda.is_available() say"
        if facts.torch_build == "cpu":
            remedy = "install PyTorch's CUDA build: make serve TORCH=cuda in a fresh environment"
        yield Advice(f"there is a GPU ({facts.gpus[0]}), but PyTorch does not use it", remedy)


def _cores(facts: Facts) -> Iterator[Advice]:
    if facts.others_share > _BUSY:
        yield Advice(
            f"other programs took {facts.others_share:.0%} of the processor's time just now",
            "stop them, or give Quire cores of its own: taskset -c LIST quire serve ...",
        )
    if facts.cpu_quota is not None and facts.cpu_quota != math.floor(facts.cpu_quota):
        yield Advice(
            f"the container grants {facts.cpu_quota:g} CPUs, of which {facts.cores} compute",
            "grant whole ones, one for each thread that computes",
        )
    if facts.threads < facts.cores:
        yield Advice(
            f"{facts.threads} of {facts.cores} cores compute",
            "unset OMP_NUM_THREADS, or say --threads",
        )
    if facts.variables.get("OMP_WAIT_POLICY", "").lower() == "active":
        yield Advice(
            "OMP_WAIT_POLICY is active: on cores that others use too, every barrier then waits "
            "for the system",
            "unset it",
        )
    if facts.governor == "powersave":
        yield Advice(
            "the processor's frequency is governed by powersave",
            "as root: cpupower frequency-set -g performance",
        )
    if facts.numa_nodes > 1:
        yield Advice(
            f"the memory has {facts.numa_nodes} NUMA nodes, and Quire does not bind to any",
            "run a server on each: numactl --cpunodebind=0 --membind=0 quire serve ...",
        )


def _memory(facts: Facts) -> Iterator[Advice]:
    if facts.huge_pages == "never" and not facts.uses_gpu:
        yield Advice(
            "the system gives no huge pages, so weights and KV cache are looked up page by page",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    if facts.free < _LITTLE_MEMORY:
        yield Advice(
            f"only {facts.free / 2**30:.1f} GiB of memory are free for weights and KV cache",
            "end other programs, or raise the container's limit; quire models tells what fits",
        )


def _limits(facts: Facts) -> Iterator[Advice]:
    if facts.most_connections is not None and facts.most_connections < _FEW_CONNECTIONS:
        yield Advice(
            f"the limit of open files leaves {facts.most_connections} connections",
            "raise it: ulimit -n 65536, or LimitNOFILE= in a systemd unit",
        )
