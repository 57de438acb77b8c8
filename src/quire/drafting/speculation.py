"""Which sequences are drafted for in the next step, by whom, and how far."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from quire.drafting.proposal import Drafter
from quire.protocol import Outcome, Step
from quire.scheduling import Scheduler


class Speculation:
    """Asks drafters before each step, and learns from each what they are worth.

    drafters: a chain: the first that has something to say is heard.
    most: drafts of a sequence in one step.
    """

    def __init__(self, drafters: Seq[Drafter], most: int) -> None:
        self.drafters = drafters
        self._most = most

    def propose(self, scheduler: Scheduler) -> None:
        """Give the scheduler drafts for its next step."""
        for group in scheduler.running:
            if group.beams is not None or not group.expanded:
                continue
            for branch in group.branches:
                if branch.fork_from is not None or branch.num_pending != 1:
                    continue
                for drafter in self.drafters:
                    proposal = drafter.propose(group.request, branch, self._most)
                    if proposal is not None:
                        scheduler.propose(branch.seq_id, proposal.tokens)
                        break

    def observe(self, step: Step, outcomes: Mapping[int, Outcome], seconds: float) -> None:
        """What a step gave, and how long it took."""
        for seq_id in step.closed:
            for drafter in self.drafters:
                drafter.close(seq_id)

    @property
    def num_bytes(self) -> int:
        """Of memory that drafters hold."""
        return sum(drafter.num_bytes for drafter in self.drafters)
