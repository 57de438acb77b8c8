"""Runs in which blocks have no names, which are simulated sooner, where that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from quire.core.limits import EngineLimits
from quire.core.protocol import Step
from quire_lab.contiguous import PAGED, name_of
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.sample import WorkloadSample

Result = TypeVar("Result")
OnStep = Callable[[float, Step], None]


class NamesMatter(Exception):
    """A sequence was preempted, and may find its own blocks when it comes back."""


def nobody_gives_way(now: float, step: Step) -> None:
    """For ``Simulator.on_step``: raises NamesMatter as soon as a sequence is preempted."""
    if any(decision.what.preempts for decision in step.decisions):
        raise NamesMatter


def nameless(limits: EngineLimits, sample: WorkloadSample) -> EngineLimits | None:
    """The same without prefix caching; None where that would, or could, be something else."""
    if sample.shares_prefixes or not ((name_of(limits) == PAGED) and limits.enable_prefix_caching):
        return None
    return replace(limits, enable_prefix_caching=False)


def nameless_deployment(deployment: Deployment, sample: WorkloadSample) -> Deployment | None:
    """``nameless`` for the settings."""
    if nameless(deployment.limits(), sample) is None:
        return None
    return deployment.configured(enable_prefix_caching=False)


def sooner(without: Callable[[], Result] | None, named: Callable[[], Result]) -> Result:
    """The result of ``named``, computed without block hashes (``without``) if that is the same.

    If no two prompts begin alike, only a preempted sequence can find a block, its own, when it
    comes back. Then ``without`` raises NamesMatter.
    """
    if without is not None:
        try:
            return without()
        except NamesMatter:
            pass
    return named()
