"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi.responses import Response

from quire.engine import CompletionOutput, Delta, RequestOutput
from quire.server.errors import in_callers_words
from quire.server.guards.clients import Caller
from quire.server.guards.limits import check_answer
from quire.server.logprobs import chat_logprobs, prompt_logprobs
from quire.server.openai_types import ChatRequest
from quire.server.reply import answer
from quire.server.service import Service
from quire.server.streaming import Json


async def create_chat_completion(
    service: Service, caller: Caller, request: ChatRequest
) -> Response:
    """Answer a conversation, put into one prompt by the model's chat template."""
    model, inputs = service.check_model(request.model), service.input_processor
    params = request.sampling_params(inputs.sampling_defaults)
    form = request.prompt_form(inputs.max_model_len)
    variables = {**(service.config.default_chat_template_kwargs or {}), **request.variables}
    service.check_chat_template(request.chat_template)
    with in_callers_words(request.field_names):
        check_answer(1, params, inputs, service.config.max_logprobs)
    messages = [message.for_template() for message in request.messages]
    with service.reserve():
        prompt = await service.engine.chat_prompt(messages, variables, form)
    asked = [
        request.with_options(prompt, caller, truncate_max_tokens=service.config.truncate_max_tokens)
    ]
    return await answer(
        service,
        caller,
        request,
        model,
        params,
        ChatWording(request),
        lambda request_id: service.run(request_id, asked, params, request.field_names),
        [prompt],
    )


class ChatWording:
    """Choices that are a message of the assistant each."""

    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    one_prompt = True

    def __init__(self, request: ChatRequest) -> None:
        self._request = request

    def choice(
        self, index: int, number: int, output: CompletionOutput, request: RequestOutput
    ) -> Json:
        choice = {
            "index": index,
            "message": {
                "role": "assistant",
                "content": self._request.echoed + output.text,
                "refusal": None,
            },
            "logprobs": self._logprobs(output),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(request.prompt_logprobs)
        return choice

    def opening(self, index: int, number: int) -> list[Json]:
        delta = {"role": "assistant", "content": self._request.echoed}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def chunk(self, index: int, delta: Delta) -> Json:
        return {
            "index": index,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, source: CompletionOutput | Delta) -> Json | None:
        if source.logprobs is None:
            return None
        by_id = self._request.return_tokens_as_token_ids
        return chat_logprobs(source.logprobs, self._request.top_logprobs or 0, by_id=by_id)
