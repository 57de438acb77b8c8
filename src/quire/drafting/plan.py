"""How many drafts of whom the next step verifies."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from quire.drafting.costs import StepCosts
from quire.drafting.measured import Measured
from quire.drafting.proposal import Proposal
from quire.protocol import TO_DRAFT

_FAINTEST = 0.05  # a draft less likely right than that pays nowhere
_MARGIN = 1.02  # how much faster it must be than none: estimates are no better than that
_PASSES = (1, 2, 3, 4, 6, 8, 12, 16)  # of a draft model, that are weighed against each other


class Guess(NamedTuple):
    """What one drafter says about a sequence."""

    request_id: str
    seq_id: int
    drafter: int  # its number
    proposal: Proposal
    chances: Seq[float]  # of each draft, that it and all before it are right

    @property
    def in_step(self) -> bool:
        """Whether the drafts are made by a model, in the step that verifies them."""
        return self.proposal.tokens[0] == TO_DRAFT

    def worth(self, least: float, passes: int) -> int:
        """Its drafts that are at least so likely right."""
        chances = self.chances[:passes] if self.in_step else self.chances
        return sum(chance >= least for chance in chances)


class Choice(NamedTuple):
    """Drafts that are at least so likely right are worth their rows."""

    least: float
    tokens: float  # that the step is expected to confirm
    seconds: float  # that it is expected to take
    gain: float  # tokens a second, of those without drafts
    passes: int  # of a draft model


def plan(measured: Measured, rows: int, guesses: Seq[Guess]) -> Choice | None:
    """What gives the most tokens a second; None: no drafts. ``rows``: sequences that decode."""
    costs, plain = measured.costs, measured.plain(rows)
    known = [guess.chances for guess in guesses if not guess.in_step]
    best = choose(costs, plain, rows, known)
    made = [guess.chances for guess in guesses if guess.in_step]
    if not made:
        return best
    most = min(measured.most_passes, max(map(len, made)))
    for passes in _PASSES:
        if passes > most:
            break
        chances = known + [own[:passes] for own in made]
        choice = choose(costs, plain, rows, chances, measured.pass_seconds(passes, rows))
        if choice is not None and (best is None or choice.gain > best.gain):
            best = choice._replace(passes=passes)
    return best


def choose(
    costs: StepCosts, plain: float, rows: int, chances: Seq[Seq[float]], extra: float = 0.0
) -> Choice | None:
    """What of these drafts gives the most tokens a second; None: none of them.

    A draft is a row more, and worth the chance that it and all before it are right. So the
    likeliest are taken, of whichever sequence, as long as that makes the step worth more.

    Args:
        plain: seconds of a step without drafts, of ``rows`` rows.
        chances: by sequence, of each of its drafts; they descend.
        extra: seconds that it takes to have any of these drafts.
    """
    ranked = sorted((one for own in chances for one in own if one > _FAINTEST), reverse=True)
    del ranked[max(0, costs.most - rows) :]
    without, best, place = rows / plain, 0.0, -1
    most, tokens = without * _MARGIN, float(rows)
    for number, taken in enumerate(costs.several(rows + 1, len(ranked))):
        tokens += ranked[number]
        if tokens > most * (taken + extra):
            most, place, best = tokens / (taken + extra), number, tokens
    if place < 0:
        return None
    return Choice(ranked[place], best, best / most, most / without, 0)
