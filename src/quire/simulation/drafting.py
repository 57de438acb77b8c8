"""Speculation in a simulation: the engine's own, over drafters that are right by a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.config.speculative import MOST_DRAFTS, SpeculativeConfig
from quire.drafting import Proposal, Speculation
from quire.errors import ConfigError
from quire.protocol import Request
from quire.scheduling import Scheduler
from quire.scheduling.sequence import Sequence
from quire.simulation.acceptance import AcceptanceProfile
from quire.simulation.live import own_token
from quire.workload import TraceRequest

_UNTOLD = (0.5,)  # what a drafter takes its chances to be, where every request has its own


@dataclass(frozen=True)
class SimulatedDrafting:
    """Who drafts in a simulated engine, and how well.

    most: drafts of a sequence in one step.
    acceptance: None: as the requests of the workload tell, each of itself.
    chooses: as the engine does, how many drafts are worth it; else always as many as there are.
    """

    method: str = "auto"
    most: int = MOST_DRAFTS
    acceptance: AcceptanceProfile | None = None
    chooses: bool = True

    @classmethod
    def of(
        cls, config: SpeculativeConfig, acceptance: AcceptanceProfile | None
    ) -> SimulatedDrafting:
        """ConfigError for what is not simulated."""
        if config.model is not None:
            raise ConfigError(
                "speculative_config: model: drafts of a smaller model are not simulated yet, since "
                'its steps take time of their own; use method "ngram", "suffix" or "auto"'
            )
        return cls(config.method, config.num_speculative_tokens, acceptance)

    def always(self, drafts: int | None) -> SimulatedDrafting:
        """The same with so many drafts in each step; None: with as many as the engine chooses."""
        if drafts is None:
            return replace(self, chooses=True)
        return replace(self, most=drafts, chooses=False)

    def profile_of(self, trace: TraceRequest) -> AcceptanceProfile:
        """ConfigError where nothing is known."""
        if self.acceptance is not None:
            return self.acceptance
        if trace.drafts is None:
            raise ConfigError(
                "acceptance: say how often drafts are right, such as 0.7, or take a trace that was "
                "recorded with speculation"
            )
        steps = trace.n * (trace.output_tokens - 1) - trace.drafts.num_accepted_tokens
        return AcceptanceProfile.recorded(trace.drafts, steps)

    def speculation(self, profile_of: Callable[[str], AcceptanceProfile], seed: int) -> Speculation:
        """For one run. ``profile_of``: a request, by its id."""
        told = _UNTOLD if self.acceptance is None else self.acceptance.chances
        drafter = SimulatedDrafter(self.method, told, profile_of, seed)
        return (Speculation if self.chooses else Unchosen)([drafter], self.most)


class SimulatedDrafter:
    """Knows what a simulated text goes on with, and says so as often as it is told to.

    told: what it says of its chances, by position.
    """

    num_bytes = 0

    def __init__(
        self,
        name: str,
        told: tuple[float, ...],
        profile_of: Callable[[str], AcceptanceProfile],
        seed: int,
    ) -> None:
        self.name = name
        likely = [max(one, 0.01) for one in told]
        self._told = likely + likely[-1:] * (MOST_DRAFTS - len(likely))
        self._profile_of = profile_of
        self._seed = seed

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        """See ``Drafter``."""
        profile = self._profile_of(request.request_id)
        text = f"{self._seed},{request.request_id},{sequence.index}"
        right = profile.num_right(text, sequence.num_output_tokens, most)
        if right is None:
            return None
        own = own_token(request.request_id, sequence.index)
        return Proposal([own] * right + [own ^ 1] * (most - right), self._told[:most])

    def close(self, seq_id: int) -> None:
        """See ``Drafter``."""


class Unchosen(Speculation):
    """Has all drafts verified, whatever they are worth: what the choice is held against."""

    def propose(self, scheduler: Scheduler) -> None:
        """Give the scheduler drafts for its next step."""
        for group in scheduler.running:
            if group.expanded and group.beams is None:
                for branch in group.branches:
                    self._propose(scheduler, group.request, branch)

    def _propose(self, scheduler: Scheduler, request: Request, sequence: Sequence) -> None:
        if sequence.fork_from is None and sequence.num_pending == 1:
            for drafter in self.drafters:
                proposal = drafter.propose(request, sequence, self._most)
                if proposal is not None:
                    scheduler.propose(sequence.seq_id, proposal.tokens)
                    break
