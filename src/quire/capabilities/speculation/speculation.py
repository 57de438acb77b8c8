"""Which sequences are drafted for in the next step, by whom, and how far."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from itertools import islice

from quire.capabilities.speculation.acceptance import Acceptance
from quire.capabilities.speculation.costs import Measured
from quire.capabilities.speculation.decisions import Decisions
from quire.capabilities.speculation.plan import Choice, Guess, Trials, plan
from quire.capabilities.speculation.proposal import Drafter, Forced
from quire.core.protocol import Chunk, Outcome, Request, Step
from quire.core.scheduling import Capability, Scheduler
from quire.core.scheduling.sequence import Sequence

logger = logging.getLogger(__name__)

_CONFIDENT = 0.5  # chance of its first draft with which a drafter keeps those after it from talking
_LOOKS = 8  # sequences in a step that are looked at though they were not drafted for just before
_WORTH_A_LOOK = 2e-3  # seconds of a step; a look takes some hundredths of that
_WORTH_WEIGHING = 1e-2  # seconds of steps; to weigh what a model may draft takes a tenth of one
_STEADY = ("prediction", "draft")  # who say the same in each step, but of predictions
_LOOK_EVERY = 16  # steps, where looking takes waiting for the step under way
_PLAIN_EVERY = 256  # steps, some of which have no drafts, to see what it takes
_PLAIN_OFTENER = 64  # where a model drafts: what that takes is known beside them only
_IN_A_ROW = 2  # of them: the first one finds little in the caches
_BURST = 3  # steps of a trial, as well
_PATIENCE = 3  # steps without drafts, after which it is not waited for any more


class Speculation(Capability):
    """Asks drafters before each step, and learns from each step what they are worth.

    How many drafts are verified is chosen for the most tokens a second: by what steps of their
    rows have been measured to take, and by how often such drafts have been right, of that sequence
    and of all. Those that are not verified are held against what comes all the same.

    drafters: a chain: the first that is confident is heard.
    most: drafts of a sequence in one step.
    predicted_only: draft for no request but those that bring a prediction.
    """

    def __init__(self, drafters: Seq[Drafter], most: int, *, predicted_only: bool = False) -> None:
        self._forced = Forced()
        self.drafters: Seq[Drafter] = (self._forced, *drafters)
        self._most, self._predicted_only = most, predicted_only
        self._acceptance = Acceptance(len(self.drafters))
        self._measured = Measured()
        self._trials = Trials()
        self._trial: Choice | None = None  # where the step under way is one
        self._trial_steps = 0  # that are left of it
        self._decisions = Decisions([drafter.name for drafter in self.drafters])
        self._steady = all(drafter.name in _STEADY for drafter in drafters)
        self._kept: dict[int, tuple[Guess, int]] = {}  # by sequence, with drafts: what was chosen
        self._again = 0  # steps for which it is kept
        self._failed: set[int] = set()  # numbers of drafters
        self._guesses: dict[int, Guess] = {}  # by sequence, about the step under way
        self._drafted: set[int] = set()  # sequences, for it
        self._steps = 0
        self._unseen = 0  # steps since anybody was looked at
        self._fruitless = _PATIENCE  # steps before which nobody was drafted for
        self._turn = 0  # where those begin who are looked at in turn
        self._predicted: set[int] = set()  # sequences that are expected to be like something

    def waits(self, scheduler: Scheduler) -> bool:
        """Whether the step after the one under way is better planned once that is done.

        For only then drafts can be made for it. So it is while drafts are worth more than what
        running ahead saves, and now and then, to see whether they would be.
        """
        if self._fruitless < _PATIENCE:
            return True
        self._unseen += 1
        return self._unseen >= _LOOK_EVERY and any(True for _ in self._decoding(scheduler))

    def propose(self, scheduler: Scheduler) -> None:
        """Give the scheduler drafts for its next step."""
        guesses, self._unseen = self._guesses, 0
        guesses.clear()  # of a step that failed
        self._steps += 1
        if self._predicted_only and not self._predicted:
            self._trial = None
            self._fruitless += 1
            return
        if self._again and self._repeats(scheduler):
            return
        rows = scheduler.num_running_seqs
        if self._measured.settled(rows) and not self._rests(rows):
            for request, sequence in self._looked_at(scheduler):
                guess = self._guess(request, sequence)
                if guess is not None:
                    guesses[sequence.seq_id] = guess
        self._drafted.clear()
        self._fruitless += 1
        if not guesses:
            self._trial = None
            return
        choice = self._choose(rows, list(guesses.values()))
        self._trial = choice if choice is not None and choice.trial else None
        self._kept.clear()
        for seq_id, guess in guesses.items():
            count = 0 if choice is None else choice.count(guess)
            self._kept[seq_id] = guess, count
            decision = self._decisions.about(guess, count, choice, self._measured, rows)
            if count:
                self._drafted.add(seq_id)
                self._fruitless = 0
            if count or decision is not None:
                scheduler.propose(seq_id, guess.proposal.tokens[:count], decision)
        if self._steady and self._trial is None and not self._is_plain(by_model=True):
            self._again = int(_WORTH_WEIGHING / self._measured.plain(rows))

    def _repeats(self, scheduler: Scheduler) -> bool:
        """Whether the last choice is used again: where a model drafts and steps are short."""
        if self._is_plain(by_model=True):
            self._again = 0
            return False
        self._again -= 1
        found = list(self._decoding(scheduler))
        same = {sequence.seq_id for _, sequence in found} == self._kept.keys()
        if not same or self._forced.knows or any(request.prediction for request, _ in found):
            self._again = 0
            return False
        self._fruitless = 0 if self._drafted else self._fruitless + 1
        for seq_id, (guess, count) in self._kept.items():
            if count:
                self._guesses[seq_id] = guess
                scheduler.propose(seq_id, guess.proposal.tokens[:count])
        return True

    def _choose(self, rows: int, guesses: Seq[Guess]) -> Choice | None:
        if self._trial is not None and self._trial_steps:
            self._trial_steps -= 1
            return self._trial
        by_model = any(guess.in_step for guess in guesses)
        if self._is_plain(by_model):
            return None
        self._trial_steps = _BURST - 1
        return plan(self._measured, self._trials, rows, guesses)

    def _is_plain(self, by_model: bool) -> bool:
        """Whether a step is to have no drafts, however much they give."""
        return self._steps % (_PLAIN_OFTENER if by_model else _PLAIN_EVERY) < _IN_A_ROW

    def _rests(self, rows: int) -> bool:
        """Whether drafters are not asked: in short steps a search that finds nothing costs much."""
        every = int(_WORTH_A_LOOK / self._measured.plain(rows))
        return self._fruitless >= _PATIENCE and every > 1 and self._steps % every > 0

    def observe(self, step: Step, outcomes: Mapping[int, Outcome], seconds: float) -> None:
        """What a step gave, and how long it took."""
        for opened in step.opened:
            if opened.request.prediction:
                self._predicted.add(opened.seq_id)
            else:
                self._predicted.discard(opened.seq_id)  # a session's, whose last turn brought one
        for parent, child, _ in step.forked:
            if parent in self._predicted:
                self._predicted.add(child)
        if self._predicted_only and not self._predicted:
            return
        self._measured.observe(step, seconds)
        self._trials.earn(seconds)
        if self._trial is not None and _only_decodes(step):
            rows = len(step.chunks)
            tokens = sum(len(outcome.tokens) for outcome in outcomes.values())
            self._trials.spend(seconds - tokens * self._measured.plain(rows) / rows)
        if self._guesses:
            for chunk in step.chunks:
                guess = self._guesses.get(chunk.seq_id)
                if guess is not None:
                    self._learn(guess, chunk, outcomes.get(chunk.seq_id))
            self._guesses.clear()
        self._forced.hear(outcomes)
        for seq_id in step.closed:
            self._predicted.discard(seq_id)
            self._decisions.close(seq_id)
            self._acceptance.close(seq_id)
            for drafter in self.drafters:
                drafter.close(seq_id)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that drafters hold."""
        return sum(drafter.num_bytes for drafter in self.drafters)

    def _decoding(self, scheduler: Scheduler) -> Iterator[tuple[Request, Sequence]]:
        """Sequences that compute one token each step, and may be drafted for."""
        for group in scheduler.running:
            if self._predicted_only and not group.request.prediction:
                continue
            if group.expanded and group.beams is None:
                for branch in group.branches:
                    if branch.fork_from is None and branch.num_pending == 1:
                        yield group.request, branch

    def _looked_at(self, scheduler: Scheduler) -> Iterator[tuple[Request, Sequence]]:
        """Who was drafted for in the last step, and as many others as cost next to nothing."""
        others = []
        for one in self._decoding(scheduler):
            if one[1].spans:  # drafters read tokens
                continue
            if one[1].seq_id in self._drafted:
                yield one
            else:
                others.append(one)
        first = self._turn if self._turn < len(others) else 0
        self._turn = first + _LOOKS
        yield from islice(others, first, first + _LOOKS)

    def _guess(self, request: Request, sequence: Sequence) -> Guess | None:
        """The guess of the first drafter that is confident, or else of the most hopeful one."""
        best, most = None, 0.0
        for number, drafter in enumerate(self.drafters):
            if number in self._failed:
                continue
            try:
                proposal = drafter.propose(request, sequence, self._most)
            except Exception:  # whatever it is, texts do not depend on it
                logger.exception("the drafter %s failed, and is not asked again", drafter.name)
                self._failed.add(number)
                continue
            if proposal is None:
                continue
            chances = self._acceptance.chances(sequence.seq_id, number, proposal)
            hope = sum(chances)
            if hope > most:
                best = Guess(request.request_id, sequence.seq_id, number, proposal, chances)
                most = hope
            if chances[0] >= _CONFIDENT:
                break
        return best

    def _learn(self, guess: Guess, chunk: Chunk, outcome: Outcome | None) -> None:
        """See which drafts were right; of those that were not verified, whether the first was."""
        if outcome is None or not outcome.tokens:
            return
        tokens, tried = outcome.tokens, len(chunk.drafts)
        right = len(tokens) - 1
        if not tried:
            if guess.in_step:
                return  # it was never made
            tried, right = 1, int(tokens[0].token_id == guess.proposal.tokens[0])
        self._acceptance.observe(guess.seq_id, guess.drafter, guess.proposal, tried, right)


def _only_decodes(step: Step) -> bool:
    """Whether a step computes tokens, and none of them of a prompt."""
    return 0 < step.num_tokens == sum(1 + len(chunk.drafts) for chunk in step.chunks)
