"""SamplingParams: how a request's tokens are chosen, in vLLM's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quire.errors import RequestError


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when to stop. Checked on construction.

    n: outputs for the prompt; they share the prompt's blocks.
    best_of: run this many and return the n with the highest log-probability; None is n.
    use_beam_search: search for the likeliest outputs in place of sampling.
    beam_width: beams of the search; None is best_of, or n.
    num_return_sequences: outputs of the search; None is n.
    length_penalty: a hypothesis scores its log-probability / its length to this power.
    early_stopping: end the search when there are as many hypotheses as beams (true), when it
        looks as if no better one will come (false), or when none can ("never").
    temperature: 0 is greedy; larger is more random.
    top_p: keep the most likely tokens that together reach this probability, in (0, 1].
    top_k: keep this many most likely tokens; 0 or -1 keeps all.
    min_p: drop tokens less likely than this share of the likeliest, in [0, 1].
    seed: makes the request repeatable, whatever it is batched with.
    max_tokens: most tokens to generate; None: as many as the model's length allows (with a
        window, which lets a text go on for ever, as many as the model's length has).
    min_tokens: no end of sequence and no stop before this many tokens.
    stop: strings that end the text; cut off unless include_stop_str_in_output.
    stop_token_ids: tokens that end the text, besides the model's end of sequence.
    ignore_eos: generate on past the end of sequence.
    presence_penalty, frequency_penalty: subtracted from the logits of tokens already generated,
        once and once per occurrence, in [-2, 2].
    repetition_penalty: divides the positive and multiplies the negative logits of tokens in the
        prompt or the output, > 0; 1 is none (Keskar et al., 2019).
    logit_bias: token id -> added to its logit, in [-100, 100].
    allowed_token_ids: sample from these only.
    bad_words: words whose last token is forbidden wherever it would complete them.
    logprobs: report the sampled token's log-probability and this many of the likeliest ones'.
    prompt_logprobs: the same for each prompt token (its prompt does not use the prefix cache).
    detokenize: False leaves the text empty and only returns token ids.
    skip_special_tokens: leave special tokens out of the text.
    """

    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    beam_width: int | None = None
    num_return_sequences: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_integer("n", self.n, 1, MAX_N)
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p must be in (0, 1], got 0", "top_p")
        _check_integer("top_k", self.top_k, -1, None)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, None)
        _check_integer("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, math.inf)
        if self.repetition_penalty == 0.0:
            raise RequestError("repetition_penalty must be above 0, got 0", "repetition_penalty")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false", name)
        self._check_collections()
        self._check_branches()

    @classmethod
    def over(cls, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
        """The ``given`` fields, over a model's own ``defaults`` for the others.

        The defaults are for sampling: a beam search does without them.
        """
        return cls(**given) if given.get("use_beam_search") else cls(**{**defaults, **given})

    def _check_collections(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _strings("stop", stop))
        object.__setattr__(self, "bad_words", _strings("bad_words", self.bad_words))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True", "stop")
        if self.allowed_token_ids is not None:
            allowed = _ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise RequestError("allowed_token_ids must name a token", "allowed_token_ids")
            object.__setattr__(self, "allowed_token_ids", allowed)
        if self.logit_bias is not None:
            ids = _ids("logit_bias", tuple(self.logit_bias))
            for value in self.logit_bias.values():
                _check_number("logit_bias", value, -100.0, 100.0)
            biases = dict(zip(ids, map(float, self.logit_bias.values()), strict=True))
            object.__setattr__(self, "logit_bias", biases)

    def _check_branches(self) -> None:
        for name in ("best_of", "beam_width", "num_return_sequences"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), 1, MAX_N)
        if self.best_of is not None and self.best_of < self.n:
            raise RequestError(
                f"best_of must be at least n, {self.n}; got {self.best_of}", "best_of"
            )
        _check_number("length_penalty", self.length_penalty, -10.0, 10.0)
        if self.early_stopping not in (True, False, "never"):
            raise RequestError(
                f'early_stopping must be true, false or "never", got {self.early_stopping!r}',
                "early_stopping",
            )
        wrong = _SAMPLING_ONLY if self.use_beam_search else _BEAMS_ONLY
        for name, allowed in wrong.items():
            if getattr(self, name) not in allowed:
                what = "cannot be combined with" if self.use_beam_search else "needs"
                raise RequestError(f"{name} {what} use_beam_search", name)
        if not self.use_beam_search:
            return
        if self.num_outputs > self.width:
            name = "n" if self.num_return_sequences is None else "num_return_sequences"
            raise RequestError(f"{name} must be at most the beam width, {self.width}", name)
        if self.allowed_token_ids is not None and len(set(self.allowed_token_ids)) < self.width:
            raise RequestError(
                f"allowed_token_ids must name at least {self.width} tokens, one a beam",
                "allowed_token_ids",
            )

    @property
    def width(self) -> int:
        """Branches that run at once."""
        if self.use_beam_search:
            return self.beam_width or self.best_of or self.n
        return self.best_of or self.n

    @property
    def num_outputs(self) -> int:
        """Outputs that are returned."""
        return self.num_return_sequences or self.n

    @property
    def sample_logprobs(self) -> int | None:
        """Likeliest tokens to report beside each sample's own; None if not even that is needed."""
        if self.logprobs is None and self.width > self.num_outputs and not self.use_beam_search:
            return 0  # to tell which outputs are the best
        return self.logprobs

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @cached_property
    def needs_history(self) -> bool:
        """Whether choosing a token takes the tokens before it, not only the logits."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.bad_words
        )

    @cached_property
    def edits_logits(self) -> bool:
        """Whether logits may be changed before a token is chosen."""
        return bool(
            self.needs_history
            or self.min_tokens
            or self.logit_bias
            or self.allowed_token_ids is not None
        )


MAX_N = 256
MAX_LOGPROBS = 100
_FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "use_beam_search",
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
}


def _check_integer(name: str, value: object, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, got {value!r}", name)
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} must be {limit}, got {value}", name)


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number, got {value!r}", name)
    if not (math.isfinite(value) and low <= value <= high):
        limit = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise RequestError(f"{name} must be {limit}, got {value}", name)


def _strings(name: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(f"{name} must be a list of strings, got {values!r}", name)
    for value in values:
        if not isinstance(value, str) or not value:
            raise RequestError(f"{name} must hold non-empty strings, got {value!r}", name)
        check_unicode(name, value)
    return tuple(values)


def _ids(name: str, values: object) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(f"{name} must be a list of token ids, got {values!r}", name)
    for value in values:
        _check_integer(name, value, 0, None)
    return tuple(values)


def check_unicode(name: str, text: str) -> None:
    """RequestError if ``text`` holds half a character, which no tokenizer can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} is not valid Unicode: {error}", name) from error
