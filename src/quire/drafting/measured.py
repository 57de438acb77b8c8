"""What steps have been measured to take, with drafts and without."""

from __future__ import annotations

from quire.drafting.costs import StepCosts
from quire.drafting.passes import PassCosts
from quire.protocol import TO_DRAFT, Step

_PASS = 0.1  # of a step, for a pass of a draft model that has not been measured
_MANY, _EVERY = 8, 4  # of steps without drafts for so many sequences, only one in so many is noted
_TRY_EVERY = 128  # steps after which a draft model is tried again, though it did not pay
_MOST_TRIED = 8  # passes


class Measured:
    """Seconds of steps that only decode, and of a draft model's passes in them."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._ahead = StepCosts()  # of steps that were begun while the one before was under way
        self._passes = PassCosts()
        self._since_passes = 0  # steps
        self._to_try = 1  # passes
        self._steps = 0

    def settled(self, rows: int) -> bool:
        """Whether it is known what a step of so many rows takes without drafts."""
        return self.costs.settled(rows) or self._ahead.settled(rows)

    def plain(self, rows: int) -> float:
        """Seconds of a step of so many rows, as it is without drafts."""
        return (self._ahead if self._ahead.known else self.costs).seconds(rows)

    @property
    def tries(self) -> bool:
        """Whether it is time to see again what a draft model's passes take, and give."""
        return not self._passes.known or self._since_passes >= _TRY_EVERY

    @property
    def most_passes(self) -> int:
        """That a step may have, to see what they take, and give.

        Each try may have twice as many as the last: the first one takes most of all, so that few
        may not pay where several would.
        """
        return self._to_try if self.tries else self._passes.most

    def pass_seconds(self, passes: int, rows: int) -> float:
        """Of so many tokens from a draft model for everybody."""
        hoped = _PASS * self.costs.seconds(rows)
        seconds = self._passes.seconds(passes, hoped)
        return min(passes * hoped, seconds) if self.tries else seconds

    def observe(self, step: Step, seconds: float) -> None:
        """A step took so long."""
        self._steps += 1
        many = len(step.chunks) > _MANY
        if many and self._steps % _EVERY and step.num_tokens == len(step.chunks):
            return  # one of many that are all alike
        rows = passes = 0
        for chunk in step.chunks:
            count = 1 if chunk.readout is None else chunk.readout.rows
            if len(chunk.token_ids) != count:
                return  # it computes a prompt
            rows += count
            if count > 1 and chunk.token_ids[-1] == TO_DRAFT:
                passes = max(passes, count - 1)
        if not rows:
            return
        self._since_passes += 1
        if not passes:
            if step.ahead:
                self._ahead.observe(rows, seconds)
            if not step.ahead or not self.costs.known:
                self.costs.observe(rows, seconds)
            return
        if self.tries:
            self._to_try = 2 * self._to_try if self._to_try < _MOST_TRIED else 1
        self._since_passes = 0
        alone = min(seconds, self.costs.seconds(rows))
        self.costs.observe(rows, alone)
        self._passes.observe(passes, seconds - alone)
