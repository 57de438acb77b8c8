"""One request as its caller sees it: tokens become text, text meets stop strings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from quire.capabilities.grammar import BoxedRules
from quire.capabilities.misses import Miss, miss_of
from quire.core.errors import EngineError, QuireError, RequestAbortedError, RequestError
from quire.core.protocol import Chunk, FinishReason, Outcome, Progress, Step
from quire.core.scheduling import SequenceGroup
from quire.engine.events import RequestState, Taken
from quire.engine.forecast import Expected
from quire.engine.input_processor import PreparedRequest
from quire.engine.metrics import RequestMetrics
from quire.engine.outputs import (
    CompletionOutput,
    Delta,
    PromptProgress,
    RequestOutput,
    TokenLogprobTable,
)
from quire.text.detokenizer import Detokenizer
from quire.text.params import params_of
from quire.text.stop_strings import StopStrings
from quire.text.text_tokens import TextToken, tokens_in_text
from quire.text.tokenizer import Tokenizer


class BranchProgress:
    """One output of a request while it grows."""

    def __init__(self, index: int, prepared: PreparedRequest, tokenizer: Tokenizer) -> None:
        request = prepared.request
        params = params_of(request)
        self.output = CompletionOutput(index)
        if params.sample_logprobs is not None:
            self.output.logprobs, self.output.cumulative_logprob = [], 0.0
        self.last_time = request.arrival
        self.added = ""  # by the last token, to the text before stop strings end it
        self._own = tokenizer.own_texts
        self._params = params
        self._detokenizer = Detokenizer(
            tokenizer, prepared.context, params.skip_special_tokens, params.kept_special_tokens
        )
        self._stop: StopStrings | None = None
        if prepared.stops is not None:
            self._stop = StopStrings(prepared.stops, params.include_stop_str_in_output)

    def advance(self, token_id: int, reason: FinishReason | None) -> str:
        """Take one more token; the text it adds. Sets the output's finish and stop reasons."""
        output, params, stop = self.output, self._params, self._stop
        output.token_ids.append(token_id)
        text = ""
        if params.detokenize:
            if reason is None or self._reads(reason):
                text = self._detokenizer.push(token_id)
            if reason is not None:
                text += self._detokenizer.flush()
            self.added = text
            if stop is not None:
                text = stop.push(text, may_end=len(output.token_ids) >= params.min_tokens)
        if stop is not None and stop.matched is not None:
            reason, output.stop_reason = FinishReason.STOP, stop.matched
        elif reason is not None:
            if stop is not None:
                text += stop.flush()
            if reason is FinishReason.STOP and token_id in params.stop_token_ids:
                output.stop_reason = token_id
        output.text += text
        if reason is not None:
            output.finish_reason = reason.value
        return text

    @property
    def begun(self) -> bytes:
        """The bytes of a character that is not complete yet."""
        return self._detokenizer.begun

    def text_token(self, token_id: int, reason: FinishReason | None, begun: bytes) -> TextToken:
        """Of the token that came last, before which a character had been ``begun``."""
        shown = self._params.detokenize and self._reads(reason)
        shown = shown and self._detokenizer.shows(token_id)
        return TextToken(self._own, token_id, self.added, shown, begun)

    def _reads(self, reason: FinishReason | None) -> bool:
        """Whether a token counts for the text: one that ends it does so only where asked for."""
        return reason is not FinishReason.STOP or self._params.include_stop_str_in_output


class RequestProgress:
    """A request and its outputs while they grow."""

    def __init__(
        self,
        prepared: PreparedRequest,
        group: SequenceGroup,
        tokenizer: Tokenizer,
        block_bytes: int,
    ) -> None:
        self._block_bytes = block_bytes
        self.request = prepared.request
        self.prompt = prepared.prompt
        self._memory, self._scores = group.memory, group.scores
        self._tokenizer = tokenizer
        params = prepared.request.params
        count = params.num_outputs if params.use_beam_search else params.width
        self.branches = [BranchProgress(i, prepared, tokenizer) for i in range(count)]
        # See RequestMetrics.
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.looks_for_stops = prepared.stops is not None
        self.beside_seconds = 0.0  # see RequestMetrics
        self.expected: Expected | None = None  # before it was let in
        self._first_token_time: float | None = None
        self._prompt_tokens = group.branches[0].num_prompt_tokens  # with a session's history
        self._processed: int | None = None  # tokens of the prompt, as its caller knows
        self._found = 0  # tokens of it that were computed before
        self._began = 0.0  # when the others were begun
        self.vector: Sequence[float] | None = None  # of the prompt, where that is asked for

    def advance(self, progress: Progress, now: float) -> Delta:
        branch, sample = self.branches[progress.branch], progress.sample
        output = branch.output
        if sample is None:
            assert progress.finish_reason is not None
            output.finish_reason = progress.finish_reason.value
            return self._end(output, now - branch.last_time)
        token_id, found, reason = sample.token_id, sample.logprobs, progress.finish_reason
        begun = b"" if found is None else branch.begun
        text = branch.advance(token_id, reason)
        tables = None
        if found is not None and output.logprobs is not None:
            table = TokenLogprobTable(found, branch.text_token(token_id, reason, begun))
            output.logprobs.append(table)
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + found.logprob
            tables = (table,)
        if progress.cumulative_logprob is not None:
            output.cumulative_logprob = progress.cumulative_logprob
        seconds, branch.last_time = now - branch.last_time, now
        first = len(output.token_ids) == 1
        if self._first_token_time is None:
            self._first_token_time = now
        request_id, ending = self.request.request_id, (output.finish_reason, output.stop_reason)
        delta = Delta(request_id, output.index, text, (token_id,), tables, seconds, first, *ending)
        return delta._replace(cached_tokens=self._memory.cached_tokens) if first else delta

    def read(self, chunk: Chunk, began: float, now: float) -> Delta | None:
        """How far its prompt has come by a chunk of a step that began then; None: no further."""
        total = self._prompt_tokens
        if chunk.start >= total:
            return None
        processed = min(chunk.start + len(chunk.token_ids), total)
        told = list[PromptProgress]()
        if self._processed is None:
            self._processed = self._found = chunk.start
            self._began = began
            told.append(PromptProgress(total, chunk.start, chunk.start, 0.0))
        if processed > self._processed:  # else it was preempted, and is computed again
            told.append(PromptProgress(total, self._found, processed, now - self._began))
            self._processed = processed
        delta = self._end(CompletionOutput(0), now - self.request.arrival)
        return delta._replace(progress=tuple(told)) if told else None

    @property
    def done(self) -> bool:
        ended = (branch.output.finish_reason is not None for branch in self.branches)
        # A search tells all that it has found at once: fewer than asked for, where no more can be.
        return any(ended) if self.request.params.use_beam_search else all(ended)

    def fail(self, error: QuireError, now: float) -> Delta:
        """End all outputs that have not ended yet, because of an error."""
        reason = broken_off(error)
        for branch in self.branches:
            if branch.output.finish_reason is None:
                branch.output.finish_reason = reason
        delta = self._end(CompletionOutput(0, finish_reason=reason), 0.0)
        final = replace(self.final(now), error=str(error))
        return delta._replace(stop_reason=str(error), final=final, failure=error)

    def last(self, delta: Delta, now: float) -> Delta:
        """The delta that ends the request, with its RequestOutput."""
        final = self.final(now)
        if final.prompt_logprobs is not None and None in final.prompt_logprobs[1:]:
            why = "log-probabilities of its prompt were lost with a request that failed"
            return self.fail(EngineError(why), now)
        return delta._replace(final=final)

    def _end(self, output: CompletionOutput, seconds: float) -> Delta:
        """A delta without a token."""
        return Delta(
            request_id=self.request.request_id,
            index=output.index,
            text="",
            token_ids=(),
            logprobs=None,
            seconds=seconds,
            first=False,
            finish_reason=output.finish_reason,
        )

    def final(self, now: float) -> RequestOutput:
        request, outputs = self.request, self._returned()
        return RequestOutput(
            request_id=request.request_id,
            prompt=self.prompt,
            prompt_token_ids=[] if request.spans else list(request.prompt_token_ids),
            outputs=outputs,
            prompt_logprobs=self._prompt_logprobs(),
            vector=self.vector,
            metrics=self._metrics(outputs, now),
        )

    def state(
        self, now: float, reason: str | None = None, error: QuireError | None = None
    ) -> RequestState:
        """The state for watchers. reason: the one with which it ends."""
        found = [branch.output for branch in self.branches]
        return RequestState(
            self.request,
            self._metrics(self._returned(), now),
            [output.token_ids for output in found],
            [output.finish_reason for output in found],
            reason,
            None if error is None else type(error).__name__,
        )

    def _returned(self) -> list[CompletionOutput]:
        """The outputs that its caller gets."""
        outputs = [branch.output for branch in self.branches]
        if self.request.params.use_beam_search:
            return [output for output in outputs if output.finish_reason is not None]
        return self._best(outputs)

    def _metrics(self, outputs: Sequence[CompletionOutput], now: float) -> RequestMetrics:
        memory = self._memory
        return RequestMetrics(
            arrival_time=self.request.arrival,
            first_token_time=self._first_token_time,
            finished_time=now,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=sum(len(output.token_ids) for output in outputs),
            cached_tokens=memory.cached_tokens,
            peak_blocks=memory.peak_blocks,
            block_seconds=memory.block_seconds,
            shared_blocks=memory.shared_blocks,
            copied_blocks=memory.copied_blocks,
            num_swaps=memory.num_swaps,
            num_recomputes=memory.num_recomputes,
            swapped_bytes=memory.swapped_blocks * self._block_bytes,
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            fetched_tokens=memory.fetched_tokens,
            grammar_seconds=self.grammar_seconds,
            beside_seconds=self.beside_seconds,
            miss=self.miss,
            expected_ttft=None if self.expected is None else self.expected.first_token,
            expected_e2e_latency=None if self.expected is None else self.expected.end,
        )

    @property
    def miss(self) -> Miss | None:
        memory, end = self._memory, self._first_token_time
        miss, since = miss_of(memory), memory.read_since
        if miss is None or since is None or end is None:
            return miss
        return miss.cost(len(self.request.prompt_token_ids) - memory.cached_tokens, end - since)

    @property
    def grammar_seconds(self) -> float:
        rules = self.request.rules
        return rules.seconds if isinstance(rules, BoxedRules) else 0.0

    def _prompt_logprobs(self) -> list[TokenLogprobTable | None] | None:
        if self._scores is None:
            return None
        tokens = tokens_in_text(self._tokenizer, self.request.prompt_token_ids)
        return [
            None if entry is None else TokenLogprobTable(entry, token)
            for entry, token in zip(self._scores, tokens, strict=True)
        ]

    def _best(self, outputs: list[CompletionOutput]) -> list[CompletionOutput]:
        """The n outputs to return of best_of, likeliest first."""
        params = params_of(self.request)
        if len(outputs) == params.num_outputs:
            return outputs
        outputs = sorted(outputs, key=lambda output: -(output.cumulative_logprob or 0.0))
        best = outputs[: params.num_outputs]
        return [
            replace(
                output, index=i, logprobs=output.logprobs if params.logprobs is not None else None
            )
            for i, output in enumerate(best)
        ]


def take_outcomes(
    step: Step,
    outcomes: Mapping[int, Outcome],
    request_of: Callable[[int], RequestProgress | None],
) -> tuple[dict[int, QuireError], dict[int, int], Sequence[tuple[int, int]]]:
    """Take in what a step gave beside tokens: vectors of prompts, failures, what drafts came to.

    Returns, by sequence, why some cannot go on; and how many drafts have turned out right: as many
    of its next tokens were drafted. Where a text ends before the last of them, its request has had
    no use of those after. Last, how many drafts there were, each time with how many were right.
    """
    failures: dict[int, QuireError] = {}
    right: dict[int, int] = {}
    drafts: list[tuple[int, int]] = []
    for chunk in step.chunks:
        outcome, readout = outcomes.get(chunk.seq_id), chunk.readout
        if outcome is None:
            continue
        drafted = 0 if readout is None else readout.rows - 1
        if outcome.failure is None and outcome.vector is None and drafted <= 0:
            continue
        request = request_of(chunk.seq_id)
        if request is None:
            continue
        if outcome.failure is not None:
            failures[chunk.seq_id] = _failure(request, outcome.failure)
        elif outcome.vector is not None:
            request.vector = outcome.vector
        elif outcome.tokens:
            right[chunk.seq_id] = len(outcome.tokens) - 1
            drafts.append((drafted, right[chunk.seq_id]))
            request.num_drafts += 1
            request.num_draft_tokens += drafted
    return failures, right, drafts


def taken(
    step: Step,
    seconds: float | None,
    deltas: Iterable[Delta],
    drafts: Sequence[tuple[int, int]] = (),
) -> Taken:
    """The event that a step is over, with its deltas."""
    num_tokens = first_tokens = 0
    to_first, between = list[float](), list[float]()
    for delta in deltas:
        if not delta.token_ids:
            continue
        num_tokens += len(delta.token_ids)
        if not delta.first:
            between.append(delta.seconds)
        else:
            first_tokens += 1
            if delta.index == 0:  # a request's outputs begin together: counted once
                to_first.append(delta.seconds)
    return Taken(step, seconds, num_tokens, first_tokens, to_first, between, drafts)


def broken_off(error: QuireError | None) -> str:
    """The finish reason of a request that ends because of an error; None: its caller has left."""
    aborted = error is None or isinstance(error, RequestAbortedError)
    return str((FinishReason.ABORT if aborted else FinishReason.ERROR).value)


def _failure(request: RequestProgress, why: str) -> QuireError:
    """The error of a sequence; where a form was asked for, it is the caller's."""
    if request.request.params.structured_outputs is not None:
        return RequestError(why, "structured_outputs")
    return EngineError(why)
