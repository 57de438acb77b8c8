"""The answers of OpenAI's completions and chats: their types, and how they are made of outputs.

Fields that vLLM always sends are null where Quire has nothing to say in them: clients read them as
attributes. What OpenAI's own schema allows no null for is left out instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields
from typing import Annotated, Any, Literal, Protocol

from fastapi.responses import Response
from msgspec import UNSET, Meta, UnsetType

from quire.engine.metrics import RequestMetrics
from quire.engine.outputs import CompletionOutput, Delta, PromptProgress, RequestOutput
from quire.http.answers.logprobs import ChatLogprobs, CompletionLogprobs, prompt_logprobs
from quire.http.answers.rendering import Answer, Json, Many, encode, json_response
from quire.http.answers.streaming import Events, EventStream, event
from quire.http.guards.envelope import new_id
from quire.http.handover import handed_over
from quire.http.openai.requests import GenerationRequest
from quire.http.service import Caller, Progress, Service
from quire.text.params import SamplingParams

_REASONS = ["stop", "length", "abort", "error", "tool_calls"]
FinishReason = Annotated[str, Meta(extra_json_schema={"enum": _REASONS})]


class PromptTokensDetails(Answer):
    cached_tokens: int


class CompletionTokensDetails(Answer):
    reasoning_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class CompletionUsage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class _Whole(Answer, kw_only=True):
    """The first fields of whole answers."""

    id: str
    created: int
    model: str
    object: str
    service_tier: None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: None = None
    metrics: list[dict[str, Any]] | None = None
    timings: dict[str, float] | UnsetType = UNSET


class _Chunk(Answer, kw_only=True):
    """What chunks have in common. ``prompt_token_ids`` is null in the first one of a chat."""

    id: str
    created: int
    model: str
    object: str
    choices: Sequence[Any]
    usage: CompletionUsage | UnsetType | None = UNSET
    metrics: list[dict[str, Any]] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    timings: dict[str, float] | UnsetType = UNSET
    prompt_progress: dict[str, float] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType | None = UNSET


# -- completions -------------------------------------------------------------------------------


class CompletionChunkChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: Sequence[int] | None = None
    token_ids: Sequence[int] | None = None


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_logprobs: Many[dict[str, Any] | None] | None = None
    routed_experts: None = None


class Completion(_Whole, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: CompletionUsage
    warnings: list[str] | UnsetType = UNSET


class CompletionChunk(_Chunk, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: Sequence[CompletionChunkChoice]


# -- chats -------------------------------------------------------------------------------------


class MessageCallFunction(Answer, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class MessageCall(Answer, kw_only=True):
    """In a stream its first chunk has all but the arguments, and the others have those alone."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: MessageCallFunction


class AnswerMessage(Answer, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    audio: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MessageCall] | UnsetType = UNSET


class MessageDelta(Answer):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MessageCall] | UnsetType = UNSET


class ChatChoice(Answer):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    token_ids: Sequence[int] | None = None
    routed_experts: None = None


class ChatChunkChoice(Answer):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    token_ids: Sequence[int] | None = None


class ChatCompletion(_Whole, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: Many[dict[str, Any] | None] | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_text: None = None
    choices: list[ChatChoice]
    usage: CompletionUsage
    warnings: list[str] | UnsetType = UNSET


class ChatCompletionChunk(_Chunk, kw_only=True):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: Sequence[ChatChunkChoice]


_STORY = (  # of RequestMetrics; its moments are of no use on another machine's clock
    *(field.name for field in fields(RequestMetrics) if not field.name.endswith("_time")),
    *("num_preemptions", "ttft", "tpot", "e2e_latency"),
)
_MUCH = 2**20  # bytes of an answer, after which memory is given back
_FEW_CHOICES = 16  # of which an answer can be made at once
_FEW_LOGPROBS = 1024  # of which chunks can
_TELL_OF_OTHERS = (
    "cached_tokens",
    "block_seconds",
    "miss",
    "expected_ttft",
    "expected_e2e_latency",
)  # who have sent the same, or are sending it

Choice = CompletionChoice | ChatChoice
ChunkChoice = CompletionChunkChoice | ChatChunkChoice


class Wording(Protocol):
    """How an endpoint words the choices of one answer."""

    id_prefix: str
    one_prompt: bool  # its tokens then stand beside the choices, not in them

    @property
    def whole(self) -> type[Answer]:
        """The type of a whole answer."""
        ...

    @property
    def chunk(self) -> type[Answer]:
        """The type of a stream's chunks."""
        ...

    def choice(
        self, index: int, number: int, output: CompletionOutput, request: RequestOutput
    ) -> Choice:
        """A finished output of prompt ``number``."""
        ...

    def opening(self, index: int, number: int) -> Sequence[ChunkChoice]:
        """What goes before the first chunk of an output of prompt ``number``."""
        ...

    def silence(self, index: int) -> ChunkChoice:
        """A chunk of an output that has gained nothing."""
        ...

    def text(self, index: int, delta: Delta) -> bytes | None:
        """The JSON of the one chunk that tells of a text and nothing else, which most do."""
        ...

    def chunks(self, index: int, delta: Delta) -> Sequence[ChunkChoice]:
        """What an output gained: a token at least, whose text may be none yet. Never empty."""
        ...

    def reasoning_tokens(self, request: RequestOutput) -> int | None:
        """How many of its tokens were reasoning; None where nothing is said of that."""
        ...


class StartRun(Protocol):
    """Begins the work, given an id for it that no other has."""

    def __call__(self, request_id: str, *, whole: bool) -> Progress:
        """whole: nothing comes before it is done."""
        ...


async def answer(
    service: Service,
    caller: Caller,
    request: GenerationRequest,
    model: str,
    params: SamplingParams,
    wording: Wording,
    run: StartRun,
    prompts: Sequence[Sequence[int]] = (),
) -> Response:
    """Answer as the request asks, at once or as a stream.

    prompts: their tokens, where a stream is to tell of them.
    """
    own_id = new_id()
    request_id = wording.id_prefix + (request.request_id or caller.request_id or own_id)
    head: Json = {"id": request_id, "created": int(time.time()), "model": model}
    progress = run(wording.id_prefix + own_id, whole=not request.stream)
    account = Account(request, service, wording)
    if request.stream:
        chunks = Chunks(head, request, params.num_outputs, wording, account, prompts)
        return EventStream(chunks.of(progress), silence=service.silence)
    outputs = {}
    async with aclosing(progress):
        async for deltas in progress:
            outputs.update({number: delta.final for number, delta in deltas if delta.final})

    handed: Json = {}
    if request.kv_transfer_params:
        handed = await handed_over(service, request.kv_transfer_params)

    def build() -> Answer:
        first = outputs[0]
        return wording.whole(
            **head,
            choices=list(_choices(request, params.num_outputs, wording, outputs)),
            **account.of(outputs),
            warnings=account.warnings(outputs.values()),
            **handed,
            **account.timings(first),
            **_prompt_tokens(request, wording, first.prompt_token_ids),
            **_prompt_logprobs(wording, first),
        )

    scored = params.logprobs is not None or params.prompt_logprobs is not None
    many = len(outputs) * params.num_outputs > _FEW_CHOICES
    response = await json_response(build, large=scored or many)
    if len(response.body) > _MUCH:
        service.engine.give_memory_back()
    return response


def _choices(
    request: GenerationRequest, n: int, wording: Wording, outputs: Mapping[int, RequestOutput]
) -> Iterator[Any]:
    for number in sorted(outputs):
        done = outputs[number]
        for output in done.outputs:
            choice = wording.choice(number * n + output.index, number, output, done)
            if request.return_token_ids:
                choice.token_ids = output.token_ids
                if isinstance(choice, CompletionChoice):
                    choice.prompt_token_ids = done.prompt_token_ids
            yield choice


def _prompt_tokens(request: GenerationRequest, wording: Wording, token_ids: Sequence[int]) -> Json:
    """Those of the one prompt, beside the choices; of several prompts they stand in the choices."""
    wanted = request.return_token_ids and wording.one_prompt
    return {"prompt_token_ids": token_ids} if wanted else {}


def _prompt_logprobs(wording: Wording, request: RequestOutput) -> Json:
    """The log-probabilities of the one prompt, beside the choices."""
    scored = request.prompt_logprobs
    return {"prompt_logprobs": prompt_logprobs(scored)} if scored and wording.one_prompt else {}


class Chunks:
    """A streamed answer: a chunk for each token, and one for the usage if the request wants it."""

    def __init__(
        self,
        head: Json,
        request: GenerationRequest,
        n: int,
        wording: Wording,
        account: Account,
        prompts: Sequence[Sequence[int]],
    ) -> None:
        self._head, self._request, self._n, self._wording = head, request, n, wording
        self._account, self._prompts = account, prompts
        self._tokens: dict[int, int] = {}  # of each choice that has begun
        # What all chunks have in common is made once.
        self._usage: UnsetType | None = None if request.include_usage else UNSET
        empty = event(encode(wording.chunk(**head, choices=[], usage=self._usage)))
        before, _, after = empty.rpartition(b"[]")
        self._before, self._after = before + b"[", b"]" + after
        self._plain = not request.counts_tokens
        self._timings: dict[int, Timings] = {}  # of each choice that has begun

    async def of(self, progress: Progress) -> Events:
        outputs = {}
        async with aclosing(progress):
            async for deltas in progress:
                chunks: list[bytes | Answer] = []
                logprobs = 0
                for number, delta in deltas:
                    if delta.final is not None:
                        outputs[number] = delta.final
                    chunks += self._chunks(number, delta)
                    if delta.logprobs is not None:
                        logprobs += sum(map(len, delta.logprobs))
                    if logprobs > _FEW_LOGPROBS:
                        yield chunks
                        chunks, logprobs = [], 0
                        await asyncio.sleep(0)  # others have their turn
                if chunks:
                    yield chunks
        if self._request.include_usage:
            told = {**self._account.of(outputs), **self._account.timings(outputs[0])}
            yield [self._wording.chunk(**self._head, choices=[], **told)]

    def _chunks(self, number: int, delta: Delta) -> list[bytes | Answer]:
        index = number * self._n + delta.index
        if delta.progress:
            return [*self._progress(index, delta), *self._text(number, index, delta)]
        return self._text(number, index, delta)

    def _progress(self, index: int, delta: Delta) -> Iterator[Answer]:
        for one in delta.progress if self._account.tells_cached else ():
            told, choices = progress_of(one), [self._wording.silence(index)]
            yield self._wording.chunk(
                **self._head, choices=choices, usage=self._usage, prompt_progress=told
            )

    def _text(self, number: int, index: int, delta: Delta) -> list[bytes | Answer]:
        if not delta.token_ids and delta.finish_reason is None:
            return []
        is_plain = self._plain and delta.finish_reason is None
        choices: list[ChunkChoice] = []
        if index not in self._tokens:
            self._tokens[index] = 0
            is_plain = False
            choices += self._wording.opening(index, number)
        elif is_plain and (text := self._wording.text(index, delta)) is not None:
            return [self._before + text + self._after]
        self._tokens[index] += len(delta.token_ids)
        choices += self._wording.chunks(index, delta)
        if is_plain:
            before, after = self._before, self._after
            return [before + encode(choice) + after for choice in choices]
        return [self._full(number, choice, delta, choices) for choice in choices]

    def _full(
        self, number: int, choice: ChunkChoice, delta: Delta, choices: Sequence[ChunkChoice]
    ) -> Answer:
        """A chunk that tells more than what was written."""
        request, wording = self._request, self._wording
        last, first = choice is choices[-1], choice is choices[0]
        first = first and self._tokens[choice.index] == len(delta.token_ids)
        beside: Json = {"prompt_token_ids": None} if first and wording.one_prompt else {}
        if request.return_token_ids:
            choice.token_ids = delta.token_ids if last else ()
            if first and self._prompts:
                beside |= _prompt_tokens(request, wording, self._prompts[number])
                if isinstance(choice, CompletionChunkChoice):
                    choice.prompt_token_ids = self._prompts[number]
        if last and request.timings_per_token:
            beside["timings"] = self._timings_after(number, choice.index, delta)
        usage: CompletionUsage | UnsetType | None = self._usage
        if request.continuous_usage:
            prompt_tokens = len(self._prompts[number]) if self._prompts else 0
            written = self._tokens[choice.index] - (0 if last else len(delta.token_ids))
            usage = _usage(prompt_tokens, written)
        warnings = self._account.warnings([delta.final] if last and delta.final else [])
        return wording.chunk(
            **self._head, choices=[choice], usage=usage, warnings=warnings, **beside
        )

    def _timings_after(self, number: int, index: int, delta: Delta) -> Json:
        if index not in self._timings:
            self._timings[index] = self._account.timing(
                len(self._prompts[number]) if self._prompts else 0
            )
        return self._timings[index].after(delta)


class Account:
    """What a request has used, its tokens and (if it asks) its memory and time."""

    def __init__(self, request: GenerationRequest, service: Service, wording: Wording) -> None:
        self._request = request
        self._wording = wording
        self._miss_of = service.miss_of
        self.tells_cached = service.config.enable_prompt_tokens_details
        self._max_model_len = service.input_processor.max_model_len

    def timings(self, output: RequestOutput) -> Json:
        wanted = self._request.timings_per_token
        return {"timings": timings_of(output, tell_cached=self.tells_cached)} if wanted else {}

    def timing(self, prompt_tokens: int) -> Timings:
        """The timings of an output that begins."""
        return Timings(prompt_tokens, tell_cached=self.tells_cached)

    def of(self, outputs: Mapping[int, RequestOutput]) -> Json:
        stories = [outputs[number].metrics for number in sorted(outputs)]
        prompt = sum(story.num_prompt_tokens for story in stories)
        usage = _usage(prompt, sum(story.num_output_tokens for story in stories))
        if self.tells_cached:
            cached = sum(story.cached_tokens for story in stories)
            usage.prompt_tokens_details = PromptTokensDetails(cached)
        usage.completion_tokens_details = self._details(outputs)
        if not self._request.include_metrics:
            return {"usage": usage}
        names = [name for name in _STORY if self.tells_cached or name not in _TELL_OF_OTHERS]
        metrics = [{name: getattr(story, name) for name in names} for story in stories]
        if self.tells_cached:
            for told, story in zip(metrics, stories, strict=True):
                told["miss"] = self._miss_of(story)
        return {"usage": usage, "metrics": metrics}

    def _details(self, outputs: Mapping[int, RequestOutput]) -> CompletionTokensDetails | UnsetType:
        """Tokens of reasoning, and of a prediction."""
        reasoning = [self._wording.reasoning_tokens(outputs[number]) for number in sorted(outputs)]
        thought = UNSET if None in reasoning else sum(filter(None, reasoning))
        predicted = self._request.prediction is not None
        if thought is UNSET and not predicted:
            return UNSET
        stories = [output.metrics for output in outputs.values()] if predicted else []
        accepted = sum(story.num_accepted_tokens for story in stories)
        drafted = sum(story.num_draft_tokens for story in stories)
        return CompletionTokensDetails(thought, accepted, drafted - accepted)

    def warnings(self, outputs: Iterable[RequestOutput]) -> list[str] | UnsetType:
        """What was left out of the body, and where max_tokens was cut to what there is room for."""
        wanted, longest = self._request.wanted_tokens, self._max_model_len
        outputs = [*outputs]
        warnings = [*self._request.warnings] if outputs else []
        if wanted is None or longest is None:
            return warnings or UNSET
        for output in outputs:
            known = len(output.prompt_token_ids)
            if known + wanted > longest:
                warnings.append(
                    f"max_tokens was cut from {wanted} to {longest - known}: max_model_len is "
                    f"{longest}, and the prompt has {known} tokens"
                )
        return warnings or UNSET


def _usage(prompt: int, completion: int) -> CompletionUsage:
    return CompletionUsage(prompt, completion, prompt + completion)


class Timings:
    """How long an output has taken so far, in llama.cpp's words."""

    def __init__(self, prompt_tokens: int, *, tell_cached: bool) -> None:
        self._prompt_tokens, self._tell_cached = prompt_tokens, tell_cached
        self._first = self._since = 0.0
        self._tokens = 0

    def after(self, delta: Delta) -> Json:
        """The timings after a delta; of the whole request, once that has ended."""
        if delta.final is not None:
            return timings_of(delta.final, tell_cached=self._tell_cached)
        for one in delta.singly():
            self._tokens += len(one.token_ids)
            if one.first:
                self._first = one.seconds
            else:
                self._since += one.seconds
        count, written = self._prompt_tokens, self._tokens
        prompt = _rates("prompt", count, self._first, count)
        return prompt | _rates("predicted", written, self._since, written - 1)


def timings_of(request: RequestOutput, *, tell_cached: bool) -> Json:
    """How long a request took, in llama.cpp's words: of a prompt, what was not in the cache.

    The first token of an output comes with the prompt's last, so the rate is of the others.
    """
    story = request.metrics
    first = story.e2e_latency if story.ttft is None else story.ttft
    cached = story.cached_tokens if tell_cached else 0
    computed, written = story.num_prompt_tokens - cached, story.num_output_tokens
    drafts = {"draft_n": story.num_draft_tokens, "draft_n_accepted": story.num_accepted_tokens}
    return {
        "cache_n": cached,
        **_rates("prompt", computed, first, computed),
        **_rates("predicted", written, story.e2e_latency - first, written - 1),
        **(drafts if story.num_draft_tokens else {}),
    }


def progress_of(prompt: PromptProgress) -> Json:
    """How far a prompt has been computed, in llama.cpp's words."""
    return {
        "total": prompt.total,
        "cache": prompt.cached,
        "processed": prompt.processed,
        "time_ms": 1000 * prompt.seconds,
    }


def _rates(name: str, count: int, seconds: float, steps: int) -> Json:
    timed = steps > 0 and seconds > 0
    return {
        f"{name}_n": count,
        f"{name}_ms": 1000 * seconds,
        f"{name}_per_token_ms": 1000 * seconds / steps if timed else 0.0,
        f"{name}_per_second": steps / seconds if timed else 0.0,
    }
