"""Which build of the C++ kernels computes here, and why not a better one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quire.core.errors import DOCTOR, ConfigError
from quire.kernels.compiled import KERNELS, need, why_missing

logger = logging.getLogger(__name__)

_LACKS = "the processor has no"  # so begin refusals that no system could lift
NOT_COMPILED = "it was not compiled"  # for the machine on which the module was built


class Instructions(NamedTuple):
    """A build of the C++ kernels, one for each set of a processor's instructions."""

    name: str  # empty: there are none, and PyTorch computes
    refusals: Mapping[str, str] = {}  # why the builds do not run that would be faster, best first
    asked_for: bool = False  # else it is the best that runs

    def describe(self) -> str:
        """The instructions in words, for the user who starts the engine."""
        if not self.name:
            return "none, so that plain PyTorch computes"
        if self.asked_for:
            return f"{self.name}, as cpu_isa says"
        reasons = "; ".join(f"{build}: {why}" for build, why in self.refusals.items())
        return f"{self.name} ({reasons})" if reasons else self.name


def choose_instructions(wanted: str = "auto") -> Instructions:
    """The build called ``wanted``; auto: the best that this machine can run.

    Raises:
        ConfigError: there is none of that name, or it cannot run here.
    """
    if wanted != "auto":
        need(KERNELS, f"cpu_isa {wanted!r} needs the kernels", "leave it out")
    if why_missing(KERNELS) is not None:
        return Instructions("")
    from quire.kernels import cpu

    chosen = choose(wanted, cpu.all_builds(), cpu.refusals())
    _log(chosen)
    return chosen


def choose(wanted: str, builds: Sequence[str], refusals: Mapping[str, str]) -> Instructions:
    """The best of ``builds`` that is not in ``refusals``, or the wanted one."""
    usable = [name for name in builds if name not in refusals]
    if wanted != "auto" and wanted not in builds:
        raise ConfigError(f"cpu_isa must be one of auto, {', '.join(builds)}; got {wanted!r}")
    if wanted in refusals:
        raise ConfigError(
            f"cpu_isa {wanted!r} cannot run here: {refusals[wanted]}; this machine can run "
            f"{', '.join(usable)}; {DOCTOR}"
        )
    if wanted != "auto":
        return Instructions(wanted, asked_for=True)
    better = builds[: builds.index(usable[0])]
    return Instructions(usable[0], {name: refusals[name] for name in better})


def lifted_by_nobody(why: str) -> bool:
    """Whether a refusal is for what the processor lacks, which no setting changes."""
    return why.startswith(_LACKS)


def _log(chosen: Instructions) -> None:
    """A warning where the processor could do better, and something may be done about it."""
    withheld = not all(map(lifted_by_nobody, chosen.refusals.values()))
    level = logging.WARNING if withheld else logging.INFO
    logger.log(level, "kernels: %s", chosen.describe())
