"""Speculation in a simulation: the engine's own, over drafters that are right by a profile.

What texts say is proposed here; the tokens of a draft model are made in the step that verifies
them, as in the engine (``draft_model``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.capabilities.speculation import Drafter, Proposal, Speculation
from quire.capabilities.speculation.config import MOST_DRAFTS
from quire.capabilities.speculation.proposal import DraftModelDrafter
from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.core.protocol import Request
from quire.core.scheduling import Scheduler
from quire.core.scheduling.sequence import Sequence
from quire.engine.traces.request import TraceRequest
from quire.models.shape import ModelShape
from quire_lab.simulation.acceptance import AcceptanceProfile, Profiles
from quire_lab.simulation.cost_model import CostModel, CostsWithDraft, DraftCosts
from quire_lab.simulation.draft_model import SimulatedDraftModel
from quire_lab.simulation.live import own_token

_UNTOLD = (0.5,)  # what a drafter takes its chances to be, where every request has its own


@dataclass(frozen=True)
class SmallerModel:
    """One that drafts.

    acceptance: of its drafts; None: as of all others. costs: of its passes, None: the roofline's.
    """

    shape: ModelShape
    acceptance: AcceptanceProfile | None = None
    costs: DraftCosts | None = None


@dataclass(frozen=True)
class SimulatedDrafting:
    """How a simulated engine drafts, and how well.

    most: drafts of a sequence in one step.
    acceptance: None: each request of the workload has its own.
    model: drafts if texts offer nothing; None: there is none.
    chooses: how many drafts are worth it is decided as in the engine; else always as many as there
        are.
    """

    method: str = "auto"
    most: int = MOST_DRAFTS
    acceptance: AcceptanceProfile | None = None
    chooses: bool = True
    model: SmallerModel | None = None

    def always(self, drafts: int | None) -> SimulatedDrafting:
        """The same with this many drafts in each step; None: as many as the engine chooses."""
        if drafts is None:
            return replace(self, chooses=True)
        return replace(self, most=drafts, chooses=False)

    def profiles_of(self, trace: TraceRequest) -> Profiles:
        """ConfigError where nothing is known."""
        ours = self._profile_of(trace)
        model = ours if self.model is None else self.model.acceptance or ours
        # A model always has something to say.
        return Profiles(ours, replace(model, coverage=1.0))

    def _profile_of(self, trace: TraceRequest) -> AcceptanceProfile:
        if self.acceptance is not None:
            return self.acceptance
        if trace.drafts is None:
            raise ConfigError(
                "acceptance: say how often drafts are right, such as 0.7, or take a trace that was "
                "recorded with speculation"
            )
        steps = trace.n * (trace.output_tokens - 1) - trace.drafts.num_accepted_tokens
        return AcceptanceProfile.recorded(trace.drafts, steps)

    def speculation(self, profiles_of: Callable[[str], Profiles], seed: int) -> Speculation:
        """The speculation of one run. ``profiles_of``: a request, by its id."""
        drafters: list[Drafter] = []
        if self.method != "draft":
            told = _UNTOLD if self.acceptance is None else self.acceptance.chances
            drafters.append(SimulatedDrafter(self.method, told, profiles_of, seed))
        if self.model is not None:
            drafters.append(DraftModelDrafter())
        return (Speculation if self.chooses else Unchosen)(drafters, self.most)

    def draft_model(
        self,
        limits: EngineLimits,
        costs: CostModel,
        profiles_of: Callable[[str], Profiles],
        seed: int,
    ) -> SimulatedDraftModel | None:
        """The same for the smaller model; None: there is none."""
        if self.model is None:
            return None
        assert isinstance(costs, CostsWithDraft), "its passes take time"
        layers = self.model.shape.num_layers
        return SimulatedDraftModel(limits.kv_groups, layers, costs.pass_seconds, profiles_of, seed)


class SimulatedDrafter:
    """Knows how a simulated text continues, and drafts right as often as its profile says.

    told: the chances that it claims, by position.
    """

    num_bytes = 0

    def __init__(
        self,
        name: str,
        told: tuple[float, ...],
        profiles_of: Callable[[str], Profiles],
        seed: int,
    ) -> None:
        self.name = name
        likely = [max(one, 0.01) for one in told]
        self._told = likely + likely[-1:] * (MOST_DRAFTS - len(likely))
        self._profiles_of = profiles_of
        self._seed = seed

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        profile = self._profiles_of(request.request_id).by_texts
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
