"""Why a sequence is drafted for, in words and figures."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from quire.capabilities.speculation.costs import Measured
from quire.capabilities.speculation.plan import Choice, Guess
from quire.core.protocol import Decision, Verdict

_EVERY = 64  # guesses between two decisions about one sequence


class Decisions:
    """Tells when drafting for a sequence begins or ends, or changes a lot."""

    def __init__(self, names: Seq[str]) -> None:
        """names: of the drafters."""
        self._names = names
        self._told: dict[int, int] = {}  # drafts, by sequence
        self._since: dict[int, int] = {}  # guesses about it since

    def about(
        self, guess: Guess, count: int, choice: Choice | None, measured: Measured, rows: int
    ) -> Decision | None:
        """The decision to tell of ``count`` drafts for a sequence, beside ``rows`` other rows."""
        seq_id = guess.seq_id
        told, since = self._told.get(seq_id, 0), self._since.get(seq_id, _EVERY)
        self._since[seq_id] = since + 1
        much = count != told and max(count, told) >= 2 * min(count, told)
        if since < _EVERY or not much:
            return None
        self._told[seq_id], self._since[seq_id] = count, 0
        why = self._why(guess, count, choice, measured, rows)
        return Decision(Verdict.DRAFT, guess.request_id, why)

    def close(self, seq_id: int) -> None:
        """Forget a sequence."""
        self._told.pop(seq_id, None)
        self._since.pop(seq_id, None)

    def _why(
        self, guess: Guess, count: int, choice: Choice | None, measured: Measured, rows: int
    ) -> str:
        name, plain = self._names[guess.drafter], 1e3 * measured.plain(rows)
        if choice is None or not count:
            longer = 1e3 * measured.costs.seconds(rows + 1)
            return (
                f"no drafts: the first one of {name} is right with {guess.chances[0]:.0%}, and "
                f"a step takes {plain:.3g} ms with {rows} rows, {longer:.3g} ms with one more"
            )
        last, to_see = guess.chances[count - 1], "to see what it takes, " * choice.trial
        return (
            f"{to_see}{count} drafts by {name}, the last of them right with {last:.0%}:"
            f" {choice.tokens:.3g} tokens in {1e3 * choice.seconds:.3g} ms in place of {rows} in "
            f"{plain:.3g} ms, {choice.gain:.3g} times as fast"
        )
