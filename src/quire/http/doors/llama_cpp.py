"""llama.cpp's own API: POST /completion, and what the server says of itself.

Its sampling options are Ollama's too (``LlamaOptions``).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, UnsetType, field
from pydantic import Field, ValidationInfo, model_validator

from quire.core.errors import RequestError, shown
from quire.engine.input_processor import as_dict
from quire.engine.outputs import CompletionOutput, Delta, RequestOutput
from quire.http.answers.logprobs import TokenLogprob, TopLogprob, chat_logprobs
from quire.http.answers.rendering import Answer, Json, json_response, respond
from quire.http.answers.streaming import DATA, EventStream
from quire.http.body_fields import (
    Listed,
    Strict,
    Texts,
    at_most,
    between,
    biases,
    expecting,
    given_of,
    in_callers_words,
    texts_of,
)
from quire.http.doors.turn_stream import outputs, pieces
from quire.http.openai.answers import Timings, progress_of, timings_of
from quire.http.openai.requests import JsonObject, TextPart
from quire.http.openapi import body_route, gives
from quire.http.service import Service
from quire.text.encoder import PromptForm
from quire.text.params import SamplingParams, StructuredOutputs

_MOST_FILES, _MOST_PARTS = 1024, 1024
_MOST_BIASED_TEXTS = 256  # of one request
_ANY_SEED = (-1, 2**32 - 1)
_AS_OURS = (
    "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
)  # fmt: skip


class LlamaOptions(Strict):
    """Options as llama.cpp names them; many clients send all of them, at their defaults."""

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "mirostat": (0,),
        "tfs_z": (1,),
        "typical_p": (1,),
    }
    idle: ClassVar[frozenset[str]] = frozenset({"mirostat_tau", "mirostat_eta"})

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Annotated[str | Texts, expecting("a string or a list of strings")] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Annotated[int, between(-1, 2**31 - 1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    @model_validator(mode="after")
    def _check_penalties(self, info: ValidationInfo) -> LlamaOptions:
        """Ours are of the whole text, theirs of its last ``repeat_last_n`` tokens.

        -1 is all; 0 is none, so that nothing is penalised.
        """
        repeats = self.repeat_penalty not in (None, 1.0)
        if self.repeat_last_n == 0:
            self.repeat_penalty, self.presence_penalty, self.frequency_penalty = 1.0, 0.0, 0.0
        if self.repeat_last_n in (None, -1, 0):
            return self
        if repeats or self.presence_penalty or self.frequency_penalty:
            why = "penalties are of the whole text"
            if info.context is not None and info.context.leave_out("repeat_last_n", why):
                return self
            raise RequestError(
                "repeat_last_n must be -1 beside a penalty: penalties are of the whole text, got "
                f"{self.repeat_last_n}",
                "repeat_last_n",
            )
        return self

    def sampling_params(
        self, defaults: Mapping[str, Any], max_tokens: int | None, **others: Any
    ) -> SamplingParams:
        """``max_tokens``: -1, -2 and None mean as many as there is room for."""
        params = {
            **given_of(self, *_AS_OURS),
            "repetition_penalty": self.repeat_penalty,
            "seed": None if self.seed in _ANY_SEED else self.seed,
            "stop": self.stop or None,
        }
        given = {name: value for name, value in params.items() if value is not None}
        most = None if max_tokens in (-1, -2) else max_tokens
        return SamplingParams.over(defaults, {**given, "max_tokens": most, **others})


class TextObject(Strict):
    """A prompt's text as an object, which has pictures beside it elsewhere."""

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {"multimodal_data": ([],)}

    prompt_string: str | None = None
    content: Annotated[Listed[TextPart], at_most(_MOST_PARTS, "parts")] | None = None

    @model_validator(mode="after")
    def _check(self) -> TextObject:
        if (self.prompt_string is None) == (self.content is None):
            raise RequestError("one of prompt_string and content must be given", "prompt_string")
        return self

    @property
    def text(self) -> str:
        return self.prompt_string or "".join(part.text for part in self.content or ())


_Mixed = Listed[int | str]  # one prompt of texts and tokens
AnyPrompts = Annotated[
    str | TextObject | Listed[int | str | TextObject | _Mixed],
    expecting("a string, a list of token ids and strings, or a list of such prompts"),
]


def are_several(given: Any) -> bool:
    """Whether they are a list of prompts, and not one that is itself a list."""
    return isinstance(given, list) and not any(isinstance(one, int) for one in given)


def prompts_of(field: str, given: Any) -> list[Any]:
    """The prompts; each is a text, or a list of tokens and texts that are one prompt."""
    if are_several(given):
        return texts_of(field, [one.text if isinstance(one, TextObject) else one for one in given])
    one = given.text if isinstance(given, TextObject) else given
    if isinstance(one, list) and not all(isinstance(part, (int, str)) for part in one):
        raise RequestError(f"{field} must be one prompt, or a list of prompts", field)
    return [one] if one else texts_of(field, [])


class LlamaCppRequest(LlamaOptions):
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **LlamaOptions.neutral,
        "dry_multiplier": (0,),
        "dynatemp_range": (0,),
        "lora": ([],),
        "min_keep": (0,),
        "n_cmpl": (1,),
        "n_indent": (0,),
        "response_fields": ([],),
        "t_max_predict_ms": (0,),
        "top_n_sigma": (-1,),
        "xtc_probability": (0,),
    }
    idle = LlamaOptions.idle | {
        "cache_prompt", "dry_allowed_length", "dry_base", "dry_penalty_last_n",
        "dry_sequence_breakers", "dynatemp_exponent", "id_slot", "n_cache_reuse", "n_discard",
        "n_keep", "speculative.n_max", "speculative.n_min", "speculative.p_min", "xtc_threshold",
    }  # fmt: skip

    model: str | None = None
    prompt: AnyPrompts
    n_predict: int | None = None
    stream: bool = False
    ignore_eos: bool = False
    logit_bias: (
        Annotated[dict[str, Any] | list[Any], expecting("pairs of token id or text and bias")]
        | None
    ) = None
    json_schema: JsonObject | None = None
    grammar: str | None = None
    n_probs: int = 0
    post_sampling_probs: bool = False
    return_progress: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    sse_ping_interval: Annotated[int, between(-1, 86_400)] | None = None

    @model_validator(mode="after")
    def _check(self) -> LlamaCppRequest:
        texts_of("prompt", self.prompts)
        return self

    def silence(self, usual: float) -> float:
        """Seconds without a token after which a stream gives a sign of life; -1 is never."""
        interval = self.sse_ping_interval
        return usual if interval is None else max(interval, 0)

    @property
    def structure_field(self) -> str:
        return "json_schema" if self.json_schema is not None else "grammar"

    @property
    def structure(self) -> StructuredOutputs | None:
        if self.json_schema is not None and self.grammar:
            raise RequestError("grammar and json_schema cannot be given together", "grammar")
        if self.json_schema is not None:
            return StructuredOutputs(json=self.json_schema)
        return StructuredOutputs(grammar=self.grammar) if self.grammar else None

    @property
    def several(self) -> bool:
        """Whether the prompt is a list of them, whose answer is a list too."""
        return are_several(self.prompt)

    @property
    def prompts(self) -> list[Any]:
        return prompts_of("prompt", self.prompt)

    @property
    def biases(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """``logit_bias``, which is an object as OpenAI's, or pairs; a bias of false forbids.

        The first is by the ids of tokens, and the second by texts, all tokens of which it is of.
        """
        pairs: Any = self.logit_bias or ()
        by_key = isinstance(pairs, dict)
        tokens, texts = dict[str, Any](), dict[str, Any]()
        for pair in pairs.items() if by_key else pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                message = (
                    f"logit_bias must hold pairs of token id or text and bias, got {shown(pair)}"
                )
                raise RequestError(message, "logit_bias")
            token, bias = pair
            is_text = isinstance(token, str) and not (by_key and token.isdecimal())
            (texts if is_text else tokens)[str(token)] = -100.0 if bias is False else bias
        if len(texts) > _MOST_BIASED_TEXTS:
            message = f"logit_bias may hold at most {_MOST_BIASED_TEXTS} texts"
            raise RequestError(message, "logit_bias")
        return tokens, texts


class ExtraFile(Strict):
    """Another file of the project that is written on."""

    filename: str = ""
    text: str


_Files = Annotated[Listed[ExtraFile], at_most(_MOST_FILES, "files")]


class InfillRequest(LlamaCppRequest):
    """prompt: what stands at the end of the prefix."""

    prompt: str = ""
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: _Files = Field(default_factory=list)

    @property
    def before(self) -> str:
        """All text before the gap, other files first."""
        files = (f"{one.filename}\n{one.text}\n" for one in self.input_extra)
        return "".join([*files, self.input_prefix, self.prompt])

    @property
    def several(self) -> bool:
        return False

    @property
    def prompts(self) -> list[Any]:
        return [self.before]


_NAMES = {
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "logprobs": "n_probs",
    "n": "prompt",
}
_SETTINGS = {  # of the parameters, as their clients know them
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    **{
        name: name
        for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos",
                     "presence_penalty", "frequency_penalty")
    },
}  # fmt: skip


class TopScore(Answer, kw_only=True):
    """prob: in place of a log-probability, where a request asks for what was drawn from."""

    id: int | UnsetType
    token: str
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET
    bytes: list[int]


class TokenScore(TopScore, kw_only=True):
    top_logprobs: list[TopScore] | UnsetType = UNSET
    top_probs: list[TopScore] | UnsetType = UNSET


def _token_score(told: TokenLogprob, *, drawn: bool) -> TokenScore:
    top = [TopScore(**_score(one, drawn=drawn)) for one in told.top_logprobs]
    if drawn:
        return TokenScore(**_score(told, drawn=True), top_probs=[one for one in top if one.prob])
    return TokenScore(**_score(told, drawn=False), top_logprobs=top)


def _score(told: TopLogprob, *, drawn: bool) -> Json:
    score = {"prob": math.exp(told.logprob)} if drawn else {"logprob": told.logprob}
    return {"id": told.id, "token": told.token, "bytes": told.bytes, **score}


class LlamaCppPiece(Answer):
    """An event of a stream, but for the last one."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    id_slot: int = -1
    completion_probabilities: list[TokenScore] | UnsetType = UNSET
    timings: dict[str, float] | UnsetType = UNSET
    prompt_progress: dict[str, float] | UnsetType = UNSET


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
    truncated: bool
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    has_new_line: bool
    timings: dict[str, float]
    warnings: list[str] | UnsetType = UNSET
    content: str = ""
    tokens: list[int] = field(default_factory=list)
    completion_probabilities: list[TokenScore] | UnsetType = UNSET


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

    @body_route(app, service, LlamaCppRequest, answers, "/completion", "/completions")
    async def completion(http: Request, request: LlamaCppRequest) -> Response:
        """llama.cpp's: complete a prompt; several have a list of answers."""
        names = {**_NAMES, "structured_outputs": request.structure_field}
        with in_callers_words(names, in_text=True):
            with service.reserve(len(request.prompts), request.prompts):
                prompts = [await joined(service, prompt) for prompt in request.prompts]
            return await _answer(service, http, request, prompts, names)

    @body_route(app, service, InfillRequest, answers, "/infill")
    async def infill(http: Request, request: InfillRequest) -> Response:
        """llama.cpp's: write what stands between two texts, with a model that is made for it."""
        names = {**_NAMES, "structured_outputs": request.structure_field, "suffix": "input_suffix"}
        form = PromptForm(suffix=request.input_suffix)
        with in_callers_words(names, in_text=True):
            with service.reserve(1, [request.before, request.input_suffix]):
                prompt = await service.engine.text_prompt(request.before, form)
            return await _answer(service, http, request, [prompt], names)


async def _answer(
    service: Service,
    http: Request,
    request: LlamaCppRequest,
    prompts: Sequence[str | Sequence[int]],
    names: Mapping[str, str],
) -> Response:
    model = service.model_of(request.model, request.warnings)
    params, own = await _params(service, request), service.caller(http).options(model)
    own["origin"] = own["origin"]._replace(progress=request.stream and request.return_progress)
    timings, tells_cached = list[Timings](), service.config.enable_prompt_tokens_details
    if request.stream and request.timings_per_token:
        with service.reserve(len(prompts), prompts):
            for prompt in prompts:
                token_ids = await service.engine.text_prompt(prompt, PromptForm())
                timings.append(Timings(len(token_ids), tell_cached=tells_cached))
    given = [{**as_dict(prompt), **own} for prompt in prompts]
    name, whole = f"completion-{uuid.uuid4().hex}", not request.stream
    run = service.run(name, given, params, {}, whole=whole)
    wording = LlamaCppWording(service, request, params, model.name, timings)
    if request.stream:
        events = pieces(run, wording.events, names)
        return EventStream(events, DATA, request.silence(service.silence))
    finished = await outputs(run, {})
    return await json_response(
        lambda: wording.whole(finished), large=len(finished) > 1 or request.n_probs > 0
    )


async def joined(service: Service, given: str | Sequence[int | str]) -> str | list[int]:
    """A text, or token ids: those of texts among them are put where the texts are."""
    if isinstance(given, str):
        return given
    token_ids: list[int] = []
    for number, one in enumerate(given):
        if isinstance(one, str):
            token_ids += await service.engine.tokenize(one, add_special_tokens=number == 0)
        else:
            token_ids.append(one)
    return token_ids


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


async def _params(service: Service, request: LlamaCppRequest) -> SamplingParams:
    given, texts = request.biases
    if texts:
        with service.reserve(len(texts), texts):
            for text, bias in texts.items():
                tokens = await service.engine.tokenize(text, add_special_tokens=False)
                given.update((str(token), bias) for token in tokens)
    params = request.sampling_params(
        service.input_processor.sampling_defaults,
        request.n_predict,
        ignore_eos=request.ignore_eos,
        logit_bias=biases(given) or None,
        logprobs=request.n_probs or None,
        logprobs_of_draw=request.post_sampling_probs,
        structured_outputs=request.structure,
    )
    service.check_answer(params, len(request.prompts))
    return params


def settings(params: SamplingParams) -> Json:
    """Parameters by llama.cpp's names, where -1 stands for none."""
    named = {theirs: getattr(params, name) for name, theirs in _SETTINGS.items()}
    biased = [{"token": token, "bias": bias} for token, bias in (params.logit_bias or {}).items()]
    unset = {name: -1 for name in ("n_predict", "seed") if named[name] is None}
    return {**named, **unset, "logit_bias": biased}


class LlamaCppWording:
    """A piece of text in each event, and what it all took in the last; or all of it at once."""

    def __init__(
        self,
        service: Service,
        request: LlamaCppRequest,
        params: SamplingParams,
        model: str,
        timings: Sequence[Timings] = (),
    ) -> None:
        """timings: of each prompt, where each event tells them."""
        self._model = model
        self._tells_cached = service.config.enable_prompt_tokens_details
        self._request = request
        self._params = params
        self._timings = timings

    def events(self, number: int, delta: Delta) -> list[Answer]:
        told = [
            LlamaCppPiece(number, "", [], prompt_progress=progress_of(one))
            for one in (delta.progress if self._tells_cached else ())
        ]
        if not delta.token_ids and delta.finish_reason is None:
            return [*told]
        tokens, scores = list(delta.token_ids), self._probabilities(delta)
        piece = LlamaCppPiece(number, delta.text, tokens, completion_probabilities=scores)
        if self._timings:
            piece.timings = self._timings[number].after(delta)
        ending = [] if delta.final is None else [self._ending(number, delta.final)]
        return [*told, piece, *ending]

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
        most, cut = self._params.max_tokens, output.finish_reason == "length"
        return LlamaCppAnswer(
            index=number,
            model=self._model,
            tokens_predicted=story.num_output_tokens,
            tokens_evaluated=story.num_prompt_tokens,
            tokens_cached=story.cached_tokens if self._tells_cached else 0,
            generation_settings=settings(self._params),
            prompt=request.prompt,
            truncated=cut and (most is None or story.num_output_tokens < most),
            stop_type="limit" if cut else stop_type,
            stopping_word=word if isinstance(word, str) else "",
            has_new_line="\n" in output.text,
            timings=timings_of(request, tell_cached=self._tells_cached),
            warnings=self._request.warnings or UNSET,
        )

    def _probabilities(self, source: CompletionOutput | Delta) -> list[TokenScore] | UnsetType:
        if source.logprobs is None:
            return UNSET
        count = self._request.n_probs
        told = chat_logprobs(source.logprobs, count, with_ids=True, with_marks=False).content
        drawn = self._request.post_sampling_probs
        return [_token_score(one, drawn=drawn) for one in told]
