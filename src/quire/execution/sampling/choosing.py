"""A step after its forward pass: its tokens are chosen, and told when somebody asks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from quire.core.protocol import IN_FLIGHT, Chunk, Opened, Outcome, Readout, Sample, confirmed
from quire.execution.forward import Hidden, Worker
from quire.execution.pooling import Pools
from quire.execution.sampling.guidance import OutputGuide, begin_finding, patience, wait_for
from quire.execution.sampling.past import Past
from quire.execution.sampling.prompt_logprobs import prompt_logprobs
from quire.execution.sampling.rows import to_device
from quire.execution.sampling.sampler import Draws, SampleRow, beam_candidates, draw
from quire.text.params import SamplingParams

_FORCED = 0.003  # seconds that are given to finding out what must come next
_NOT_NUMBERS = "the model's logits are not numbers (NaN)"


class _Asking(NamedTuple):
    """A chunk that is to be read out."""

    chunk: Chunk
    readout: Readout
    whose: Opened
    params: SamplingParams  # of its request
    past: Past | None  # None: its params do not look at it
    num_output_tokens: int  # that are known where the first of its rows is read
    num_draws: int


class Choosing:
    """The tokens of one step.

    Where choosing them takes waiting for the forward pass, that is left until the next step needs
    them, or somebody the result.
    """

    def __init__(
        self,
        worker: Worker,
        chunks: Sequence[Chunk],
        known: Sequence[Opened],
        pasts: Mapping[int, Past],
        pools: Pools,
        before: Choosing | None,
        *,
        tell_forced: bool = False,
    ) -> None:
        """known: whose the chunks are. before: whose tokens are IN_FLIGHT in them."""
        self._tell_forced = tell_forced
        self._asking: list[_Asking] = []
        self._has_pasts = self._has_beams = False
        self._reads_prompts = False  # whether something is made of the states of prompts
        waits = False  # whether choosing takes a look at what is being computed
        draws_itself = worker.kernels.draws
        for chunk, whose in zip(chunks, known, strict=True):
            request, readout = whose.request, chunk.readout
            params = request.params
            assert isinstance(params, SamplingParams)  # without a call, for every token
            if params.prompt_logprobs is not None or request.pooling is not None:
                self._reads_prompts = waits = True
            if readout is None or not readout.rows:
                continue
            rows, draws, candidates, _ = readout
            length = chunk.start + len(chunk.token_ids) + 1 - rows - chunk.output_start
            if candidates:
                self._has_beams = waits = True
            # How many tokens top_k and top_p keep decides what the sampler launches.
            elif params.temperature and (params.top_k > 0 or params.top_p < 1):
                waits = waits or not draws_itself
            past = pasts.get(chunk.seq_id) if pasts else None
            if past is not None:
                self._has_pasts = True
                waits = waits or chunk.token_ids[0] == IN_FLIGHT
            draws = 0 if candidates else rows - 1 + draws
            self._asking.append(_Asking(chunk, readout, whose, params, past, length, draws))
        self._waits = waits
        self._chunks, self._known = chunks, known
        self._worker, self._pools = worker, pools
        self._draws: Draws | None = None
        self._told = False  # whether what was drawn is among the outcomes
        self._remembered = False  # whether guides were asked about this step
        self._outcomes: dict[int, Outcome] = {}
        self.delays: dict[int, float] = {}  # see ``StepResult``, as far as is known
        self._late = set[int]()  # sequences that are given no token
        self._sure: dict[int, int] = {}  # rows of others for which it is known what may come next
        # Only until tokens have been chosen:
        self._hidden: Hidden | None = None
        self._logits: Tensor | None = None
        self._before = before
        self._began = time.monotonic()

    def begin(self, hidden: Hidden) -> None:
        """Take the result of the forward pass; choose the tokens now if that takes no waiting."""
        self._hidden = hidden
        if self._asking:
            # Only rows that are sampled pass the LM head, each once however many samples it gives.
            self._logits = self._worker.logits(hidden.asked, hidden.asked_heads)
        if not self._waits:
            self.choose()

    def choose(self) -> None:
        """Choose the tokens unless they are chosen, and compute all else that is asked for.

        Called in inference mode, since entering it takes a while.
        """
        hidden, logits = self._hidden, self._logits
        if hidden is None:
            return
        if logits is not None:
            if self._has_pasts:
                if not self._remembered:
                    self._remember()
                self._wait_for_guides()
            self._sample(logits)
            if self._has_beams:
                self._find_candidates(logits)
        if self._reads_prompts:
            self._read_prompts(hidden)
        self._hidden = self._before = self._logits = None

    def _read_prompts(self, hidden: Hidden) -> None:
        """What is made of the states of prompts: log-probabilities, vectors."""
        step = self._chunks, self._known, hidden, self._worker
        began = time.thread_time()
        scored = [*prompt_logprobs(*step)]
        each = (time.thread_time() - began) / max(1, sum(len(entries) for _, entries in scored))
        for seq_id, logprobs in scored:
            self._delay(seq_id, each * len(logprobs))
            outcome = self._outcomes.get(seq_id, _NOTHING)._replace(prompt_logprobs=logprobs)
            if any(math.isnan(one.logprob) for one in logprobs):
                outcome = Outcome(failure=_NOT_NUMBERS)
            self._outcomes[seq_id] = outcome
        self._outcomes.update(self._pools.outcomes(*step))

    def feed(self, chunks: Sequence[Chunk], bounds: Sequence[int]) -> tuple[list[int], list[int]]:
        """Places of tokens that the next step's chunks lack, and their rows in ``tokens``.

        The tokens of chunk i begin at ``bounds[i]``.
        """
        lacking = [i for i, chunk in enumerate(chunks) if chunk.token_ids[0] == IN_FLIGHT]
        firsts = accumulate((asking.num_draws for asking in self._asking), initial=0)
        row_of = {one.chunk.seq_id: row for one, row in zip(self._asking, firsts, strict=False)}
        return [bounds[i] for i in lacking], [row_of[chunks[i].seq_id] for i in lacking]

    def tokens(self) -> Tensor:
        """[R] int64, as they were sampled, where they were."""
        self.choose()
        assert self._draws is not None, "a step that another is fed from has sampled"
        return self._draws.tokens

    def outcomes(self) -> dict[int, Outcome]:
        """What the step gave, by sequence; waits for it."""
        if self._hidden is not None:
            with torch.inference_mode():
                self.choose()
        if self._draws is not None and not self._told:
            drawn, first, seconds = self._draws.read(), 0, self._draws.seconds
            for asking in self._asking:
                seq_id, last = asking.chunk.seq_id, first + asking.num_draws
                guide = None if asking.past is None else asking.past.guide
                spent = 0.0 if guide is None else guide.spent()
                known = self._outcomes.get(seq_id, _NOTHING)
                if last > first and seq_id in self._late:
                    known = known._replace(late=True, beside=spent)
                elif last == first + 1 and (sample := drawn[first]) is not None:
                    scored = known.prompt_logprobs
                    known = Outcome((sample,), prompt_logprobs=scored, beside=spent)
                elif last > first:
                    known = self._outcome(asking, drawn[first:last])._replace(beside=spent)
                elif spent:
                    known = known._replace(beside=spent)
                self._outcomes[seq_id] = known
                for row in range(first, last) if seconds else ():
                    self._delay(seq_id, seconds.get(row, 0.0))
                first = last
            self._told = True
            if self._has_pasts:
                self._look_ahead()
        return self._outcomes

    def _delay(self, seq_id: int, seconds: float) -> None:
        if seconds:
            self.delays[seq_id] = self.delays.get(seq_id, 0.0) + seconds

    def _look_ahead(self) -> None:
        """Have guides find what may follow these tokens while the next step is planned."""
        guides = list[tuple[int, OutputGuide, int]]()
        for asking in self._asking:
            past = asking.past
            guide = None if past is None else past.guide
            if past is None or guide is None or asking.num_draws != asking.readout.rows:
                continue
            samples = self._outcomes[asking.chunk.seq_id].tokens
            if samples and not _ends(asking.whose, samples[-1].token_id):
                past.take(asking.num_output_tokens, [sample.token_id for sample in samples])
                length = asking.num_output_tokens + len(samples)
                past.ask((length,), forced=self._tell_forced)
                guides.append((asking.chunk.seq_id, guide, length))
        begin_finding([guide for _, guide, _ in guides])
        if self._tell_forced:
            wait_for((guide for _, guide, _ in guides), _FORCED)
            for seq_id, guide, length in guides:
                forced = guide.forced(length)
                self._outcomes[seq_id] = self._outcomes[seq_id]._replace(forced=forced)

    def _outcome(self, asking: _Asking, drawn: Sequence[Sample | None]) -> Outcome:
        """What the samples of a chunk come to."""
        rows = asking.readout.rows
        if rows == 1:
            tokens: Sequence[Sample] = [one for one in drawn[:1] if one is not None]
        else:
            sure = self._sure.get(asking.chunk.seq_id, rows)
            known = [*drawn[:sure], *[None] * (rows - sure)]
            tokens = confirmed(known, asking.chunk.drafts)
        forks = [one for one in drawn[rows:] if one is not None]
        if not tokens or len(forks) < len(drawn) - rows:
            return Outcome(failure=_why_nothing(asking))
        scored = self._outcomes.get(asking.chunk.seq_id, _NOTHING).prompt_logprobs
        return Outcome(tokens, forks, (), scored)

    def ask_guides(self) -> None:
        """Have guides find what may come next, where the tokens before are known."""
        if self._has_pasts and self._before is None:
            begin_finding(self._remember())

    def _remember(self) -> list[OutputGuide]:
        """Note the sequences' new tokens where their parameters look at them.

        Returns the guides that have something to find out.
        """
        self._remembered, guides = True, list[OutputGuide]()
        for asking in self._asking:
            if asking.past is not None:
                chunk = asking.chunk
                tokens, start = chunk.token_ids, chunk.start - chunk.output_start
                if tokens[0] == IN_FLIGHT:
                    assert self._before is not None
                    outcome = self._before.outcomes()[chunk.seq_id]
                    tokens = [sample.token_id for sample in outcome.tokens]
                    if not tokens:  # nor is anything made of this step
                        self._late.add(chunk.seq_id)
                        continue
                asking.past.take(start, tokens)
                first, rows = asking.num_output_tokens, asking.readout.rows
                if (guide := asking.past.ask(range(first, first + rows))) is not None:
                    guides.append(guide)
        return guides

    def _wait_for_guides(self) -> None:
        """Wait for masks; an output whose mask does not come in time gets no token in this step."""
        deadline = time.monotonic() + patience(time.monotonic() - self._began)
        late = set[str]()
        for asking in self._asking:
            guide = None if asking.past is None else asking.past.guide
            if guide is None:
                continue
            first, rows = asking.num_output_tokens, asking.readout.rows
            if rows == 1 and guide.mask(first) is not None:  # as nearly always
                continue
            sure = _num_known(guide, first, rows)
            if sure < rows:  # with the first of them, most of the others' come as well
                guide.wait(deadline)
                sure = _num_known(guide, first, rows)
            if sure < rows:
                self._sure[asking.chunk.seq_id] = sure
            if not sure:
                guide.late()
                self._late.add(asking.chunk.seq_id)
                late.add(asking.whose.request.request_id)
        # Beams are compared with each other.
        for asking in self._asking if late else ():
            if asking.readout.candidates and asking.whose.request.request_id in late:
                self._late.add(asking.chunk.seq_id)

    def _sample(self, logits: Tensor) -> None:
        """Draw what each chunk asks for from its rows of ``logits`` [asked, V]."""
        rows: list[SampleRow] = []
        sources: list[int] = []
        first = 0
        for asking in self._asking:
            count, draws, candidates, _ = asking.readout
            if asking.num_draws == 1:  # as nearly all ask, so without a call
                (_, request, branch, _), length = asking.whose, asking.num_output_tokens
                rows.append(SampleRow(request, asking.params, branch, length, asking.past))
                sources.append(first)
            elif not candidates:
                rows += _sample_rows(asking)
                sources += range(first, first + count)
                sources += [first + count - 1] * (draws - 1)
            first += count
        if not rows:
            return
        if sources != list(range(first)):
            logits = logits[to_device(torch.tensor(sources), logits.device)]
        self._draws = draw(logits, rows, self._worker.kernels)

    def _find_candidates(self, logits: Tensor) -> None:
        """The likeliest next tokens for chunks of beams, which have one row each."""
        firsts = accumulate((asking.readout.rows for asking in self._asking), initial=0)
        beams = [
            (row, asking)
            for row, asking in zip(firsts, self._asking, strict=False)
            if asking.readout.candidates
        ]
        if not beams:
            return
        rows = [row for _, asking in beams for row in _sample_rows(asking)]
        counts = [asking.readout.candidates for _, asking in beams]
        began = time.thread_time()
        found = beam_candidates(logits[[row for row, _ in beams]], rows, counts)
        each = (time.thread_time() - began) / sum(counts)
        for (_, asking), candidates in zip(beams, found, strict=True):
            self._delay(asking.chunk.seq_id, each * asking.readout.candidates)
            outcome = Outcome(failure=_why_nothing(asking))
            if asking.chunk.seq_id in self._late:
                outcome = Outcome(late=True)
            elif candidates is not None:
                outcome = Outcome(candidates=candidates)
            self._outcomes[asking.chunk.seq_id] = outcome


_NOTHING = Outcome()


def _why_nothing(asking: _Asking) -> str:
    """Why no token could be chosen."""
    guide = None if asking.past is None else asking.past.guide
    failure = None if guide is None else guide.failure
    if failure is None and asking.params.guided:
        return "the fields of this request, or the model's logits, leave no token to choose"
    return failure or _NOT_NUMBERS


def _num_known(guide: OutputGuide, first: int, rows: int) -> int:
    """How many of these rows, from the first on, have a known mask."""
    for row in range(rows):
        if guide.mask(first + row) is None:
            return row
    return rows


def _ends(whose: Opened, token: int) -> bool:
    """Whether an output is likely to end with that token."""
    request = whose.request
    return token in request.eos_token_ids or token in request.params.stop_token_ids


def _sample_rows(asking: _Asking) -> Iterator[SampleRow]:
    (_, request, branch, _), params, past = asking.whose, asking.params, asking.past
    known = asking.num_output_tokens
    rows, draws, _, _ = asking.readout
    if draws > 1:
        for fork in range(draws):
            yield SampleRow(request, params, fork, known, past)
    else:
        for row in range(rows):
            yield SampleRow(request, params, branch, known + row, past)
