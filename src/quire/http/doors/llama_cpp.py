"""llama.cpp's own API: POST /completion, and what the server says of itself."""

from __future__ import annotations

import uuid
from dataclasses import fields
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, UnsetType, field

from quire.core.protocol import SamplingParams
from quire.engine.outputs import CompletionOutput, Delta, RequestOutput
from quire.engine.prompts import as_dict
from quire.http.answers.logprobs import TokenLogprob, chat_logprobs
from quire.http.answers.rendering import Answer, Json, json_response, respond
from quire.http.answers.streaming import DATA, EventStream
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import in_their_words, outputs, pieces
from quire.http.doors.llama_cpp_types import LlamaCppRequest
from quire.http.error_shapes import LlamaCppErrorAnswer
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


class LlamaCppPiece(Answer):
    """An event of a stream, but for the last one."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    id_slot: int = -1
    completion_probabilities: list[TokenLogprob] | UnsetType = UNSET


class LlamaCppAnswer(Answer, kw_only=True):
    """An answer, or the last event of a stream."""

    index: int
    id_slot: int = -1
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    generation_settings: dict[str, Any]
    prompt: str | None
    truncated: bool = False
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    timings: dict[str, float | None]
    content: str = ""
    tokens: list[int] = field(default_factory=list)
    completion_probabilities: list[TokenLogprob] | UnsetType = UNSET


class Props(Answer):
    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    build_info: str
    is_sleeping: bool


class Slot(Answer):
    id: int
    n_ctx: int | None
    speculative: bool
    is_processing: bool


def add_llama_cpp(app: FastAPI, service: Service) -> None:
    _add_state(app, service)
    kinds = LlamaCppAnswer, list[LlamaCppAnswer]
    answers = gives(kinds, (LlamaCppPiece, LlamaCppAnswer), framing=DATA)

    @app.post("/completion", openapi_extra=takes(LlamaCppRequest), responses=answers)
    @app.post("/completions", openapi_extra=takes(LlamaCppRequest), responses=answers)
    async def completion(http: Request) -> Response:
        """llama.cpp's: complete a prompt; several have a list of answers."""
        request = await service.bodies.parse(http, LlamaCppRequest)
        model = service.check_model(request.model)
        names = {**_NAMES, "structured_outputs": request.structure_field}
        with in_their_words(names):
            params = _params(service, request)
        own = service.caller(http).options(model.options)
        prompts = [{**as_dict(prompt), **own} for prompt in request.prompts]
        name, whole = f"completion-{uuid.uuid4().hex}", not request.stream
        run = service.run(name, prompts, params, {}, whole=whole)
        wording = LlamaCppWording(service, request, params)
        if request.stream:
            events, shape = pieces(run, wording.events, names), LlamaCppErrorAnswer.of
            return EventStream(events, DATA, shape, request.silence(service.silence))
        finished = await outputs(run, names)
        return await json_response(
            lambda: wording.whole(finished), large=len(finished) > 1 or request.n_probs > 0
        )


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/props", responses=gives(Props))
    async def props() -> Response:
        """llama.cpp's: what the server is, and its parameters where none are given."""
        most_drafts, length = service.facts.num_speculative_tokens, _length(service)
        params = {**settings(_default_params(service)), "speculative.n_max": most_drafts}
        return respond(
            Props(
                {"n_ctx": length, "params": params},
                _num_slots(service),
                model_alias=service.model_names[0],
                model_path=service.model_names[0],
                chat_template=service.input_processor.tokenizer.chat_template,
                modalities={"vision": False, "audio": False},
                build_info=f"quire-{app.version}",
                is_sleeping=False,
            )
        )

    @app.get("/slots", responses=gives(list[Slot]))
    async def slots() -> Response:
        """llama.cpp's: places for requests, and how many of them are taken."""
        running, length = len(service.engine.engine.scheduler.running), _length(service)
        drafts = service.facts.num_speculative_tokens > 0
        return respond([Slot(n, length, drafts, n < running) for n in range(_num_slots(service))])


def _length(service: Service) -> int | None:
    return service.input_processor.max_model_len


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

    def events(self, number: int, delta: Delta) -> list[Answer]:
        tokens, scores = list(delta.token_ids), self._probabilities(delta)
        piece = LlamaCppPiece(number, delta.text, tokens, completion_probabilities=scores)
        return [piece] if delta.final is None else [piece, self._ending(number, delta.final)]

    def whole(self, finished: list[RequestOutput]) -> LlamaCppAnswer | list[LlamaCppAnswer]:
        answers = []
        for number, request in enumerate(finished):
            answer = self._ending(number, request)
            (output,) = request.outputs
            answer.content = output.text
            answer.tokens = output.token_ids if self._request.return_tokens else []
            answer.completion_probabilities = self._probabilities(output)
            answers.append(answer)
        return answers if self._request.several else answers[0]

    def _ending(self, number: int, request: RequestOutput) -> LlamaCppAnswer:
        (output,) = request.outputs
        story, word = request.metrics, output.stop_reason
        stop_type: Any = "word" if isinstance(word, str) else "eos"
        return LlamaCppAnswer(
            index=number,
            model=self._model,
            tokens_predicted=story.num_output_tokens,
            tokens_evaluated=story.num_prompt_tokens,
            tokens_cached=story.cached_tokens if self._tells_cached else 0,
            generation_settings=settings(self._params),
            prompt=request.prompt,
            stop_type="limit" if output.finish_reason == "length" else stop_type,
            stopping_word=word if isinstance(word, str) else "",
            timings=_timings(request),
        )

    def _probabilities(self, source: CompletionOutput | Delta) -> list[TokenLogprob] | UnsetType:
        if source.logprobs is None:
            return UNSET
        count = self._request.n_probs
        return [*chat_logprobs(source.logprobs, count, with_ids=True, with_marks=False).content]


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
