"""``quire doctor``: this machine, the kernels that it runs, and what would make it faster."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from quire.tools.commands.command import Command
from quire.tools.commands.text import size

if TYPE_CHECKING:
    from quire.tools.doctor.facts import Facts

_GB = 10**9


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def doctor(arguments: argparse.Namespace) -> int:
    """Gather facts, measure and advise; the exit status."""
    from quire.tools.doctor.advice import advise
    from quire.tools.doctor.facts import gather

    facts = gather()
    advice = advise(facts)
    if arguments.json:
        print(json.dumps({**asdict(facts), "advice": [one._asdict() for one in advice]}, indent=1))
        return 0
    print("\n".join(describe(facts)))
    print("\nWhat would make it faster:" if advice else "\nNothing here would make it faster.")
    for number, (finding, remedy) in enumerate(advice, 1):
        print(f"  {number}. {finding[0].upper()}{finding[1:]}.\n     {remedy}")
    return 0


def describe(facts: Facts) -> list[str]:
    """The facts as text, one per line."""
    rows = {
        "processor": f"{facts.processor}; {facts.cores} cores of {facts.cpus} CPUs to use",
        "kernels": _kernels(facts),
        "memory": _memory(facts),
        "container": _container(facts),
        "huge pages": {
            None: "unknown on this system",
            "never": "never",
            "madvise": "on request (madvise), and Quire requests them",
            "always": "always",
        }.get(facts.huge_pages, facts.huge_pages or ""),
        "threads": _threads(facts),
        "GPU": _gpus(facts),
        "models": f"in {facts.models}, {size(facts.models_free)} free",
        "downloads": facts.hub_missing or "Hugging Face answers",
    }
    return [facts.versions, *(f"  {name:<12}{text}" for name, text in rows.items())]


def _kernels(facts: Facts) -> str:
    if facts.torch_missing is not None:
        return "none, as there is no PyTorch"
    if facts.kernels is None:
        return "none: plain PyTorch computes"
    reasons = "; ".join(f"not {build}: {why}" for build, why in facts.refusals.items())
    return f"{facts.kernels} ({reasons or 'the best there is'})"


def _memory(facts: Facts) -> str:
    text = f"{size(facts.memory)}, {size(facts.free)} free"
    if facts.bandwidth is not None:
        rate = facts.bandwidth / 2**30
        text += (
            f"; read at {facts.bandwidth / _GB:.1f} GB/s: one user of a model with 1 GiB of "
            f"weights gets at most {rate:.0f} tokens/s"
        )
    return text


def _container(facts: Facts) -> str:
    limits = []
    if facts.cpu_quota is not None:
        limits.append(f"{facts.cpu_quota:g} CPUs")
    if facts.memory_limit is not None:
        by = f" ({facts.limited_by})" if facts.limited_by else ""
        limits.append(f"{size(facts.memory_limit)} of memory{by}")
    return " and ".join(limits) if limits else "no limits"


def _threads(facts: Facts) -> str:
    variables = ", ".join(f"{name}={value}" for name, value in facts.variables.items())
    return f"{facts.threads or 'none'} compute" + (f" ({variables})" if variables else "")


def _gpus(facts: Facts) -> str:
    if not facts.gpus:
        return "none"
    used = "used" if facts.uses_gpu else "not used by this PyTorch"
    return f"{'; '.join(facts.gpus)} ({used})"


COMMAND = Command(add_doctor, doctor)
