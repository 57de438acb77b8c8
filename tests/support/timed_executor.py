"""A real engine's executor on a clock that says what steps ought to take, and what it was given."""

from __future__ import annotations

import re
from typing import Any

from quire.core.limits import EngineLimits
from quire.core.protocol import (
    Chunk,
    Executor,
    Opened,
    Outcome,
    PendingStep,
    RecoveryCosts,
    Request,
    Roster,
    Sample,
    Step,
    StepResult,
    confirmed,
)
from quire_lab.simulation import AcceptanceProfile, SimulatedDrafting, Work, sights_of, work_of
from quire_lab.simulation.sampling import SimulatedModel
from support.told_drafts import ToldDrafts

Seen = list[tuple[float, Any, Any, Any]]
BY_MODEL = SimulatedDrafting("draft", 6, AcceptanceProfile((0.7, 0.8)))
BEYOND = 9  # tokens of texts that nobody gets to see


class Costs:
    """Seconds from what a step has to do: for the engine's clock and for the simulator."""

    def seconds(self, work: Work) -> float:
        return (
            0.01 + 2e-4 * work.prefill_tokens + 1e-3 * work.decode_seqs
            + 1e-4 * work.draft_tokens + 1e-6 * work.decode_context + 1e-3 * work.swapped_blocks
        )  # fmt: skip

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts()


class PassCosts(Costs):
    """Of a model that drafts."""

    def seconds(self, work: Work) -> float:
        return super().seconds(work) / 10

    def moving(self, work: Work) -> float:
        return 2e-4 * work.swapped_blocks


class TimedExecutor:
    """Carries out steps with the real model, on a clock that says what they ought to take.

    Beams' candidates come from the simulation's seeded model, for no recording tells how beams
    branched. Their tokens are each request's own, as they are in a simulation.

    texts: of the requests, if they are known: what the model makes of a step may differ in the last
        bit from what it makes of the same tokens in other steps.
    num_draft_layers: of the draft model, whose drafts are right where the simulated ones are.
    """

    def __init__(self, executor: Executor, limits: EngineLimits, num_draft_layers: int = 0) -> None:
        self.now = 0.0
        own = sum(len(group.layers) for group in limits.kv_groups) - num_draft_layers
        self._sights = sights_of(limits.kv_groups, range(own))
        self._draft_sights = sights_of(limits.kv_groups, range(own, own + num_draft_layers))
        self.steps: Seen = []
        self.passes: list[Any] = []
        self._known: dict[int, Opened] = {}
        self._draft_model: ToldDrafts | None = None
        if num_draft_layers:
            model = executor._draft_model  # type: ignore[attr-defined]
            self._draft_model = ToldDrafts(model, self._drafts, self._told)
        self._executor = executor
        self.texts: dict[str, list[list[int]]] = {}
        self._roster = Roster()
        self._beams = SimulatedModel(seed=0)

    def submit(self, step: Step) -> PendingStep:
        known = self._roster.follow(step)
        self._known |= {whose.seq_id: whose for whose in known}
        self.steps.append(seen(self.now, step, known))
        work = work_of(step, self._sights)
        self._filled: dict[int, Outcome] = {}
        pending, seconds = self._executor.submit(step), Costs().seconds(work)
        if self._draft_model is not None:
            seconds += PassCosts().moving(work)
            seconds += self._pass_seconds(self._draft_model.passes)
        self.now += seconds
        return PendingStep(step, lambda: self._as_told(step, known, pending.collect()))

    def _pass_seconds(self, passes: list[list[Chunk]]) -> float:
        self.passes += map(computed, passes)
        plain = [[chunk._replace(readout=None) for chunk in chunks] for chunks in passes]
        passes.clear()
        works = (work_of(Step([], chunks), self._draft_sights) for chunks in plain)
        return sum(map(PassCosts().seconds, works))

    def _drafts(self, request: Request, branch: int, known: int, count: int) -> list[int]:
        assert BY_MODEL.acceptance is not None
        key = f"0,{request.request_id},{branch},model"
        right = BY_MODEL.acceptance.num_right(key, known, count) or 0
        return drafts_of(self.texts, request, branch, known, right, count)

    def _told(self, chunk: Chunk) -> Outcome | None:
        """What becomes of a chunk whose drafts are known."""
        if chunk.readout is None or chunk.readout.candidates or not self.texts:
            return None
        whose, rows = self._known[chunk.seq_id], chunk.readout.rows
        texts = self.texts[whose.request.request_id]
        end = chunk.start + len(chunk.token_ids) - chunk.output_start
        row_tokens = texts[whose.branch][end - rows + 1 : end + 1]
        tokens = confirmed(list(map(Sample, row_tokens)), chunk.drafts)
        forks = [Sample(text[0]) for text in texts[1 : chunk.readout.draws]]
        self._filled[chunk.seq_id] = outcome = Outcome(tokens, forks)
        return outcome

    def _as_told(self, step: Step, known: list[Opened], result: StepResult) -> StepResult:
        beams = [c for c in step.chunks if c.readout is not None and c.readout.candidates]
        simulated = self._beams.results(Step(opened=known, chunks=beams), {}).outcomes
        for chunk, whose in zip(step.chunks, known, strict=True):
            if chunk.seq_id in simulated:
                first = 11 * (1 + int(whose.request.request_id))
                found = simulated[chunk.seq_id].candidates
                candidates = [(first + rank, logprob) for rank, (_, logprob) in enumerate(found)]
                result.outcomes[chunk.seq_id] = Outcome(candidates=candidates)
            elif (told := self._filled.get(chunk.seq_id) or self._told(chunk)) is not None:
                result.outcomes[chunk.seq_id] = told
        return result


def computed(chunks: list[Chunk]) -> list[tuple[int, int]]:
    """Of a draft model's pass: where it begins, and how many tokens, by sequence."""
    return sorted((chunk.start, len(chunk.token_ids)) for chunk in chunks)


def drafts_of(
    texts: dict[str, list[list[int]]],
    request: Request,
    branch: int,
    known: int,
    right: int,
    count: int,
) -> list[int]:
    """The tokens of a text from ``known`` on, of which the first ``right`` are."""
    text = texts[request.request_id][branch]
    end = len(text) - BEYOND
    if end < request.max_tokens:  # nobody knows that a simulated text ends
        right = min(right, end - 1 - known)
    return [t if i < right else t ^ 1 for i, t in enumerate(text[known : known + count])]


def seen(now: float, step: Step, known: list[Opened]) -> tuple[float, Any, Any, Any]:
    # Not seq_id: the simulator gives numbers to those in line later, if the line is long.
    chunks = [
        (who.request.request_id, who.branch, len(c.token_ids), c.start, c.table, c.readout)
        for c, who in zip(step.chunks, known, strict=True)
    ]
    # Not an adapter's name: a recording does not tell it.
    decisions = [d._replace(why=re.sub("^adapter [^ ]+ ", "", d.why)) for d in step.decisions]
    return now, step.moves, chunks, decisions
