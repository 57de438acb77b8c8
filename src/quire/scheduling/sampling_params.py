"""SamplingParams: how a request's tokens are chosen, in vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quire.errors import RequestError, shown
from quire.scheduling.checks import (
    MAX_INTEGER,
    check_integer,
    check_number,
    check_strings,
    check_token_ids,
)


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
        check_integer("n", self.n, 1, MAX_N)
        for name in ("best_of", "beam_width", "num_return_sequences"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_N)
        check_number("temperature", self.temperature, 0.0)
        check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p must be in (0, 1], got 0", "top_p")
        check_integer("top_k", self.top_k, -1)
        check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            check_integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 1)
        check_integer("min_tokens", self.min_tokens, 0, self.max_tokens or MAX_INTEGER)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.0)
        if self.repetition_penalty == 0.0:
            raise RequestError("repetition_penalty must be above 0, got 0", "repetition_penalty")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 0, MAX_LOGPROBS)
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
        self._put("stop", check_strings("stop", stop, MAX_STOP, MAX_STOP_LENGTH))
        words = check_strings("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH)
        self._put("bad_words", words)
        ends = check_token_ids("stop_token_ids", self.stop_token_ids, most=MAX_STOP_TOKEN_IDS)
        self._put("stop_token_ids", ends)
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True", "stop")
        if self.allowed_token_ids is not None:
            most = MAX_EDITED_LOGITS // self.width
            allowed = check_token_ids("allowed_token_ids", self.allowed_token_ids, most=most)
            if not allowed:
                raise RequestError("allowed_token_ids must name a token", "allowed_token_ids")
            self._put("allowed_token_ids", allowed)
        if self.logit_bias is not None:
            self._put("logit_bias", _biases(self.logit_bias))

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_branches(self) -> None:
        if self.best_of is not None and self.best_of < self.n:
            raise RequestError(
                f"best_of must be at least n, {self.n}; got {self.best_of}", "best_of"
            )
        most = MAX_LOGPROBS_AT_ONCE // self.width
        if self.logprobs is not None and self.logprobs > most:
            raise RequestError(
                f"logprobs must be from 0 to {most} with {self.width} outputs at once, "
                f"got {self.logprobs}",
                "logprobs",
            )
        check_number("length_penalty", self.length_penalty, -10.0, 10.0)
        if self.early_stopping not in (True, False, "never"):
            raise RequestError(
                f'early_stopping must be true, false or "never", got {shown(self.early_stopping)}',
                "early_stopping",
            )
        wrong = _SAMPLING_ONLY if self.use_beam_search else _BEAMS_ONLY
        for name, allowed in wrong.items():
            if getattr(self, name) not in allowed:
                what = "cannot be combined with" if self.use_beam_search else "needs"
                raise RequestError(f"{name} {what} use_beam_search", name)
        if self.use_beam_search:
            self._check_beams()

    def _check_beams(self) -> None:
        if self.num_outputs > self.width:
            name = "n" if self.num_return_sequences is None else "num_return_sequences"
            raise RequestError(f"{name} must be at most the beam width, {self.width}", name)
        if self.allowed_token_ids is not None and len(set(self.allowed_token_ids)) < self.width:
            raise RequestError(
                f"allowed_token_ids must name at least {self.width} tokens, one a beam",
                "allowed_token_ids",
            )
        # Each beam looks at a candidate a beam, and at one more a beam for each token that ends.
        most = MAX_BEAM_CANDIDATES // self.width**2 - 2
        if len(self.stop_token_ids) > most:
            raise RequestError(
                f"stop_token_ids must hold at most {most} token ids with {self.width} beams, "
                f"got {len(self.stop_token_ids)}",
                "stop_token_ids",
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


# Lists are bounded by what one request may cost the steps that it shares with others.
MAX_N = 256
MAX_LOGPROBS = 100
MAX_LOGPROBS_AT_ONCE = 2_560  # times outputs; OpenAI's own maximum, 20 of 128
MAX_STOP = 64
MAX_STOP_LENGTH = 256
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 256
MAX_LOGIT_BIAS = 1_024
MAX_EDITED_LOGITS = 262_144  # allowed_token_ids times outputs
MAX_BEAM_CANDIDATES = 262_144  # of all beams in a step
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


def _biases(given: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(given, Mapping):
        raise RequestError(
            f"logit_bias must map token ids to biases, got {shown(given)}", "logit_bias"
        )
    if len(given) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias must hold at most {MAX_LOGIT_BIAS} biases, got {len(given)}", "logit_bias"
        )
    token_ids = check_token_ids("logit_bias", tuple(given))
    for value in given.values():
        check_number("logit_bias", value, -100.0, 100.0)
    return dict(zip(token_ids, map(float, given.values()), strict=True))
