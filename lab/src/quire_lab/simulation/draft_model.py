"""A draft model in a simulation: what it computes in a step, and which of its drafts are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from quire.capabilities.speculation.behind import Behind
from quire.core.kv_groups import KVGroup
from quire.core.protocol import TO_DRAFT, Chunk, Outcome, Readout, Roster, Step
from quire.engine.work import Work, sights_of, work_of
from quire_lab.simulation.acceptance import Profiles
from quire_lab.simulation.live import own_token

_ONE = Readout()


class SimulatedDraftModel:
    """Computes what the engine's would, pass for pass, and makes the drafts that steps leave to it.

    Whether a draft is right at a position is drawn by (seed, request, output, position).
    """

    def __init__(
        self,
        kv_groups: Sequence[KVGroup],
        num_layers: int,
        pass_seconds: Callable[[Work], float],
        profiles_of: Callable[[str], Profiles],
        seed: int,
    ) -> None:
        """kv_groups: of both models; the draft model's are the last ``num_layers`` layers."""
        total = sum(len(kv_group.layers) for kv_group in kv_groups)
        self._sights = sights_of(kv_groups, range(total - num_layers, total))
        self.target_sights = sights_of(kv_groups, range(total - num_layers))
        self._pass_seconds = pass_seconds
        self._profiles_of = profiles_of
        self._seed = seed
        self._roster = Roster()
        first = total - num_layers
        self._behind = Behind(
            keeps_states=any(
                layer >= first for one in kv_groups if one.state for layer in one.layers
            )
        )
        self._drafted: dict[int, Chunk] = {}  # by sequence: chunks whose drafts are ours
        self._others: list[Chunk] = []  # whose drafts it computes once they are confirmed

    def seconds(self, step: Step) -> float:
        """Seconds of its passes in a step. Called once, when the step begins."""
        passes = self.passes(step)
        return sum(self._pass_seconds(work_of(Step([], one), self._sights)) for one in passes)

    def passes(self, step: Step) -> list[list[Chunk]]:
        """The chunks that it computes at once, time after time. See ``DraftModel``."""
        known = self._roster.follow(step)
        due, self._drafted = self._behind.before_moves(step), {}
        self._others = []
        passes = [due] if due else []
        chunks = step.chunks
        texts: dict[int, int] = {}  # by sequence: tokens of its chunk that are known
        for chunk, whose in zip(chunks, known, strict=True):
            if chunk.token_ids[-1] == TO_DRAFT:
                texts[chunk.seq_id] = num_known = chunk.token_ids.index(TO_DRAFT)
                drafts = self._drafts(chunk, num_known, whose.request.request_id, whose.branch)
                token_ids = [*chunk.token_ids[:num_known], *drafts]
                self._drafted[chunk.seq_id] = chunk._replace(token_ids=token_ids)
            elif self._behind.keeps_states and chunk.drafts:
                self._others.append(chunk)
        if not chunks or (not texts and self._behind.leave(chunks)):
            return passes
        passes.append(
            [
                self._behind.take(chunk)._replace(readout=_ONE if chunk.seq_id in texts else None)
                for chunk in chunks
            ]
        )
        more = 1
        while going_on := [
            self._behind.further(chunk, chunk.token_ids[: texts[seq_id] + more])._replace(
                readout=_ONE
            )
            for seq_id, chunk in self._drafted.items()
            if len(chunk.token_ids) > texts[seq_id] + more
        ]:
            passes.append(going_on)
            more += 1
        return passes

    def filled(self, step: Step) -> Step:
        """The step with its drafts filled in."""
        drafted = self._drafted
        return replace(step, chunks=[drafted.get(one.seq_id, one) for one in step.chunks])

    def observe(self, outcomes: Mapping[int, Outcome]) -> None:
        """Take note of a step's results."""
        for chunk in (*self._drafted.values(), *self._others):
            self._behind.verified(chunk, len(outcomes[chunk.seq_id].tokens))

    def _drafts(self, chunk: Chunk, num_known: int, request_id: str, branch: int) -> list[int]:
        most = len(chunk.token_ids) - num_known
        place = chunk.start + num_known - chunk.output_start
        text = f"{self._seed},{request_id},{branch},model"
        right = self._profiles_of(request_id).by_model.num_right(text, place, most) or 0
        own = own_token(request_id, branch)
        return [own] * right + [own ^ 1] * (most - right)
