"""Fit what engines attain of GPUs to published runs, and see how far off those held out are.

    python benchmarks/published_runs.py

The runs are in quire_lab's ``simulation/catalogue/published.json``, with their sources. What is not
held out of each engine's, on machines that are alike (APART), is fitted: least absolute logarithms
of expected over measured. What is printed is what ``engines.json`` has as ``attained``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire_lab.simulation.catalogue.engines import ENGINES, Attained
from quire_lab.simulation.catalogue.machines import MACHINES
from quire_lab.simulation.published import APART, CURRENT, RUNS, PublishedRun, errors

_FITTED = ("compute_share", "bandwidth_share", "step_us", "launch_us", "first_token_ms")
_FITTED_TOO = {"sglang": ("narrow_share", "piece_us")}  # whose runs are many and of many kinds
_BEGINS = (
    Attained(step_us=10.0, launch_us=15.0, first_token_ms=10.0),
    Attained(step_us=10.0, launch_us=70.0, first_token_ms=50.0),
)
_AMONG = 0.8  # the share of runs that an error bar holds
_FEWEST = 3  # runs, of which something is said
_NOTHING = ("machine", "runs")  # of which nothing else can be said
_MOST_SHARE = 0.9  # of a data sheet, that anybody attains
_FINE = 1.003
_GAIN = 1e-6  # of the loss, below which a change is none


def main() -> None:
    argparse.ArgumentParser(
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    for engine, release in dict.fromkeys((run.engine, run.release) for run in RUNS):
        of = [run for run in RUNS if (run.engine, run.release) == (engine, release)]
        for machines in (*APART, ()):
            runs = [run for run in of if run.judged_with == machines]
            if runs:
                _tell(f"{engine} {release}".strip(), runs, machines)
    print("data sheet only:", json.dumps(_measured("", CURRENT, Attained())))


def _tell(title: str, runs: Sequence[PublishedRun], machines: Sequence[str]) -> None:
    fitted = [run for run in runs if not run.is_held_out]
    held = [run for run in runs if run.is_held_out]
    recorded = ENGINES[runs[0].engine].attained_of(MACHINES[runs[0].machine]).recorded
    found = fit(fitted, recorded)
    names = fitted_of(runs)
    told = []
    for mixtures in (False, True):
        alike = [run for run in held if (run.shape.experts is not None) is mixtures]
        for name in (*dict.fromkeys(run.machine for run in alike), ""):
            one = _measured(name, [run for run in alike if name in ("", run.machine)], found)
            told += [{**one, "mixtures": mixtures}] if len(one) > len(_NOTHING) else []
    told.append(_measured("", held, found))
    figures = {name: round(getattr(found, name), 4) for name in names}
    print(f"{title}: {len(fitted)} fitted, {len(held)} held out")
    for what, attained in (("fitted", found), ("as without", Attained())):
        means = {name: f"{sum(each) / len(each):.1%} of {len(each)}"
                 for name, each in errors(held, attained).items()}  # fmt: skip
        print(f"  mean error of what was held out, {what}: {means}")
    limited: dict[str, Any] = {"machines": machines} if machines else {}
    limited |= {"recorded": recorded} if any(recorded) else {}
    print(json.dumps({**limited, **figures, "errors": told}), flush=True)


def fitted_of(runs: Sequence[PublishedRun]) -> tuple[str, ...]:
    return (*_FITTED, *_FITTED_TOO.get(runs[0].engine, ()))


def fit(runs: Sequence[PublishedRun], recorded: tuple[int, int] = (0, 0)) -> Attained:
    """The best that is found from each beginning."""
    begins = [replace(begin, recorded=recorded) for begin in _BEGINS]
    if any(recorded):
        begins = [replace(begin, piece_us=300.0) for begin in begins]
    if all(run.engine == "llamacpp" for run in runs):  # llama-bench has no clients, who wait
        begins = [replace(begin, first_token_ms=0.0) for begin in begins]
    return min((_fit(runs, begin) for begin in begins), key=lambda found: _loss(runs, found))


def _fit(runs: Sequence[PublishedRun], best: Attained) -> Attained:
    """By trying each figure a little larger and smaller, in ever smaller steps."""
    least, step = _loss(runs, best), 1.3
    while step > _FINE:
        before = least
        for name in fitted_of(runs):
            for times in (step, 1 / step):
                value = getattr(best, name) * times
                if value > (1.0 if name == "narrow_share" else _MOST_SHARE) and "share" in name:
                    continue
                tried = replace(best, **{name: value})
                if (loss := _loss(runs, tried)) < least * (1 - _GAIN):
                    best, least = tried, loss
        if least == before:
            step = 1 + (step - 1) / 2
    return best


def _loss(runs: Sequence[PublishedRun], attained: Attained) -> float:
    return sum(abs(math.log(times)) for run in runs for _, times in run.off(attained))


def _measured(machine: str, runs: Sequence[PublishedRun], attained: Attained) -> dict[str, Any]:
    told: dict[str, Any] = dict(zip(_NOTHING, (machine, len(runs)), strict=True))
    for name, each in errors(runs, attained).items():
        if len(each) >= _FEWEST:
            most = sorted(each)[math.ceil(_AMONG * len(each)) - 1]
            told[name.replace(" ", "_")] = round(most, 3)
    return told


if __name__ == "__main__":
    main()
