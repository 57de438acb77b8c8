"""How many drafts of whom the next step verifies."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import NamedTuple

from quire.capabilities.speculation.costs import Measured, PassCosts, StepCosts
from quire.capabilities.speculation.proposal import Proposal
from quire.core.protocol import TO_DRAFT

_SHARE = 0.01  # of the time may be lost by it
_SAVED = 8  # steps' time, at most
_APART = 16  # steps
_FAINTEST = 0.05  # a draft less likely right than that pays nowhere
_MARGIN = 1.02  # how much faster it must be than none: estimates are no better than that
_NONE = 2.0  # a chance that no draft has


class Trials:
    """Steps in which draft models are tried: their cost and use can be learnt in no other way."""

    def __init__(self) -> None:
        self._credit = 0.0  # seconds
        self._steps = 0  # since the last one

    @property
    def due(self) -> bool:
        """Whether the last trial was long enough ago."""
        return self._steps >= _APART

    def affords(self, loss: float) -> bool:
        """Whether ``loss`` seconds may be lost now."""
        return loss <= self._credit

    def earn(self, seconds: float) -> None:
        """A step took so long."""
        self._steps += 1
        self._credit = min(self._credit + _SHARE * seconds, _SAVED * seconds)

    def spend(self, loss: float) -> None:
        """A trial lost ``loss`` seconds; less than none, if it paid."""
        self._steps = 0
        self._credit -= max(0.0, loss)


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


class Choice(NamedTuple):
    """The drafts to verify: those whose chance is at least ``least``."""

    least: float
    tokens: float  # that the step is expected to confirm
    seconds: float  # that it is expected to take
    gain: float  # tokens a second, of those without drafts
    passes: int = 0  # of a draft model
    trial: bool = False  # only to see what passes take, and give

    def count(self, guess: Guess) -> int:
        """Drafts of a guess that are to be verified."""
        if not guess.in_step:
            return sum(chance >= self.least for chance in guess.chances)
        least = 0.0 if self.trial else _FAINTEST
        return sum(chance >= least for chance in guess.chances[: self.passes])


class Offer(NamedTuple):
    """What some passes of a draft model would bring, for all sequences that it may draft for."""

    passes: int
    tokens: float  # that are expected of it
    seconds: float  # that it adds to a step, with the rows that it leads to


_NO_OFFER = Offer(0, 0.0, 0.0)


def plan(measured: Measured, trials: Trials, rows: int, guesses: Seq[Guess]) -> Choice | None:
    """What gives the most tokens a second; None: no drafts. ``rows``: sequences that decode."""
    costs, plain = measured.costs, measured.plain(rows)
    known = [guess.chances for guess in guesses if not guess.in_step]
    best = choose(costs, plain, rows, known) if known else None
    if len(known) == len(guesses):
        return best
    passes, made = measured.passes(rows), [guess.chances for guess in guesses if guess.in_step]
    offers = _offers(passes, plain, made)
    offer = max(offers, key=lambda one: (rows + one.tokens) / (plain + one.seconds))
    choice = choose(costs, plain, rows, known, offer)
    if choice is not None and (best is None or choice.gain > best.gain):
        best = choice
    found = _trials(passes, plain, rows, offers, best) if trials.due else []
    loss, trial = min(found, default=(0.0, None))
    return trial if trial is not None and trials.affords(loss) else best


def _offers(passes: PassCosts, plain: float, made: Seq[Seq[float]]) -> list[Offer]:
    """The offers of each number of passes."""
    longest, sums = max(map(len, made)), [list(accumulate(own)) for own in made]
    return [
        Offer(count, sum(own[min(count, len(own)) - 1] for own in sums), share * plain)
        for count, share in passes.shares
        if count <= longest
    ]


def _trials(
    passes: PassCosts, plain: float, rows: int, offers: Seq[Offer], best: Choice | None
) -> list[tuple[float, Choice]]:
    """Choices that are not the best known but should be measured; each with its expected loss."""
    due = passes.due()
    if due is None and best is not None and best.passes:
        return []
    rate = rows / plain if best is None else best.tokens / best.seconds
    found = []
    for count, more, seconds in offers:
        if due in (None, count):
            tokens, seconds = rows + more, plain + seconds
            gain = tokens / seconds * plain / rows
            choice = Choice(_NONE, tokens, seconds, gain, count, trial=True)
            found.append((seconds - tokens / rate, choice))
    return found


def choose(
    costs: StepCosts,
    plain: float,
    rows: int,
    chances: Seq[Seq[float]],
    offer: Offer = _NO_OFFER,
) -> Choice | None:
    """What of these drafts gives the most tokens a second; None: none of them.

    A draft is a row more, and worth the chance that it and all before it are right. So the
    likeliest are taken, of whichever sequence, as long as that makes the step worth more.

    Args:
        plain: seconds of a step without drafts, of ``rows`` rows.
        chances: by sequence, of each of its drafts; they descend.
        offer: of a draft model, which is taken.
    """
    ranked = sorted((one for own in chances for one in own if one > _FAINTEST), reverse=True)
    del ranked[max(0, costs.most - rows) :]
    ranked.insert(0, offer.tokens)
    without, best, place = rows / plain, 0.0, -1
    most, tokens = without * _MARGIN, float(rows)
    times = [plain, *costs.several(rows + 1, len(ranked) - 1)]
    for number, taken in enumerate(times):
        tokens += ranked[number]
        if tokens > most * (taken + offer.seconds):
            most, place, best = tokens / (taken + offer.seconds), number, tokens
    if place < 0:
        return None
    least = ranked[place] if place else _NONE
    return Choice(least, best, best / most, most / without, offer.passes)
