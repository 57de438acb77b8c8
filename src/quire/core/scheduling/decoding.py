"""The live groups and their branches: how results extend them, fork them and end them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from itertools import count

from quire.core.memory import BlockMove, KVAllocator
from quire.core.protocol.request import FinishReason, Request
from quire.core.protocol.step import Forked, Opened, Progress, Sample, Step, StepResult
from quire.core.scheduling.adapters import AdapterSlots
from quire.core.scheduling.scores import PromptScores
from quire.core.scheduling.sequence import Extension, Search, Sequence, SequenceGroup, Status
from quire.core.scheduling.session import Session

Candidates = dict[int, Seq[tuple[int, float]]]
"""seq_id -> (token, log-probability), likeliest first."""

OnToken = Callable[[Progress], object]
"""OnToken of each new token; true if the text is complete by it, for reasons of its own."""


class LiveGroups:
    """All groups that have not ended, with their branches; ends free blocks.

    But for the turn of a session, whose sequence and blocks go back to it.

    Every choice comes down to fork, append and free (PagedAttention, section 5.2).
    """

    def __init__(self, allocator: KVAllocator, slots: AdapterSlots) -> None:
        self._allocator = allocator
        self._slots = slots
        self._groups: dict[str, SequenceGroup] = {}
        self._branches: dict[int, tuple[SequenceGroup, Sequence]] = {}
        # For every token that is sampled, so without a call in between.
        self.branch = self._branches.get
        self._sessions: dict[str, Session] = {}  # by the request_id of their turns
        self._seq_ids = count()
        self.num_ended = 0  # branches, of all that have been
        self.fork_moves: list[BlockMove] = []  # of forks since a step took them
        # What the next step says of who lives:
        self._opened: list[Opened] = []
        self._forked: list[Forked] = []
        self._closed: list[int] = []
        self._within: list[int] = []

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, request_id: str) -> SequenceGroup | None:
        return self._groups.get(request_id)

    def add(self, request: Request, rank: float, beams: Search | None) -> SequenceGroup:
        seq_id = next(self._seq_ids)
        prompt, hashes = request.prompt_token_ids, request.block_hashes
        trunk = Sequence(seq_id, 0, prompt, request.root_hash, hashes, request.spans)
        scores, num_top = None, request.params.prompt_logprobs
        if num_top is not None:
            tokens, size = len(request.prompt_token_ids), self._allocator.block_size
            scores = PromptScores(tokens, num_top, size)
        group = SequenceGroup(request, trunk, beams, (rank, seq_id), scores)
        self._groups[request.request_id] = group
        self._branches[seq_id] = (group, trunk)
        return group

    def resting_group(self, request: Request) -> SequenceGroup:
        """Who holds the blocks of a new session between turns. It is not one of the live."""
        sequence = Sequence(next(self._seq_ids), 0, (), request.root_hash)
        return SequenceGroup(request, sequence, None, (0.0, 0))

    def add_turn(self, session: Session, request: Request, rank: float) -> SequenceGroup:
        """A group that runs a session's sequence on, to wait behind those that are there."""
        sequence = session.sequence
        group = SequenceGroup(request, sequence, None, (rank, next(self._seq_ids)))
        session.begin(group)
        self._groups[request.request_id] = group
        self._branches[sequence.seq_id] = (group, sequence)
        self._sessions[request.request_id] = session
        return group

    def open(self, group: SequenceGroup) -> None:
        """The group is let in for the first time."""
        if group.request.adapter is not None:
            self._slots.take(group.request.adapter)
        (trunk,) = group.branches
        if trunk.seq_id in self._closed:  # by the last turn of its session
            self._closed.remove(trunk.seq_id)
        opened = Opened(trunk.seq_id, group.request, trunk.index, trunk.num_prompt_tokens)
        self._opened.append(opened)

    def take_news(self) -> tuple[Seq[Opened], Seq[Forked], Seq[int], Seq[int]]:
        """Who has been opened, forked and closed since the last call, and ended within drafts."""
        if not (self._opened or self._forked or self._closed or self._within):
            return (), (), (), ()
        news = self._opened, self._forked, self._closed, self._within
        self._opened, self._forked, self._closed, self._within = [], [], [], []
        return news

    @property
    def has_turns(self) -> bool:
        """Whether a session has a turn under way."""
        return bool(self._sessions)

    def take_fork_moves(self) -> list[BlockMove]:
        """Take ``fork_moves``."""
        moves, self.fork_moves = self.fork_moves, []
        return moves

    def served(
        self, step: Step, result: StepResult, seconds: float
    ) -> Iterator[tuple[Request, float]]:
        """Tokens that a step has computed beside prompts: confirmed ones, and one for a beam.

        What took time beside the model counts as what the step computes in that time.
        """
        pace, outcomes = step.num_tokens / max(seconds, 1e-3), result.outcomes
        for seq_id, delay in result.delays.items():
            known = self.branch(seq_id)
            if known is not None:
                yield known[0].request, delay * pace
        for chunk in step.chunks:
            if chunk.readout is not None and chunk.readout.rows:
                known = self.branch(chunk.seq_id)
                if known is not None and known[0].status is Status.RUNNING:
                    outcome = outcomes[chunk.seq_id]
                    tokens = 0 if outcome.late else len(outcome.tokens) + len(outcome.forks) or 1
                    yield known[0].request, tokens + outcome.beside * pace

    def extend(
        self, group: SequenceGroup, branch: Sequence, tokens: Seq[Sample], on_token: OnToken
    ) -> None:
        """The branch goes on with ``tokens``; after its end they count for nothing.

        All but the last of them were drafts of the step. The slots of those that were wrong are
        given back; where a session rests all of them, since nobody knows of a draft model's state
        how much of what it has left lies beyond the end.
        """
        request, token_ids, over = group.request, branch.token_ids, False
        known = len(token_ids)
        drafted = branch.num_computed > known
        for sample in tokens:
            token_ids.append(sample.token_id)
            reason = _finish_reason(request, sample.token_id, branch.num_output_tokens)
            one = Progress(request, branch.seq_id, branch.index, sample, reason)
            if on_token(one) or reason is not None:
                over = True
                break
        if drafted:
            rests = over and request.request_id in self._sessions
            branch.num_computed = known if rests else len(token_ids) - 1
            self._allocator.trim(branch.seq_id, branch.num_computed)
            held = [branch.seq_id] if len(group.branches) == 1 else group.tables()
            group.memory.hold(*self._allocator.blocks_held(held))
            if over:
                self._within.append(branch.seq_id)
        if over:
            self.end(group, branch)

    def expand(
        self, group: SequenceGroup, trunk: Sequence, samples: Seq[Sample], on_token: OnToken
    ) -> None:
        """The prompt is done: the trunk forks into a branch for each of its samples."""
        group.expanded = True
        forks = [self._fork(group, trunk, index) for index in range(1, len(samples))]
        group.branches += forks  # all forks before the first end
        for one, sample in zip([trunk, *forks], samples, strict=True):
            self.extend(group, one, (sample,), on_token)

    def conclude(self, group: SequenceGroup, trunk: Sequence, on_token: OnToken) -> None:
        """The prompt is done, and so is a request that wants no token."""
        reason = FinishReason.LENGTH
        on_token(Progress(group.request, trunk.seq_id, trunk.index, None, reason))
        self.end(group, trunk)

    def search(self, group: SequenceGroup, candidates: Candidates, on_token: OnToken) -> None:
        """Let the beams split, die or end, now that all of them have their candidates."""
        beams, parents = group.beams, group.branches
        assert beams is not None
        prompt = parents[0].num_prompt_tokens
        choices = beams.advance(
            parents[0].num_output_tokens + 1,
            [candidates[parent.seq_id] for parent in parents],
            lambda beam: parents[beam].token_ids[prompt:],
        )
        if choices:
            return self._split(group, choices)
        for index, hypothesis in enumerate(beams.finished[: group.request.params.num_outputs]):
            reason, last = beams.finish_reason(hypothesis), len(hypothesis.token_ids) - 1
            for i, token_id in enumerate(hypothesis.token_ids):
                ended = (reason, hypothesis.cumulative_logprob) if i == last else (None, None)
                on_token(
                    Progress(group.request, parents[0].seq_id, index, Sample(token_id), *ended)
                )
        for branch in list(parents):
            self.end(group, branch)

    def wake_forks(self, group: SequenceGroup, parent: Sequence) -> None:
        """Fork off the dormant branches that waited for their parent to come this far."""
        for branch in group.branches:
            if branch.fork_from is parent and branch.fork_at == parent.num_computed:
                self.fork_moves += self._allocator.fork(parent.seq_id, branch.seq_id)
                branch.num_computed = parent.num_computed
                branch.fork_from = None

    def end(self, group: SequenceGroup, branch: Sequence, *, invalid: bool = False) -> None:
        """End one branch and free its blocks; the group ends with its last one."""
        session = self._sessions.pop(group.request.request_id, None)
        if session is not None:
            session.end(invalid=invalid)
        elif branch.seq_id in group.tables():
            for tokens, seconds in () if invalid else group.request.keep:
                self._allocator.keep(branch.seq_id, tokens, seconds)
            charge = self._allocator.free(branch.seq_id, invalid=invalid)
            group.memory.block_seconds += charge
        del self._branches[branch.seq_id]
        self.num_ended += 1
        if group.begun:
            self._closed.append(branch.seq_id)
        group.branches.remove(branch)
        group.memory.hold(*self._allocator.blocks_held(group.tables()))
        if not group.branches:
            del self._groups[group.request.request_id]
            if group.begun and group.request.adapter is not None:
                self._slots.release(group.request.adapter)

    def _split(self, group: SequenceGroup, choices: list[Extension]) -> None:
        """The beams that go on: a parent's first child is the parent, the others fork off it."""
        parents = list(group.branches)
        group.expanded = True
        chosen = {choice.beam for choice in choices}
        for index, parent in enumerate(parents):  # first, so that there are never too many at once
            if index not in chosen:
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
        self.fork_moves += self._allocator.fork(parent.seq_id, child.seq_id)
        self._branches[child.seq_id] = (group, child)
        self._forked.append(Forked(parent.seq_id, child.seq_id, index))
        return child


def _finish_reason(request: Request, token: int, produced: int) -> FinishReason | None:
    """Why an output ends with its last token, which makes it ``produced`` tokens long."""
    params = request.params
    if produced >= request.min_tokens:
        if token in request.eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP
        if token in params.stop_token_ids:
            return FinishReason.STOP
    return FinishReason.LENGTH if produced >= request.max_tokens else None
