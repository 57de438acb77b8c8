"""What steps have been measured to take, with drafts and without."""

from __future__ import annotations

from collections import defaultdict

from quire.capabilities.speculation.costs import StepCosts
from quire.capabilities.speculation.passes import PassCosts
from quire.core.protocol import TO_DRAFT, Step

_EVERY, _SECOND = 4, 2  # of steps without drafts in a row one in so many is noted, from the second
_COLD, _NEAR = 1, 6  # steps after one without drafts: caches are warm, and what that takes is known


class Measured:
    """Seconds of steps that only decode, and what a draft model's passes add to them."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._ahead = StepCosts()  # of steps that were begun while the one before was under way
        self._passes: defaultdict[int, PassCosts] = defaultdict(PassCosts)  # by size of the batch
        self._plain_steps = 0  # in a row
        self._since_plain = 0  # steps

    def settled(self, rows: int) -> bool:
        """Whether it is known what a step of so many rows takes without drafts."""
        return self.costs.settled(rows) or self._ahead.settled(rows)

    def plain(self, rows: int) -> float:
        """Seconds of a step of so many rows, as it is without drafts."""
        return (self._ahead if self._ahead.known else self.costs).seconds(rows)

    def passes(self, rows: int) -> PassCosts:
        """Of steps of about so many rows besides."""
        return self._passes[rows.bit_length()]

    def observe(self, step: Step, seconds: float) -> None:
        """A step took so long."""
        if step.num_tokens == len(step.chunks):
            self._plain_steps, self._since_plain = self._plain_steps + 1, 0
            if self._plain_steps % _EVERY != _SECOND and self.settled(len(step.chunks)):
                return  # one of many that are all alike
        else:
            self._plain_steps, self._since_plain = 0, self._since_plain + 1
        rows = passes = 0
        for chunk in step.chunks:
            count = 1 if chunk.readout is None else chunk.readout.rows
            if len(chunk.token_ids) != count:
                return  # it computes a prompt
            rows += count
            if count > 1 and chunk.token_ids[-1] == TO_DRAFT:
                passes = max(passes, count - 1)
        if passes:
            besides = len(step.chunks)
            if _COLD < self._since_plain <= _NEAR and self.settled(besides):
                share = seconds / self.plain(besides) - 1
                self.passes(besides).observe(passes, share)
        elif rows:
            if step.ahead:
                self._ahead.observe(rows, seconds)
            if not step.ahead or not self.costs.known:
                self.costs.observe(rows, seconds)
