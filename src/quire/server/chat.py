"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi.responses import Response

from quire.engine import CompletionOutput, Delta, RequestOutput
from quire.errors import RequestError
from quire.server.errors import in_callers_words
from quire.server.guards.clients import Caller
from quire.server.guards.limits import check_answer
from quire.server.logprobs import chat_logprobs, prompt_logprobs
from quire.server.openai_types import ChatRequest
from quire.server.reply import answer
from quire.server.service import Service
from quire.server.streaming import Json

_TEMPLATE_OWN = {"messages", "add_generation_prompt"}


async def create_chat_completion(
    service: Service, caller: Caller, request: ChatRequest
) -> Response:
    """Answer a conversation, put into one prompt by the model's chat template."""
    service.check_model(request.model)
    params = request.sampling_params(service.input_processor.sampling_defaults)
    with in_callers_words(request.field_names):
        check_answer(1, params, service.input_processor)
    variables = request.chat_template_kwargs or {}
    if _TEMPLATE_OWN & variables.keys():
        raise RequestError(
            f"chat_template_kwargs may not hold {', '.join(sorted(_TEMPLATE_OWN))}",
            "chat_template_kwargs",
        )
    messages = [message.for_template() for message in request.messages]
    with service.reserve():
        prompt = await service.engine.chat_prompt(messages, variables)
    asked = [request.with_options(prompt, caller)]
    return await answer(
        service,
        request,
        request.model,
        params,
        ChatWording(request),
        lambda request_id: service.run(request_id, asked, params, request.field_names),
    )


class ChatWording:
    """Choices that are a message of the assistant each."""

    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, request: ChatRequest) -> None:
        self._request = request

    def choice(
        self, index: int, number: int, output: CompletionOutput, request: RequestOutput
    ) -> Json:
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": self._logprobs(output),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(request.prompt_logprobs)
        return choice

    def opening(self, index: int, number: int) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
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
        return chat_logprobs(source.logprobs, self._request.top_logprobs or 0)
