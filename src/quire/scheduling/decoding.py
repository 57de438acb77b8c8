"""The live groups and their branches: how results extend them, fork them and end them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from quire.memory import BlockMove, KVAllocator, root_hash
from quire.scheduling.beam_search import BeamSearch, Choice
from quire.scheduling.request import FinishReason, Request
from quire.scheduling.sampling_params import SamplingParams
from quire.scheduling.sequence import Sequence, SequenceGroup, Status
from quire.scheduling.session import Session
from quire.scheduling.step import Progress, Sample, Step

Candidates = dict[int, list[tuple[int, float]]]
"""seq_id -> (token, log-probability), likeliest first."""


class LiveGroups:
    """All groups that have not ended, with their branches; ends free blocks.

    But for the turn of a session, whose sequence and blocks go back to it.

    Every choice comes down to fork, append and free (PagedAttention, section 5.2).
    """

    def __init__(self, allocator: KVAllocator) -> None:
        self._allocator = allocator
        self._groups: dict[str, SequenceGroup] = {}
        self._branches: dict[int, tuple[SequenceGroup, Sequence]] = {}
        # For every token that is sampled, so without a call in between.
        self.branch = self._branches.get
        self._sessions: dict[str, Session] = {}  # by the request_id of their turns
        self._seq_ids = count()
        self._fork_moves: list[BlockMove] = []

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, request_id: str) -> SequenceGroup | None:
        return self._groups.get(request_id)

    def add(self, request: Request, rank: float) -> SequenceGroup:
        seq_id = next(self._seq_ids)
        root = root_hash(request.cache_salt)
        trunk = Sequence(seq_id, 0, request.prompt_token_ids, root, request.block_hashes)
        beams = BeamSearch(request) if request.params.use_beam_search else None
        group = SequenceGroup(request, trunk, beams, (rank, seq_id))
        self._groups[request.request_id] = group
        self._branches[seq_id] = (group, trunk)
        return group

    def resting_group(self, session_id: str, cache_salt: str) -> SequenceGroup:
        """Who holds the blocks of a new session between turns. It is not one of the live."""
        request = Request(session_id, (), SamplingParams(), 0, 0, cache_salt=cache_salt)
        sequence = Sequence(next(self._seq_ids), 0, (), root_hash(cache_salt))
        return SequenceGroup(request, sequence, None, (0.0, 0))

    def add_turn(self, session: Session, request: Request, rank: float) -> SequenceGroup:
        """A group that runs a session's sequence on, in line behind those that are there."""
        sequence = session.sequence
        group = SequenceGroup(request, sequence, None, (rank, next(self._seq_ids)))
        session.begin(group, self._allocator)
        self._groups[request.request_id] = group
        self._branches[sequence.seq_id] = (group, sequence)
        self._sessions[request.request_id] = session
        return group

    @property
    def has_fork_moves(self) -> bool:
        return bool(self._fork_moves)

    @property
    def has_turns(self) -> bool:
        """Whether a session has a turn under way."""
        return bool(self._sessions)

    def take_fork_moves(self) -> list[BlockMove]:
        """Copies that forks since the last call ask for: none where blocks are shared."""
        moves, self._fork_moves = self._fork_moves, []
        return moves

    def served(self, step: Step) -> Iterator[tuple[Request, int]]:
        """Tokens that a step has computed beside prompts: one for each that it samples."""
        for chunk in step.chunks:
            tokens = chunk.num_samples or min(chunk.num_candidates, 1)
            known = self.branch(chunk.seq_id) if tokens else None
            if known is not None and known[0].status is Status.RUNNING:
                yield chunk.request, tokens

    def sample(
        self,
        group: SequenceGroup,
        branch: Sequence,
        samples: list[Sample],
        progress: list[Progress],
    ) -> None:
        """Extend the branch by its sample; a trunk forks into one branch for each sample.

        What that comes to is added to ``progress``.
        """
        group.expanded = True
        if len(samples) == 1:
            progress.append(self._extend(group, branch, samples[0]))
            return
        forks = [self._fork(group, branch, index) for index in range(1, len(samples))]
        group.branches += forks  # all forks before the first end
        for one, sample in zip([branch, *forks], samples, strict=True):
            progress.append(self._extend(group, one, sample))

    def _extend(self, group: SequenceGroup, branch: Sequence, sample: Sample) -> Progress:
        branch.token_ids.append(sample.token_id)
        reason = _finish_reason(group.request, branch)
        if reason is not None:
            self.end(group, branch)
        return Progress(group.request, branch.seq_id, branch.index, sample, reason)

    def search(self, group: SequenceGroup, candidates: Candidates) -> list[Progress]:
        """Let the beams split, die or end, now that all of them have their candidates."""
        beams, parents = group.beams, group.branches
        assert beams is not None
        prompt = parents[0].num_prompt_tokens
        choices = beams.advance(
            parents[0].num_output_tokens + 1,
            [candidates[parent.seq_id] for parent in parents],
            lambda place: parents[place].token_ids[prompt:],
        )
        if choices:
            self._split(group, choices)
            return []
        progress = []
        for index, hypothesis in enumerate(beams.finished[: group.request.params.num_outputs]):
            reason, last = beams.finish_reason(hypothesis), len(hypothesis.token_ids) - 1
            for i, token_id in enumerate(hypothesis.token_ids):
                ended = (reason, hypothesis.cumulative_logprob) if i == last else (None, None)
                sample = Sample(token_id)
                progress.append(Progress(group.request, parents[0].seq_id, index, sample, *ended))
        for branch in list(parents):
            self.end(group, branch)
        return progress

    def wake_forks(self, group: SequenceGroup, parent: Sequence) -> None:
        """Fork off the dormant branches that waited for their parent to come this far."""
        for branch in group.branches:
            if branch.fork_from is parent and branch.fork_at == parent.num_computed:
                self._fork_moves += self._allocator.fork(parent.seq_id, branch.seq_id)
                branch.num_computed = parent.num_computed
                branch.fork_from = None

    def end(self, group: SequenceGroup, branch: Sequence, *, spoiled: bool = False) -> None:
        """End one branch and free its blocks; the group ends with its last one."""
        session = self._sessions.pop(group.request.request_id, None)
        if session is not None:
            session.end(self._allocator, spoiled=spoiled)
        elif branch.seq_id in group.tables():
            charge = self._allocator.free(branch.seq_id, spoiled=spoiled)
            group.memory.block_seconds += charge
        del self._branches[branch.seq_id]
        group.branches.remove(branch)
        group.memory.hold(*self._allocator.blocks_held(group.tables()))
        if not group.branches:
            del self._groups[group.request.request_id]

    def _split(self, group: SequenceGroup, choices: list[Choice]) -> None:
        """The beams that go on: a parent's first child takes its place, the others fork off it."""
        parents = list(group.branches)
        group.expanded = True
        chosen = {choice.beam for choice in choices}
        for place, parent in enumerate(parents):  # first, so that there are never too many at once
            if place not in chosen:
                self.end(group, parent)
        live: list[Sequence] = []
        for choice in choices:  # all forks before any token is added
            parent = parents[choice.beam]
            live.append(self._fork(group, parent, 0) if parent in live else parent)
        group.branches = live  # best first, as the search keeps its scores
        for branch, choice in zip(live, choices, strict=True):
            branch.token_ids.append(choice.token_id)

    def _fork(self, group: SequenceGroup, parent: Sequence, index: int) -> Sequence:
        child = parent.child(next(self._seq_ids), index)
        self._fork_moves += self._allocator.fork(parent.seq_id, child.seq_id)
        self._branches[child.seq_id] = (group, child)
        return child


def _finish_reason(request: Request, branch: Sequence) -> FinishReason | None:
    params, tokens = request.params, branch.token_ids
    produced = len(tokens) - branch.num_prompt_tokens
    if produced >= params.min_tokens:
        token = tokens[-1]
        if token in request.eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP
        if token in params.stop_token_ids:
            return FinishReason.STOP
    return FinishReason.LENGTH if produced >= request.max_tokens else None
