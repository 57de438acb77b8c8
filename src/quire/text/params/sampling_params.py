"""SamplingParams: how a request's tokens are chosen, in vLLM's names."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from functools import cached_property
from typing import Any

from quire.core.errors import RequestError, shown
from quire.core.protocol import Request
from quire.text.params.parameters import (
    MAX_INTEGER,
    Allowed,
    any_text,
    biases,
    boolean,
    check_integer,
    choice,
    integer,
    number,
    parameter,
    strings,
    token_ids,
)
from quire.text.params.structured_outputs import Reasoning, StructuredOutputs

# What is bounded for all outputs together: it is one step that they share with others.
MAX_LOGPROBS_AT_ONCE = 2_560  # OpenAI's own maximum, 20 of 128
MAX_EDITED_LOGITS = 262_144
MAX_BEAM_CANDIDATES = 262_144
_WIDTH, _LOGPROBS, _PENALTY = integer(1, 256), integer(0, 100), number(-2.0, 2.0)


def _structure() -> Allowed:
    def check(_: str, value: Any) -> StructuredOutputs:
        return StructuredOutputs.of(value)

    return Allowed(check, "one of json, json_object, regex, choice, grammar, structural_tag", {})


def _marks() -> Allowed:
    def check(name: str, value: Any) -> Reasoning:
        if not isinstance(value, Reasoning) or not (value.start and value.end):
            raise RequestError(f"{name} must be a Reasoning with both marks", name)
        return value

    return Allowed(check, "", {})


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when to stop. Checked on construction."""

    n: int = parameter(1, "outputs for each prompt; they share its blocks", _WIDTH)
    best_of: int | None = parameter(
        None, "run this many, return the n with the highest log-probability", _WIDTH, flag=False
    )
    use_beam_search: bool = parameter(
        False, "search for the likeliest outputs in place of sampling", boolean(), flag=False
    )
    beam_width: int | None = parameter(
        None, "beams of the search; left out, best_of or n", _WIDTH, flag=False
    )
    num_return_sequences: int | None = parameter(
        None, "outputs of the search; left out, n", _WIDTH, flag=False
    )
    length_penalty: float = parameter(
        1.0, "beams score log-probability / length to this power", number(-10.0, 10.0), flag=False
    )
    early_stopping: bool | str = parameter(
        False,
        "end the search when there are as many hypotheses as beams (true), when it looks as if no "
        'better one will come (false), or when none can ("never")',
        choice(True, False, "never"),
        flag=False,
    )
    temperature: float = parameter(1.0, "0 is greedy, larger is more random", number(0.0))
    top_p: float = parameter(
        1.0, "keep the likeliest tokens up to this total share", number(0.0, 1.0, above=True)
    )
    top_k: int = parameter(0, "keep this many likeliest tokens; 0 or -1: all", integer(-1))
    min_p: float = parameter(
        0.0, "drop tokens less likely than this share of the likeliest", number(0.0, 1.0)
    )
    seed: int | None = parameter(
        None,
        "makes the request repeatable, whatever it is batched with",
        integer(-(2**63), 2**64 - 1),
        flag=False,  # it is the engine's
    )
    max_tokens: int | None = parameter(
        16,
        "most tokens to generate; without a limit, as many as the model's length allows (with a "
        "window, which lets a text go on for ever, as many as the model's length has); 0 for "
        "prompt_logprobs alone",
        integer(0),
    )
    min_tokens: int = parameter(0, "no end and no stop before this many tokens", integer(0))
    stop: str | Sequence[str] = parameter(
        (), "text that ends the output, and is cut off", strings(64, 256, alone=True)
    )
    stop_token_ids: Sequence[int] = parameter(
        (), "tokens that end the output, beside the model's own", token_ids(128), flag=False
    )
    include_stop_str_in_output: bool = parameter(
        False, "keep the stop string in the text", boolean()
    )
    ignore_eos: bool = parameter(False, "generate on past the end of sequence", boolean())
    presence_penalty: float = parameter(
        0.0, "subtracted from the logits of tokens that have been generated", _PENALTY
    )
    frequency_penalty: float = parameter(0.0, "the same, for each time that they were", _PENALTY)
    repetition_penalty: float = parameter(
        1.0,
        "divides the positive and multiplies the negative logits of tokens of prompt and output; "
        "1 is none (Keskar et al., 2019)",
        number(0.0, above=True),
    )
    logit_bias: Mapping[int, float] | None = parameter(
        None, "added to the logits of these token ids", biases(1_024, 100.0), flag=False
    )
    allowed_token_ids: Sequence[int] | None = parameter(
        None, "sample from these tokens only", token_ids(MAX_EDITED_LOGITS, least=1), flag=False
    )
    bad_words: Sequence[str] = parameter(
        (), "words whose last token is forbidden where it would complete them", strings(128, 256)
    )
    logprobs: int | None = parameter(
        None,
        "tell each token's log-probability, and of this many likeliest",
        _LOGPROBS,
        flag=False,
    )
    logprobs_of_draw: bool = parameter(
        False,
        "these are of what is drawn from, after all edits and filters, not of the model's logits",
        boolean(),
        flag=False,
        http=False,
    )
    prompt_logprobs: int | None = parameter(
        None, "the same of the prompt's tokens", _LOGPROBS, flag=False
    )
    structured_outputs: StructuredOutputs | None = parameter(
        None, "what the text must be like; it begins after the reasoning", _structure()
    )
    prediction: str | None = parameter(
        None,
        "what the text is expected to be, mostly: where the engine speculates, a source of drafts",
        any_text(),
        flag=False,
    )
    thinking_token_budget: int | None = parameter(
        None,
        "most tokens of reasoning; its closing mark is written after them",
        integer(0),
        flag=False,
    )
    reasoning: Reasoning | None = parameter(
        None, "how the model marks its reasoning", _marks(), flag=False, http=False
    )
    detokenize: bool = parameter(
        True, "turn token ids into text", boolean(), flag=False, http=False
    )
    skip_special_tokens: bool = parameter(True, "leave special tokens out of the text", boolean())
    kept_special_tokens: Sequence[int] = parameter(
        (),
        "special tokens that stay in it all the same",
        token_ids(64),
        flag=False,
        http=False,
    )

    # Of vLLM's, in the order of NEUTRAL.
    logits_processors: InitVar[object] = None
    guided_decoding: InitVar[object] = None
    truncate_prompt_tokens: InitVar[object] = None
    extra_args: InitVar[object] = None
    spaces_between_special_tokens: InitVar[object] = None
    prompt_logprob_token_ids: InitVar[object] = None
    prompt_logprob_start: InitVar[object] = None
    logprob_token_ids: InitVar[object] = None
    flat_logprobs: InitVar[object] = None
    output_kind: InitVar[object] = None
    stream_interval: InitVar[object] = None
    skip_clone: InitVar[object] = None
    skip_reading_prefix_cache: InitVar[object] = None
    repetition_detection: InitVar[object] = None
    routed_experts_prompt_start: InitVar[object] = None
    trace_decode_token_ids: InitVar[object] = None

    def __post_init__(self, *neutral: object) -> None:
        _check_neutral(neutral)
        for name, optional, default, check in _CHECKS:
            given = getattr(self, name)  # mostly left out, and so nothing to check
            if given is None and default == ():
                object.__setattr__(self, name, ())
            elif given is not default and not (given is None and optional):
                object.__setattr__(self, name, check(name, given))
        _check_lengths(self)
        _check_search(self)

    @classmethod
    def over(cls, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
        """The ``given`` fields, over a model's own ``defaults`` for the others.

        The defaults are for sampling: a beam search does without them.
        """
        return cls(**given) if given.get("use_beam_search") else cls(**{**defaults, **given})

    def clone(self) -> SamplingParams:
        """Another one like it. Nothing can be set in either: ``replace`` of dataclasses does."""
        return replace(self)

    @cached_property
    def width(self) -> int:
        """Branches that run at once."""
        if self.use_beam_search:
            return self.beam_width or self.best_of or self.n
        return self.best_of or self.n

    @cached_property
    def num_outputs(self) -> int:
        """Outputs that are returned."""
        return self.num_return_sequences or self.n

    @cached_property
    def sample_logprobs(self) -> int | None:
        """Likeliest tokens to report beside each sample's own; None if not even that is needed."""
        if self.logprobs is None and self.width > self.num_outputs and not self.use_beam_search:
            return 0  # to tell which outputs are the best
        return self.logprobs

    @cached_property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @cached_property
    def guided(self) -> bool:
        """Whether not every token may follow every text."""
        return self.structured_outputs is not None or self.thinking_token_budget is not None

    @cached_property
    def needs_history(self) -> bool:
        """Whether choosing a token takes the tokens before it, not only the logits."""
        return self.guided or self._counts_tokens or bool(self.bad_words)

    @cached_property
    def edits_logits(self) -> bool:
        """Whether logits may be changed before a token is chosen."""
        return self.guided or self.edits_some_logits

    @cached_property
    def edits_some_logits(self) -> bool:
        """Whether logits of single tokens may be, whatever guides the text."""
        return bool(
            self._counts_tokens
            or self.bad_words
            or self.min_tokens
            or self.logit_bias
            or self.allowed_token_ids is not None
        )

    @property
    def _counts_tokens(self) -> bool:
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    @cached_property
    def biased_logits(self) -> tuple[array[int], array[float]]:
        """``logit_bias``, as each step takes it."""
        biases = self.logit_bias or {}
        return array("q", biases), array("f", biases.values())

    @cached_property
    def allowed_logits(self) -> tuple[array[int], array[float]]:
        """``allowed_token_ids``, with a number for each, as each step takes them."""
        allowed = array("q", self.allowed_token_ids or ())
        return allowed, array("f", bytes(4 * len(allowed)))

    @cached_property
    def asks_beside(self) -> bool:
        """Whether it asks for what takes a step time beside the model."""
        scored = self.sample_logprobs is not None or self.prompt_logprobs is not None
        filtered = self.temperature > 0 and self.top_p < 1  # which may keep nearly all there is
        return scored or filtered or self.edits_logits or bool(self.stop) or self.use_beam_search


def params_of(request: Request) -> SamplingParams:
    """All that the request asks of its outputs: a scheduler knows less of it."""
    params = request.params
    assert isinstance(params, SamplingParams), "an engine's requests have no others"
    return params


# -- what several fields must be together -------------------------------------------------------


def _check_lengths(params: SamplingParams) -> None:
    width, allowed = params.width, params.allowed_token_ids
    if params.max_tokens == 0 and (params.prompt_logprobs is None or width > 1):
        raise RequestError(
            f"max_tokens must be from 1 to {MAX_INTEGER}, or 0 with prompt_logprobs and n 1; got 0",
            "max_tokens",
        )
    if params.max_tokens is not None:
        check_integer("min_tokens", params.min_tokens, 0, params.max_tokens)
    if params.stop and not params.detokenize:
        raise RequestError("stop needs detokenize=True", "stop")
    if params.best_of is not None and params.best_of < params.n:
        raise RequestError(
            f"best_of must be at least n, {params.n}; got {params.best_of}", "best_of"
        )
    most = MAX_LOGPROBS_AT_ONCE // width
    if params.logprobs is not None and params.logprobs > most:
        raise RequestError(
            f"logprobs must be from 0 to {most} with {width} outputs at once, "
            f"got {params.logprobs}",
            "logprobs",
        )
    most = MAX_EDITED_LOGITS // width
    if allowed is not None and len(allowed) > most:
        raise RequestError(
            f"allowed_token_ids must hold at most {most} token ids, got {len(allowed)}",
            "allowed_token_ids",
        )


def _check_search(params: SamplingParams) -> None:
    wrong = _SAMPLING_ONLY if params.use_beam_search else _BEAMS_ONLY
    for name, neutral in wrong.items():
        if getattr(params, name) not in neutral:
            what = "cannot be combined with" if params.use_beam_search else "needs"
            raise RequestError(f"{name} {what} use_beam_search", name)
    if params.use_beam_search:
        _check_beams(params)


def _check_beams(params: SamplingParams) -> None:
    width, allowed = params.width, params.allowed_token_ids
    if params.num_outputs > width:
        name = "n" if params.num_return_sequences is None else "num_return_sequences"
        raise RequestError(f"{name} must be at most the beam width, {width}", name)
    if allowed is not None and len(set(allowed)) < width:
        raise RequestError(
            f"allowed_token_ids must name at least {width} tokens, one for each beam",
            "allowed_token_ids",
        )
    # Each beam looks at a candidate a beam, and at one more a beam for each token that ends.
    most = MAX_BEAM_CANDIDATES // width**2 - 2
    if len(params.stop_token_ids) > most:
        raise RequestError(
            f"stop_token_ids must hold at most {most} token ids with {width} beams, "
            f"got {len(params.stop_token_ids)}",
            "stop_token_ids",
        )


# Values under which a field changes nothing, and so does not contradict.
_BEAMS_ONLY: Mapping[str, tuple[object, ...]] = {
    "beam_width": (None,),
    "num_return_sequences": (None,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
}
_SAMPLING_ONLY: Mapping[str, tuple[object, ...]] = {
    "temperature": (0.0, 1.0),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "stop": ((),),
    "logprobs": (None,),
    "prediction": (None, ""),
}
_CHECKS = [
    (field.name, "None" in str(field.type), field.default, field.metadata["allowed"].check)
    for field in fields(SamplingParams)
]


# -- vLLM's parameters that ask for what is so anyway --------------------------------------------

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "logits_processors": (),
    "guided_decoding": (),
    "truncate_prompt_tokens": (),
    "extra_args": (),
    "spaces_between_special_tokens": (True,),
    "prompt_logprob_token_ids": (),
    "prompt_logprob_start": (0,),
    "logprob_token_ids": (),
    "flat_logprobs": (False,),
    "output_kind": (0, 2),  # whole outputs, and those at the end: both are what a call returns
    "stream_interval": (1,),
    "skip_clone": (True, False),
    "skip_reading_prefix_cache": (False,),
    "repetition_detection": (),
    "routed_experts_prompt_start": (0,),
    "trace_decode_token_ids": (),
}
"""Values beside None, and what is empty."""


def _check_neutral(given: Sequence[object]) -> None:
    """RequestError for a value that would do something; ``given`` in the order of ``_NEUTRAL``."""
    for (name, values), value in zip(_NEUTRAL.items(), given, strict=True):
        if value is None or value in ((), [], {}):
            continue
        plain = getattr(value, "value", value)  # of an enum
        if plain not in values or isinstance(plain, bool) != isinstance(values[0], bool):
            allowed = " or ".join(map(str, (None, *values)))
            raise RequestError(f"{name} may only be {allowed} here, got {shown(value)}", name)
