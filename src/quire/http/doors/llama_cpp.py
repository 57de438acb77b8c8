"""llama.cpp's own API: POST /completion, and what the server says of itself."""

from __future__ import annotations

import uuid
from dataclasses import fields
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from quire.core.protocol import SamplingParams
from quire.engine.outputs import CompletionOutput, Delta, RequestOutput
from quire.http.answers.logprobs import chat_logprobs
from quire.http.answers.rendering import json_response
from quire.http.answers.streaming import DATA, EventStream, Json
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import asked, in_their_words, outputs, pieces
from quire.http.doors.answers import LlamaCppAnswer, Props, Slot
from quire.http.doors.llama_cpp_types import LlamaCppRequest
from quire.http.error_shapes import in_llama_cpp_s_shape
from quire.http.guards.limits import check_answer
from quire.http.service import Service

_NAMES = {
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "logprobs": "n_probs",
    "n": "prompt",
}
_TOLD = {  # of the parameters, as their clients know them
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    **{
        name: name
        for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos",
                     "presence_penalty", "frequency_penalty")
    },
}  # fmt: skip


def add_llama_cpp(app: FastAPI, service: Service) -> None:
    _add_state(app, service)
    one_or_several: Any = LlamaCppAnswer | list[LlamaCppAnswer]
    answers = gives(one_or_several, LlamaCppAnswer, framing=DATA)

    @app.post("/completion", openapi_extra=takes(LlamaCppRequest), responses=answers)
    @app.post("/completions", openapi_extra=takes(LlamaCppRequest), responses=answers)
    async def completion(http: Request) -> Response:
        """llama.cpp's: complete a prompt; several have a list of answers."""
        request = await service.bodies.parse(http, LlamaCppRequest)
        model = service.check_model(request.model)
        names = {**_NAMES, "structured_outputs": request.structure_field}
        with in_their_words(names):
            params = _params(service, request)
        caller = service.caller(http)
        prompts = [asked(model, caller, prompt) for prompt in request.prompts]
        name, whole = f"completion-{uuid.uuid4().hex}", not request.stream
        run = service.run(name, prompts, params, {}, whole=whole)
        wording = LlamaCppWording(service, request, params)
        if request.stream:
            events, shape = pieces(run, wording.events, names), in_llama_cpp_s_shape
            return EventStream(events, DATA, shape, request.silence(service.silence))
        finished = await outputs(run, names)
        return await json_response(
            lambda: wording.whole(finished), large=len(finished) > 1 or request.n_probs > 0
        )


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/props", responses=gives(Props))
    async def props() -> Json:
        """llama.cpp's: what the server is, and its parameters where none are given."""
        return {
            "default_generation_settings": {
                "n_ctx": service.input_processor.max_model_len,
                "params": {
                    **settings(_default_params(service)),
                    "speculative.n_max": service.facts.num_speculative_tokens,
                },
            },
            "total_slots": _num_slots(service),
            "model_alias": service.model_names[0],
            "model_path": service.model_names[0],
            "chat_template": service.input_processor.tokenizer.chat_template,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"quire-{app.version}",
            "is_sleeping": False,
        }

    @app.get("/slots", response_model=list[Slot])
    async def slots() -> list[Json]:
        """llama.cpp's: places for requests, and how many of them are taken."""
        running = len(service.engine.engine.scheduler.running)
        length = service.input_processor.max_model_len
        return [
            {
                "id": slot,
                "n_ctx": length,
                "speculative": service.facts.num_speculative_tokens > 0,
                "is_processing": slot < running,
            }
            for slot in range(_num_slots(service))
        ]


def _num_slots(service: Service) -> int:
    """What they call slots: places to run at once, here without anything of their own."""
    return service.engine.engine.scheduler.batch.max_num_seqs


def _default_params(service: Service) -> SamplingParams:
    defaults = service.input_processor.sampling_defaults
    return SamplingParams.over(defaults, {"max_tokens": None})


def _params(service: Service, request: LlamaCppRequest) -> SamplingParams:
    params = request.sampling_params(
        service.input_processor.sampling_defaults,
        request.n_predict,
        ignore_eos=request.ignore_eos,
        logit_bias=request.biases,
        logprobs=request.n_probs or None,
        structured_outputs=request.structure,
    )
    most = service.config.max_logprobs
    check_answer(len(request.prompts), params, service.input_processor, most)
    return params


def settings(params: SamplingParams) -> Json:
    """Parameters by llama.cpp's names, where -1 stands for none."""
    given = {field.name: getattr(params, field.name) for field in fields(params)}
    told = {theirs: given[name] for name, theirs in _TOLD.items()}
    return {**told, **{name: -1 for name in ("n_predict", "seed") if told[name] is None}}


class LlamaCppWording:
    """A piece of text in each event, and what it all took in the last; or all of it at once."""

    def __init__(self, service: Service, request: LlamaCppRequest, params: SamplingParams) -> None:
        self._model = request.model or service.model_names[0]
        self._tells_cached = service.config.enable_prompt_tokens_details
        self._request = request
        self._params = params

    def events(self, number: int, delta: Delta) -> list[Json]:
        piece = {
            "index": number,
            "content": delta.text,
            "tokens": list(delta.token_ids),
            "stop": False,
            "id_slot": -1,
            **self._probabilities(delta),
        }
        if delta.final is None:
            return [piece]
        return [piece, {**self._ending(number, delta.final), "content": "", "tokens": []}]

    def whole(self, finished: list[RequestOutput]) -> Json | list[Json]:
        answers = []
        for number, request in enumerate(finished):
            (output,) = request.outputs
            tokens = output.token_ids if self._request.return_tokens else []
            text = {"content": output.text, "tokens": tokens, **self._probabilities(output)}
            answers.append({**self._ending(number, request), **text})
        return answers if self._request.several else answers[0]

    def _ending(self, number: int, request: RequestOutput) -> Json:
        (output,) = request.outputs
        story, word = request.metrics, output.stop_reason
        stop_type = "word" if isinstance(word, str) else "eos"
        return {
            "index": number,
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": story.num_output_tokens,
            "tokens_evaluated": story.num_prompt_tokens,
            "tokens_cached": story.cached_tokens if self._tells_cached else 0,
            "generation_settings": settings(self._params),
            "prompt": request.prompt,
            "truncated": False,
            "stop_type": "limit" if output.finish_reason == "length" else stop_type,
            "stopping_word": word if isinstance(word, str) else "",
            "timings": _timings(request),
        }

    def _probabilities(self, source: CompletionOutput | Delta) -> Json:
        if source.logprobs is None:
            return {}
        entries = chat_logprobs(
            source.logprobs, self._request.n_probs, with_ids=True, with_marks=False
        )
        return {"completion_probabilities": list(entries["content"])}


def _timings(request: RequestOutput) -> Json:
    story = request.metrics
    first = story.e2e_latency if story.ttft is None else story.ttft
    drafts = {"draft_n": story.num_draft_tokens, "draft_n_accepted": story.num_accepted_tokens}
    return {
        **_rates("prompt", story.num_prompt_tokens, first),
        **_rates("predicted", story.num_output_tokens, story.e2e_latency - first),
        **(drafts if story.num_draft_tokens else {}),
    }


def _rates(name: str, count: int, seconds: float) -> Json:
    return {
        f"{name}_n": count,
        f"{name}_ms": 1000 * seconds,
        f"{name}_per_token_ms": 1000 * seconds / count if count else None,
        f"{name}_per_second": count / seconds if seconds else None,
    }
