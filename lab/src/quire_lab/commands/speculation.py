"""``plan``'s answer about speculation, as text and as JSON values."""

from __future__ import annotations

from typing import Any

from quire.tools.commands.text import table
from quire_lab.commands.text import number, percent, seconds
from quire_lab.simulation.export import draft_values
from quire_lab.simulation.planning.trials import WORTH, DraftTrials, Trial

_GAINS = {
    "goodput": "{:.2f} times the goodput",
    "tpot": "tokens {:.2f} times as fast",
    "output_rate": "{:.2f} times the output tokens/s",
}


def describe_trials(trials: DraftTrials) -> list[str]:
    """The answer, and a table of what it rests on."""
    with_goals = trials.without.goodput is not None
    head = ["drafts a step", "right", "tokens a step", "output tokens/s", "TTFT p90", "TPOT p90"]
    rows = [[*head, *["goodput"] * with_goals, ""]]
    for trial in (trials.without, *trials.fixed, trials.chosen):
        rows.append([*_cells(trial), f"x {trials.gain(trial):.2f}"])
    return [f"speculation   {_answer(trials)}", *table(rows)]


def _answer(trials: DraftTrials) -> str:
    best, most, ours = trials.best, trials.gain(trials.best), trials.gain(trials.chosen)
    gain = _GAINS[trials.measure]
    helps = "yes" if max(most, ours) >= WORTH else "no"
    drafts = "1 draft" if best.drafts == 1 else f"{best.drafts} drafts"
    return (
        f"{helps}: with {trials.load}, at best {drafts} in each step: {gain.format(most)}; as many "
        f"as the engine chooses: {ours:.2f} times"
    )


def _cells(trial: Trial) -> list[str]:
    drafts, result = trial.result.drafts, trial.result
    name = "as it chooses" if trial.drafts is None else f"{trial.drafts or 'none'}"
    right = drafts.num_accepted_tokens / drafts.num_draft_tokens if any(drafts) else None
    cells = [
        name,
        percent(right),
        f"{result.tokens_per_step:.2f}",
        number(result.output_rate),
        seconds(result.ttft.p90),
        seconds(result.tpot.p90),
    ]
    return cells if trial.goodput is None else [*cells, f"{number(trial.goodput)} /s"]


def trials_values(trials: DraftTrials) -> dict[str, Any]:
    """The trials as plain JSON values."""
    everything = (trials.without, *trials.fixed, trials.chosen)
    return {
        "load": trials.load,
        "measure": trials.measure,
        "best_num_speculative_tokens": trials.best.drafts,
        "helps": max(map(trials.gain, everything)) >= WORTH,
        "trials": [
            {
                "num_speculative_tokens": "chosen" if one.drafts is None else one.drafts,
                "gain": trials.gain(one),
                "goodput_requests_per_second": one.goodput,
                "output_rate": one.result.output_rate,
                "ttft_p90": one.result.ttft.p90,
                "tpot_p90": one.result.tpot.p90,
                "tpot_mean": one.result.tpot.mean,
                **draft_values(one.result),
            }
            for one in everything
        ],
    }
