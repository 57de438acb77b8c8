"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from fastapi import FastAPI, Request
from fastapi.responses import Response

from quire.engine.input_processor import Prompt, as_dict
from quire.engine.outputs import CompletionOutput, Delta, RequestOutput
from quire.http.answers.logprobs import (
    CompletionLogprobs,
    completion_logprobs,
    prompt_logprobs,
)
from quire.http.answers.rendering import encode
from quire.http.body_fields import in_callers_words
from quire.http.handover import remote_prefill
from quire.http.openai.answers import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    answer,
)
from quire.http.openai.prompt_vectors import GivenVectors
from quire.http.openai.requests import CompletionRequest, TurnRequest
from quire.http.openapi import body_route, gives
from quire.http.service import Progress, Service
from quire.http.widened import checked
from quire.text.dialect import Reply
from quire.text.encoder import PromptForm
from quire.text.text_tokens import Echo, echo_of, text_left
from quire.text.tokenizer import Tokenizer


def add_completions(app: FastAPI, service: Service) -> None:
    vectors = GivenVectors(service)

    @body_route(
        app, service, CompletionRequest, gives(Completion, CompletionChunk), "/v1/completions"
    )
    async def completions(http: Request, request: CompletionRequest) -> Response:
        """Complete one or several prompts, given as texts, as token ids or as vectors."""
        caller = service.caller(http)
        model, prompts = service.model_of(request.model, request.warnings), request.prompts()
        inputs = service.input_processor
        params = request.sampling_params(inputs.sampling_defaults)
        service.check_answer(params, len(prompts), prompts)
        form = request.prompt_form(inputs.max_model_len, request.suffix or None)
        given: Sequence[Prompt] = prompts
        ids = [[] if isinstance(prompt, str) else prompt for prompt in prompts]
        if request.prompt_embeds is not None:
            given = [{"prompt_embeds": span} for span in await vectors.read(request)]
        # Else the engine's threads encode them, as one prepared request each.
        elif form != PromptForm() or request.counts_tokens:
            with service.reserve(len(prompts), prompts), in_callers_words(request.field_names):
                ids = [await service.engine.text_prompt(prompt, form) for prompt in prompts]
            given = [found or prompt for found, prompt in zip(ids, prompts, strict=True)]
        options = request.options(caller, model)
        if request.kv_transfer_params:
            options |= remote_prefill(service, request.kv_transfer_params)
        whole_prompts = [{**as_dict(one), **options} for one in given]

        def run(request_id: str, *, whole: bool) -> Progress:
            progress = service.run(
                request_id, whole_prompts, params, request.field_names, whole=whole
            )
            if request.only_prompts:
                return _without_outputs(progress)
            if not (schemas := request.widened):
                return progress
            return checked(service.engine, progress, schemas, _said, request.warnings)

        cut = ids if form.most is not None else None
        wording = CompletionWording(request, prompts, inputs.tokenizer, cut)
        request.warnings.extend(one.warning for one in request.widened)
        return await answer(service, caller, request, model.name, params, wording, run, ids)


def _said(output: CompletionOutput) -> Reply:
    return Reply(content=output.text)


async def _without_outputs(progress: Progress) -> Progress:
    """Leave out the one token with which the computing of a prompt ends."""
    async with aclosing(progress):
        async for deltas in progress:
            yield [(number, _emptied(delta)) for number, delta in deltas]


def _emptied(delta: Delta) -> Delta:
    final = delta.final
    if final is not None:
        outputs = [
            replace(
                one, text="", token_ids=[], logprobs=None, finish_reason="length", stop_reason=None
            )
            for one in final.outputs
        ]
        metrics = replace(final.metrics, num_output_tokens=0)
        final = replace(final, outputs=outputs, metrics=metrics)
    return delta._replace(
        text="",
        token_ids=(),
        logprobs=None,
        finish_reason="length",
        stop_reason=None,
        final=final,
    )


_TEXT = (
    b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null,"stop_reason":null,'
    b'"prompt_token_ids":null,"token_ids":null}'
)


class CompletionWording:
    """Choices that are a text each."""

    id_prefix = "cmpl-"
    whole = Completion
    chunk = CompletionChunk
    one_prompt = False

    def __init__(
        self,
        request: CompletionRequest | TurnRequest,
        prompts: Sequence[str | list[int]],
        tokenizer: Tokenizer,
        cut: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """cut: what is left of the prompts, where they were to be cut."""
        self._request = request
        self._prompts = prompts
        self._cut = cut
        self._tokenizer = tokenizer
        self._offsets: dict[int, int] = {}  # of each choice's next token in its text

    def choice(
        self, index: int, number: int, output: CompletionOutput, request: RequestOutput
    ) -> CompletionChoice:
        choice = CompletionChoice(
            index,
            (self._prompt_text(number) if self._request.echo else "") + output.text,
            self._logprobs(number, output, request),
            output.finish_reason,
            output.stop_reason,
        )
        if self._request.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(request.prompt_logprobs or ())
        return choice

    def opening(self, index: int, number: int) -> list[CompletionChunkChoice]:
        if not self._request.echo:
            return []
        return [CompletionChunkChoice(index, self._prompt_text(number))]

    def silence(self, index: int) -> CompletionChunkChoice:
        return CompletionChunkChoice(index, "")

    def text(self, index: int, delta: Delta) -> bytes | None:
        return None if delta.logprobs is not None else _TEXT % (index, encode(delta.text))

    def chunks(self, index: int, delta: Delta) -> list[CompletionChunkChoice]:
        logprobs, count = None, self._request.logprobs
        if count is not None and delta.logprobs:
            offset = self._offsets.get(index, 0)
            by_id = self._request.return_tokens_as_token_ids
            logprobs = completion_logprobs(delta.logprobs, count, offset=offset, by_id=by_id)
            added = sum(len(table.token.added) for table in delta.logprobs)
            self._offsets[index] = offset + added
        reason, stop = delta.finish_reason, delta.stop_reason
        return [CompletionChunkChoice(index, delta.text, logprobs, reason, stop)]

    def reasoning_tokens(self, request: RequestOutput) -> None:
        """A completion is all one text."""

    def _logprobs(
        self, number: int, output: CompletionOutput, request: RequestOutput
    ) -> CompletionLogprobs | None:
        count, tables = self._request.logprobs, output.logprobs or []
        if count is None:
            return None
        by_id = self._request.return_tokens_as_token_ids
        if not self._request.echo:
            return completion_logprobs(tables, count, by_id=by_id)
        echo = self._echo(number, request.prompt_token_ids)
        scores = request.prompt_logprobs or [None] * len(echo.tokens)
        return completion_logprobs(tables, count, echo=echo, scores=scores, by_id=by_id)

    def _prompt_text(self, number: int) -> str:
        prompt = self._prompts[number]
        token_ids = prompt if self._cut is None else self._cut[number]
        if isinstance(token_ids, str):
            return token_ids
        if isinstance(prompt, str):
            return text_left(self._tokenizer, token_ids)
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _echo(self, number: int, token_ids: Sequence[int]) -> Echo:
        prompt = self._prompts[number]
        if isinstance(prompt, str) and self._cut is not None:
            return echo_of(self._tokenizer, token_ids, self._prompt_text(number))
        return echo_of(self._tokenizer, token_ids, prompt if isinstance(prompt, str) else None)
