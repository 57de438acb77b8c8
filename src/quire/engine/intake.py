"""From what a caller sent to a Request: tokens, and every limit checked by name."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from quire.engine.tokenizer import Message, Tokenizer
from quire.errors import RequestError
from quire.scheduling import Request, SamplingParams
from quire.scheduling.sampling_params import check_unicode

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.

A dict may also hold "cache_salt", a text: only requests with the same salt share a prefix cache;
and "priority", an integer: under the priority policy, the lower, the sooner.
"""


_MOST_CONTEXT = 16  # tokens of a history that how its next token reads may depend on
_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt", "priority"}


@dataclass(frozen=True)
class PreparedRequest:
    """A Request and the text it was made from, if it was.

    context: the tokens that its output goes on from, or the last of them.
    """

    request: Request
    prompt: str | None
    context: Sequence[int]


class Intake:
    """Turns prompts into Requests. Holds no state of running requests: safe from any thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int | None,
        default_max_tokens: int = 0,
        eos_token_ids: Iterable[int],
        seed: int,
        sampling_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len  # None: there is no longest sequence
        self._default_max_tokens = default_max_tokens  # what None means if there is none
        self.sampling_defaults = sampling_defaults or {}  # the model's, for SamplingParams.over
        # What is not in the vocabulary cannot end a text.
        self._eos_token_ids = frozenset(id for id in eos_token_ids if 0 <= id < vocab_size)
        self._random = random.Random(seed)

    def prepare(
        self, request_id: str, prompt: Prompt, params: SamplingParams, arrival: float
    ) -> PreparedRequest:
        """RequestError, naming the field, where the prompt or the params cannot be served."""
        options = prompt if isinstance(prompt, Mapping) else {}
        priority, cache_salt = options.get("priority", 0), options.get("cache_salt", "")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise RequestError(f"priority must be an integer, got {priority!r}", "priority")
        if not isinstance(cache_salt, str):
            raise RequestError(f"cache_salt must be a text, got {cache_salt!r}", "cache_salt")
        text, token_ids = self._tokens(prompt)
        self._check_ids("prompt", token_ids)
        if not token_ids:
            raise RequestError("prompt must not be empty", "prompt")
        max_tokens = self._max_tokens(len(token_ids), params)
        request = self._request(request_id, token_ids, max_tokens, params, arrival)
        request = replace(request, priority=priority, cache_salt=cache_salt)
        return PreparedRequest(request, text, token_ids)

    def prepare_turn(
        self,
        request_id: str,
        history: Sequence[int],
        prompt: tuple[int, ...],
        params: SamplingParams,
        arrival: float,
    ) -> PreparedRequest:
        """The next turn of a session, whose prompt is the end of its history."""
        max_tokens = self._max_tokens(len(history), params, "the session", "session_id")
        request = self._request(request_id, prompt, max_tokens, params, arrival)
        return PreparedRequest(request, None, tuple(history[-_MOST_CONTEXT:]))

    def session_input(self, given: str | Sequence[int], *, first: bool) -> tuple[int, ...]:
        """Tokens of a session's input. A text that comes first begins as a prompt does."""
        if isinstance(given, str):
            check_unicode("input", given)
            token_ids = tuple(self.tokenizer.encode(given, add_special_tokens=first))
        elif isinstance(given, Sequence):
            token_ids = tuple(cast("Sequence[int]", given))
        else:
            kind = type(given).__name__
            raise RequestError(f"input must be a text or a list of token ids, got {kind}", "input")
        self._check_ids("input", token_ids)  # a tokenizer may know tokens that the model does not
        if not token_ids:
            raise RequestError("input must not be empty", "input")
        return token_ids

    def _request(
        self,
        request_id: str,
        prompt: tuple[int, ...],
        max_tokens: int,
        params: SamplingParams,
        arrival: float,
    ) -> Request:
        self._check_width(params)
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_ids(field, getattr(params, field) or ())
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params,
            max_tokens=max_tokens,
            seed=self._random.getrandbits(63) if params.seed is None else params.seed,
            arrival=arrival,
            eos_token_ids=self._eos_token_ids,
            bad_word_ids=tuple(self._bad_word_ids(params.bad_words)),
        )

    def chat_prompt(
        self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of a conversation, by the model's chat template and its own variables."""
        text = self.tokenizer.apply_chat_template(messages, variables or {})
        check_unicode("messages", text)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _tokens(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        if isinstance(prompt, Mapping):
            known = [key for key in ("prompt_token_ids", "prompt") if prompt.get(key) is not None]
            if len(known) != 1 or set(prompt) - _PROMPT_KEYS:
                raise RequestError(
                    'a prompt given as a dict must hold "prompt" or "prompt_token_ids", and may '
                    f'hold "cache_salt" and "priority"; got the keys {sorted(prompt)}',
                    "prompt",
                )
            prompt = cast(Prompt, prompt[known[0]])
        if isinstance(prompt, str):
            if not prompt:
                raise RequestError("prompt must not be empty", "prompt")
            check_unicode("prompt", prompt)
            return prompt, tuple(self.tokenizer.encode(prompt))
        if isinstance(prompt, Sequence):
            return None, tuple(cast("Sequence[int]", prompt))
        kind = type(prompt).__name__
        raise RequestError(f"prompt must be a text or a list of token ids, got {kind}", "prompt")

    def _check_ids(self, field: str, token_ids: Iterable[object]) -> None:
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise RequestError(f"{field} must hold token ids, got {token_id!r}", field)
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(
                    f"{field} holds token id {token_id}, outside the vocabulary "
                    f"(0 to {self.vocab_size - 1})",
                    field,
                )

    def _check_width(self, params: SamplingParams) -> None:
        if params.use_beam_search and params.width > self.vocab_size:
            raise RequestError(f"beam_width must be at most {self.vocab_size} here", "beam_width")

    def _max_tokens(
        self,
        known: int,
        params: SamplingParams,
        what: str = "the prompt",
        field: str = "prompt",
    ) -> int:
        """``params.max_tokens``, or what None means, after ``known`` tokens."""
        if self.max_model_len is None:
            return params.max_tokens or max(self._default_max_tokens, params.min_tokens)
        room = self.max_model_len - known
        if room < 1:
            raise RequestError(
                f"{what} has {known} tokens; with max_model_len {self.max_model_len} "
                f"it may have at most {self.max_model_len - 1}",
                field,
            )
        if params.max_tokens is not None and params.max_tokens > room:
            raise RequestError(
                f"max_tokens is {params.max_tokens}, but max_model_len {self.max_model_len} "
                f"leaves at most {room} after the {known} tokens of {what}",
                "max_tokens",
            )
        if params.min_tokens > room:
            raise RequestError(f"min_tokens must be at most {room} here", "min_tokens")
        return room if params.max_tokens is None else params.max_tokens

    def _bad_word_ids(self, words: Iterable[str]) -> set[tuple[int, ...]]:
        # A word may stand at the beginning of a text or after a space.
        found = {
            tuple(self.tokenizer.encode(text, add_special_tokens=False))
            for word in words
            for text in (word, " " + word.lstrip())
        }
        # The tokenizer may know tokens that the model does not, and so never writes.
        return {ids for ids in found if all(one < self.vocab_size for one in ids)}
