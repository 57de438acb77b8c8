"""Drafters for tests: they know the text beforehand, and are right as often as they are told to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quire.capabilities.speculation import Proposal
from quire.core.protocol import TO_DRAFT, Chunk, Outcome, Request, Step
from quire.core.scheduling import Capability, Scheduler
from quire.core.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from support.live_server import LiveServer

Drafter = Callable[[Request, Sequence], Seq[int]]
"""What a sequence of a request may go on with."""


class Proposing:
    """What a test's drafter says, to a ``Speculation``."""

    name, num_bytes = "test", 0

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        """See ``quire.capabilities.speculation.Drafter``."""
        tokens = list(self._drafter(request, sequence))[:most]
        return Proposal(tokens, [1.0] * len(tokens), 3) if tokens else None

    def close(self, seq_id: int) -> None:
        """See ``quire.capabilities.speculation.Drafter``."""


class Drafting:
    """Has a drafter propose something for every running sequence before each step."""

    def __init__(self, scheduler: Scheduler, drafter: Drafter) -> None:
        self._scheduler = scheduler
        self._drafter = drafter
        self.num_drafts = 0  # that steps have been given
        self._schedule = scheduler.schedule
        scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def schedule(self, now: float) -> Step:
        for group in self._scheduler.running:
            if group.beams is None:
                for branch in group.branches:
                    drafts = self._drafter(group.request, branch)
                    self._scheduler.propose(branch.seq_id, drafts)
        step = self._schedule(now)
        self.num_drafts += sum(len(chunk.drafts) for chunk in step.chunks)
        return step


class Verified:
    """Has an engine leave drafts to its draft model, and counts them, and those that were right.

    By the tokens themselves: after a draft that ends a grammar's text nothing more is sampled, so
    that the numbers of both do not tell whether it was right.


    drafts: of a sequence in a step; by default, up to five.
    """

    def __init__(self, llm: Any, seed: int = 0, drafts: Drafter | None = None) -> None:
        self.drafts = self.right = 0
        rng = random.Random(seed)
        engine = llm.engine
        engine.use(
            engine.capabilities._replace(speculation=None)
        )  # how many are worth it is not the question
        self._drafting = Drafting(
            engine.scheduler, drafts or (lambda *_: [TO_DRAFT] * rng.randint(0, 5))
        )
        self.draft_model = engine.executor._draft_model
        self._observe = self.draft_model.observe
        self.draft_model.observe = self.observe

    @property
    def asked(self) -> int:
        """Drafts that steps had room for, whether or not the model made them."""
        return self._drafting.num_drafts

    def observe(self, chunks: Seq[Chunk], outcomes: Mapping[int, Outcome]) -> None:
        for chunk in chunks:
            if chunk.drafts:
                self.drafts += len(chunk.drafts)
                told = zip(chunk.drafts, outcomes[chunk.seq_id].tokens, strict=False)
                self.right += sum(draft == sample.token_id for draft, sample in told)
        self._observe(chunks, outcomes)


def knowing(
    truth: Mapping[str, Seq[Seq[int]]], right: float, vocab_size: int, seed: int = 0
) -> Drafter:
    """truth: every output's tokens, by request. right: the share of proposals that are right."""
    rng = random.Random(seed)

    def propose(request: Request, branch: Sequence) -> list[int]:
        rest = truth[request.request_id][branch.index][branch.num_output_tokens :]
        drafts = list(rest[: rng.choice((0, 1, 2, 3, 5, 8, 16))])
        if rng.random() > right:
            drafts[rng.randint(0, 3) :] = [rng.randrange(vocab_size) for _ in range(4)]
        return drafts

    return propose


class Foreseen(Capability):
    """Drafts the script, now more of it and now less, and the last draft is wrong."""

    num_bytes = 12345
    drafters = ()

    def __init__(self, script: Seq[int], most: int = 7) -> None:
        self._script = script
        self._most = most
        self.drafted = self.accepted = 0

    def propose(self, scheduler: Scheduler) -> None:
        for group in scheduler.running:
            for branch in group.branches if group.expanded else ():
                known = branch.num_output_tokens
                drafts = list(self._script[known : known + 5 * known % (self._most + 1)])
                scheduler.propose(branch.seq_id, [*drafts[:-1], *(1 for _ in drafts[-1:])])

    def observe(self, step: Step, outcomes: Mapping[int, Outcome], seconds: float) -> None:
        for chunk in step.chunks:
            if chunk.drafts:
                self.drafted += len(chunk.drafts)
                self.accepted += len(outcomes[chunk.seq_id].tokens) - 1


@contextmanager
def foreseen(server: LiveServer) -> Iterator[Foreseen]:
    assert server.executor.script is not None
    drafts: Any = Foreseen(server.executor.script)
    engine = server.engine
    engine.use(engine.capabilities._replace(speculation=drafts))
    try:
        yield drafts
    finally:
        engine.use(engine.capabilities._replace(speculation=None))
