"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.responses import Response

from quire.engine import CompletionOutput, Delta, RequestOutput, Tokenizer
from quire.server.guards.clients import Caller
from quire.server.guards.limits import check_answer
from quire.server.logprobs import completion_logprobs, prompt_logprobs
from quire.server.openai_types import CompletionRequest
from quire.server.reply import answer
from quire.server.service import Service
from quire.server.session_types import TurnRequest
from quire.server.streaming import Json


async def create_completion(
    service: Service, caller: Caller, request: CompletionRequest
) -> Response:
    """Complete one or several prompts, given as texts or as token ids."""
    service.check_model(request.model)
    prompts = request.prompts()
    params = request.sampling_params(service.input_processor.sampling_defaults)
    check_answer(len(prompts), params, service.input_processor)
    wording = CompletionWording(request, prompts, service.input_processor.tokenizer)
    asked = [request.with_options(prompt, caller) for prompt in prompts]
    return await answer(
        service,
        request,
        request.model,
        params,
        wording,
        lambda request_id: service.run(request_id, asked, params, request.field_names),
    )


class CompletionWording:
    """Choices that are a text each."""

    id_prefix = "cmpl-"
    object = chunk_object = "text_completion"

    def __init__(
        self,
        request: CompletionRequest | TurnRequest,
        prompts: Sequence[str | list[int]],
        tokenizer: Tokenizer,
    ) -> None:
        self._request = request
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._offsets: dict[int, int] = {}  # of each choice's next token in its text

    def choice(
        self, index: int, number: int, output: CompletionOutput, request: RequestOutput
    ) -> Json:
        choice = {
            "index": index,
            "text": (self._prompt_text(number) if self._request.echo else "") + output.text,
            "logprobs": self._logprobs(output, request),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if self._request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(request.prompt_logprobs or ())
        return choice

    def opening(self, index: int, number: int) -> list[Json]:
        if not self._request.echo:
            return []
        text = self._prompt_text(number)
        return [{"index": index, "text": text, "logprobs": None, "finish_reason": None}]

    def chunks(self, index: int, delta: Delta) -> list[Json]:
        logprobs, count = None, self._request.logprobs
        if count is not None and delta.logprobs:
            offset = self._offsets.get(index, 0)
            logprobs = completion_logprobs(delta.logprobs, count, offset=offset)
            self._offsets[index] = offset + sum(map(len, logprobs["tokens"]))
        return [
            {
                "index": index,
                "text": delta.text,
                "logprobs": logprobs,
                "finish_reason": delta.finish_reason,
                "stop_reason": delta.stop_reason,
            }
        ]

    def reasoning_tokens(self, request: RequestOutput) -> None:
        """A completion is all one text."""

    def _logprobs(self, output: CompletionOutput, request: RequestOutput) -> Json | None:
        count, tables = self._request.logprobs, output.logprobs or []
        if count is None:
            return None
        if not self._request.echo:
            return completion_logprobs(tables, count)
        echoed = [table for table in request.prompt_logprobs or () if table is not None]
        first = self._tokenizer.decode(request.prompt_token_ids[:1], skip_special_tokens=False)
        return completion_logprobs([*echoed, *tables], count, unscored=[first])

    def _prompt_text(self, number: int) -> str:
        prompt = self._prompts[number]
        if isinstance(prompt, str):
            return prompt
        skip = self._request.skip_special_tokens is not False
        return self._tokenizer.decode(prompt, skip_special_tokens=skip)
