"""Would speculation help this traffic, and with how many drafts?"""

from __future__ import annotations

from dataclasses import replace

from quire_lab.simulation.drafting import SimulatedDrafting
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.plan import Saturation
from quire_lab.simulation.planning.planner import Planner
from quire_lab.simulation.planning.trials import DraftTrials, Trial
from quire_lab.simulation.sample import WorkloadSample

DRAFTS = (1, 2, 3, 4, 6, 8, 12, 16)

_FEW = 200  # requests: no steps are skipped where drafts are verified
_FEW_TOKENS = 20_000  # of their outputs


def try_drafts(
    planner: Planner,
    drafting: SimulatedDrafting,
    users: int | None,
    rate: float | None,
    base: Saturation,
) -> DraftTrials:
    """Simulate one load again and again. ``base``: everybody at once."""
    rate = rate or (planner.sample.rate if users is None else None)
    at_once = 2 * base.most_running if users is None and rate is None else 4 * (users or 0)
    sample = _few(planner.sample, at_once)
    with_goals = planner.goals != Goals()

    def trial(drafts: int | None) -> Trial:
        planner.progress("drafts as the engine chooses" if drafts is None else f"{drafts} drafts")
        ours = None if drafts == 0 else drafting.always(drafts)
        deployment = replace(planner.deployment, drafting=ours)
        other = replace(planner, deployment=deployment, sample=sample)
        limits, goodput = deployment.limits(), None
        if with_goals:
            found = other.goodput(limits, base)
            goodput = found.rate or found.poisson or 0.0
        return Trial(drafts, other.load(limits, users, rate), goodput)

    return DraftTrials(
        load=_load(users, rate),
        measure="goodput" if with_goals else "output_rate" if users or not rate else "tpot",
        without=trial(0),
        fixed=tuple(trial(count) for count in DRAFTS),
        chosen=trial(None),
    )


def _load(users: int | None, rate: float | None) -> str:
    if users is not None:
        return "one user, with one request at a time" if users == 1 else f"{users} users at once"
    return "everybody at once" if rate is None else f"{rate:.3g} requests/s"


def _few(sample: WorkloadSample, least: int) -> WorkloadSample:
    """The first requests, but at least ``least`` if there are as many."""
    count = tokens = 0
    for request in sample.requests[: max(_FEW, least)]:
        if tokens >= _FEW_TOKENS and count >= least:
            break
        count, tokens = count + 1, tokens + request.output_tokens
    return replace(sample, requests=sample.requests[:count])
