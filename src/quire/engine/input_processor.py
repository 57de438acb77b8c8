"""What a caller may give as a prompt, and how a Request is made of it: tokens, and every limit
checked by name.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

from quire.capabilities.adapters.served import Adapters
from quire.capabilities.grammar import Grammars
from quire.capabilities.pooling.pooler import Pooler
from quire.capabilities.sessions import OpenSession
from quire.core.errors import (
    ConfigError,
    ContextLengthError,
    RequestError,
    UnknownAdapterError,
    shown,
)
from quire.core.protocol import Adapter, Origin, Request, VectorSpan
from quire.text.bad_words import bad_word_ids
from quire.text.begun import Begun, ChatPrompt, begun_in
from quire.text.chat_template import Message
from quire.text.encoder import Encoder, PromptForm, around_the_gap, infilling_marks, special_around
from quire.text.params import PoolingParams, SamplingParams
from quire.text.params.parameters import check_integer, check_token_ids
from quire.text.stop_strings import StopAutomaton
from quire.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, {"prompt": text}, {"prompt_token_ids": ids} or {"prompt_embeds": tensor}.

A dict may also hold "cache_salt", a text: only requests with the same salt share a prefix cache;
"adapter", the name of one that changes the model's weights;
"priority", an integer: under the priority and fair policies, the lower, the sooner; "client", a
text: under the fair policy, clients share; "second", a text: the prompt is a pair for a model that
judges such, cut to "truncate_prompt_tokens" where that is given; "truncate_max_tokens": true lowers
a max_tokens that is above what max_model_len leaves, where else the request is refused; and, for a
server that decodes only, "remote_prefill": address and port of an engine that has computed the
prompt; "origin", an ``Origin``; and "keep", see ``Request``.
"""

_PROMPT_KEYS = {
    *("prompt", "prompt_token_ids", "prompt_embeds", "cache_salt", "adapter", "priority", "client"),
    *("second", "truncate_prompt_tokens", "truncate_max_tokens", "remote_prefill", "origin"),
    "keep",
}
_KINDS = ("prompt_token_ids", "prompt", "prompt_embeds")
_LONGEST_CLIENT = 256  # characters

MAX_PRIORITY = 1_000  # up or down
MAX_PROMPT_LOGPROBS = 2**21  # times tokens of the prompt

_EMBEDDINGS = "embeddings (/v1/embeddings, LLM.embed)"
_MOST_CONTEXT = 16  # tokens of a history that how its next token reads may depend on


class VectorInputs(Protocol):
    """Vectors that a model takes in the place of its tokens'."""

    def count(self, given: object) -> int:
        """How many there are; RequestError, naming the field, unless they can be taken."""
        ...

    def span(self, given: object) -> VectorSpan:
        """A prompt of these vectors alone."""
        ...

    def read(self, file: bytes) -> tuple[VectorSpan, int]:
        """A prompt of a file's vectors, and the bytes they take; RequestError: see ``count``."""
        ...


NO_VECTORS = (
    "this engine takes no prompt_embeds: they need a model that Quire has code of its own for, one "
    "rank on a CPU, and no draft model"
)


@dataclass(frozen=True)
class ModelOutputs:
    """What a model can give, and what it takes beside tokens.

    eos_token_ids: that end a text.
    pooler: of its vectors; None: it gives none.
    generates: whether it has a head for tokens.
    vectors: that it takes in the place of tokens; None: none.
    """

    vocab_size: int
    eos_token_ids: Iterable[int] = ()
    pooler: Pooler | None = None
    generates: bool = True
    vectors: VectorInputs | None = None


@dataclass(frozen=True)
class PreparedParams:
    """SamplingParams that this model can serve, and what their texts come to."""

    params: SamplingParams
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    stops: StopAutomaton | None = None
    rules: object = None
    prediction: tuple[int, ...] = ()
    pooling: PoolingParams | None = None  # all of it filled in

    @property
    def max_tokens(self) -> int | None:
        """See ``SamplingParams``; 0: only the prompt counts."""
        return self.params.max_tokens if self.pooling is None else 0

    @property
    def least_output(self) -> int:
        """Tokens for which there must be room after a prompt."""
        return 0 if self.max_tokens == 0 else 1


@dataclass(frozen=True)
class PreparedRequest:
    """A Request and the text it was made from, if it was.

    context: the tokens that its output goes on from, or the last of them.
    stops: its stop strings, for all of its outputs; None without any.
    """

    request: Request
    prompt: str | None
    context: Sequence[int]
    stops: StopAutomaton | None


class InputProcessor:
    """Turns prompts into Requests. Holds no state of running requests: safe from any thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        outputs: ModelOutputs,
        *,
        max_model_len: int | None,
        default_max_tokens: int = 0,
        seed: int,
        sampling_defaults: Mapping[str, Any] | None = None,
        adapters: Adapters | None = None,
        additional_properties: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self._encoder = Encoder(tokenizer, max_model_len)
        self.vocab_size = vocab_size = outputs.vocab_size
        self.max_model_len = max_model_len  # None: there is no longest sequence
        self._default_max_tokens = default_max_tokens  # what None means if there is none
        self.sampling_defaults = sampling_defaults or {}  # the model's, for SamplingParams.over
        # What is not in the vocabulary cannot end a text.
        ends = {*outputs.eos_token_ids, *tokenizer.end_ids}
        self._eos_token_ids = frozenset(id for id in ends if 0 <= id < vocab_size)
        self.pooler = outputs.pooler
        self.vectors = outputs.vectors  # None: it takes none
        self.generates = outputs.generates
        self._random = random.Random(seed)
        self._adapters = adapters
        self.grammars = Grammars(
            tokenizer,
            vocab_size,
            self._eos_token_ids,
            additional_properties=additional_properties,
        )

    @property
    def _judges(self) -> bool:
        """Whether it reads pairs of texts, and says what they are."""
        return self.pooler is not None and self.pooler.labels > 0

    @property
    def num_labels(self) -> int:
        """Labels of a head that classifies; 0: there is none."""
        return 0 if self.pooler is None else self.pooler.labels

    @property
    def max_characters(self) -> int:
        """The longest text that is tokenized to see whether it fits."""
        return self._encoder.max_characters

    def most_tokens(self, params: SamplingParams) -> int:
        """The most tokens of an output, as far as is known without its prompt."""
        if params.max_tokens is None:
            return self.max_model_len or max(self._default_max_tokens, params.min_tokens)
        return min(params.max_tokens, self.max_model_len or params.max_tokens)

    def size(self, prompt: Prompt, field: str = "prompt", output: int = 1) -> int:
        """Characters or tokens of a prompt; RequestError if they cannot fit. Costs nothing.

        output: tokens that are to follow it, at least.
        """
        given = self._given_of(prompt, field, output)
        second = prompt.get("second") if isinstance(prompt, Mapping) else None
        return len(given) + (len(second) if isinstance(second, str) else 0)

    def prepare_params(self, params: SamplingParams | PoolingParams) -> PreparedParams:
        """RequestError, naming the field, where the params cannot be served by this model."""
        if isinstance(params, PoolingParams):
            return self._prepare_pooling(params)
        if not self.generates:
            raise RequestError(
                "this model has no head for tokens: it gives "
                + ("scores (/v1/score, LLM.score)" if self._judges else _EMBEDDINGS)
                + ", and generates nothing",
                "model",
            )
        if params.use_beam_search and params.width > self.vocab_size:
            raise RequestError(
                f"beam_width must be at most {self.vocab_size}, the size of the vocabulary; got "
                f"{params.width}",
                "beam_width",
            )
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            named = tuple(getattr(params, field) or ())
            check_token_ids(field, named, most=self.vocab_size, highest=self.vocab_size - 1)
        stops = StopAutomaton(params.stop) if params.stop else None
        rules = self.grammars.rules(params) if params.guided else None
        if params.structured_outputs is not None and params.ignore_eos:
            params = replace(params, ignore_eos=False)  # where the grammar ends, nothing can follow
        words = tuple(set(self._bad_word_ids(params.bad_words)))
        return PreparedParams(params, words, stops, rules, self._prediction(params.prediction))

    def prepare(
        self, request_id: str, prompt: Prompt, params: PreparedParams, arrival: float
    ) -> PreparedRequest:
        """RequestError, naming the field, where the prompt cannot be served with these params."""
        options = prompt if isinstance(prompt, Mapping) else {}
        priority, cache_salt = options.get("priority", 0), options.get("cache_salt", "")
        check_integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        if not isinstance(cache_salt, str):
            raise RequestError(f"cache_salt must be a text, got {shown(cache_salt)}", "cache_salt")
        client = options.get("client", "")
        _check_client(client)
        given, second_from = self._given_of(prompt, "prompt", params.least_output), None
        if "second" in options:
            token_ids, second_from = self._pair(given, options)
        else:
            token_ids = self._token_ids("prompt", given, output=params.least_output)
        if params.pooling is not None and isinstance(given, str) and self.pooler is not None:
            token_ids += self.pooler.ending
        cut = options.get("truncate_max_tokens") is True
        max_tokens = self._max_tokens(len(token_ids), params, cut=cut)
        self._check_prompt_logprobs(len(token_ids), params.params)
        request = self._request(request_id, token_ids, max_tokens, params, priority, arrival)
        adapter = self.adapter(options.get("adapter"))
        spans: tuple[VectorSpan, ...] = ()
        if options.get("prompt_embeds") is not None:
            spans, token_ids = self._spans(options, params), ()
        request = replace(
            request,
            cache_salt=cache_salt,
            client=client,
            adapter=adapter,
            second_from=second_from,
            spans=spans,
            origin=options.get("origin", request.origin),
            keep=options.get("keep", ()),
        )
        text = given if isinstance(given, str) else None
        return PreparedRequest(request, text, token_ids, params.stops)

    def _given_of(self, prompt: Prompt, field: str, output: int) -> str | Sequence[int]:
        """What a prompt is made of, no longer than can fit; of vectors, ids in their places."""
        given = _given_of(prompt)
        if not isinstance(prompt, Mapping) or prompt.get("prompt_embeds") is None:
            self._check_length(field, given, output)
            return cast("str | Sequence[int]", given)
        if self.vectors is None:
            raise RequestError(NO_VECTORS, "prompt_embeds")
        count = self.vectors.count(given)
        self._encoder.check_count("prompt_embeds", count, output)
        return (0,) * count

    def _spans(
        self, options: Mapping[str, Any], prepared: PreparedParams
    ) -> tuple[VectorSpan, ...]:
        """The vectors of a prompt; RequestError for what reads its tokens."""
        params = prepared.params
        readers = {
            "prompt_logprobs": params.prompt_logprobs is not None,
            "bad_words": bool(params.bad_words),
            "prediction": bool(params.prediction),
            "pooling": prepared.pooling is not None,
            "second": "second" in options,
            "remote_prefill": options.get("remote_prefill") is not None,
        }
        for field, reads in readers.items():
            if reads:
                raise RequestError(f"prompt_embeds have no tokens, which {field} reads", field)
        assert self.vectors is not None, "it has counted them"
        return (self.vectors.span(options["prompt_embeds"]),)

    def _pair(
        self, first: object, options: Mapping[str, Any]
    ) -> tuple[tuple[int, ...], int | None]:
        """Tokens of two texts as one prompt, and where those of the second type begin."""
        second, most = options["second"], options.get("truncate_prompt_tokens")
        if not isinstance(first, str) or not isinstance(second, str):
            raise RequestError("both texts of a pair must be strings", "second")
        if not self._judges:
            raise RequestError("this model does not score pairs of texts", "second")
        if most is not None:
            check_integer("truncate_prompt_tokens", most, 1)
        pair = self._encoder.encode_pair("prompt", first, second, most)
        return check_token_ids("prompt", pair.token_ids, highest=self.vocab_size - 1), pair[1]

    def adapter(self, name: object) -> Adapter | None:
        """The one that is called so; None is none. UnknownAdapterError: there is none."""
        if name is None:
            return None
        if self._adapters is None or not isinstance(name, str):
            raise UnknownAdapterError(f"adapter {shown(name)} is not loaded", "adapter")
        return self._adapters.find(name)

    def prepare_turn(
        self,
        request_id: str,
        session: OpenSession,
        history: Sequence[int],
        params: PreparedParams,
        arrival: float,
        priority: int = 0,
        origin: Origin = Origin(),  # noqa: B008  # frozen
    ) -> PreparedRequest:
        """The next turn of a session, whose prompt is the end of its history."""
        check_integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        max_tokens = self._max_tokens(len(history), params, "the session", "session_id")
        prompt, own = session.input_token_ids, session.resting.request
        request = self._request(request_id, prompt, max_tokens, params, priority, arrival)
        request = replace(
            request,
            cache_salt=own.cache_salt,
            adapter=own.adapter,
            client=session.client or "",
            origin=origin,
        )
        return PreparedRequest(request, None, tuple(history[-_MOST_CONTEXT:]), params.stops)

    def session_input(self, session: OpenSession, given: str | Sequence[int]) -> tuple[int, ...]:
        """Tokens of a session's input. A text that comes first begins as a prompt does."""
        return self._token_ids("input", given, add_special_tokens=not session.history)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, which may be longer than what can be served."""
        return self._encoder.encode("prompt", text, add_special_tokens=add_special_tokens)

    def detokenize(self, token_ids: Sequence[int], *, own: bool = False) -> str:
        """The text of token ids, special ones included.

        own: they were made here, and may be more than can be served.
        """
        if not own:
            self._encoder.check_count("tokens", len(token_ids))
            token_ids = check_token_ids("tokens", token_ids, highest=self.vocab_size - 1)
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def begin_chat(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        form: PromptForm = PromptForm(),  # noqa: B008  # frozen
        marks: Sequence[str] | None = None,
    ) -> ChatPrompt:
        """A conversation as a prompt, by the model's chat template, and what of the answer that has
        begun.

        marks: what may open or close something in an answer; None where nobody asks.
        """
        variables = variables or {}
        text = self._encoder.render(messages, variables)
        special = form.add_special_tokens is True
        token_ids, is_cut = self._formed("messages", text, form, special=special)
        begun = Begun()
        if marks is not None and not (form.keep_first and is_cut):
            render = self.tokenizer.apply_chat_template
            begun = begun_in(text, render, messages, variables, marks)
        return ChatPrompt(token_ids, begun)

    def text_prompt(self, given: str | Sequence[int], form: PromptForm) -> list[int]:
        """Token ids of a prompt in the form that its caller asks for."""
        special = form.add_special_tokens is not False
        if form.suffix is None:
            if not isinstance(given, str):
                return form.cut(list(given))
            return self._formed("prompt", given, form, special=special)[0]
        encode = partial(self._encoder.encode, to_be_cut=form.most is not None)
        marks = infilling_marks(self.tokenizer, self.vocab_size)
        if marks is None:
            raise RequestError(
                "suffix needs a model that fills in the middle, whose tokenizer has marks for it "
                "(<|fim_prefix|> and the like); this model's has none",
                "suffix",
            )
        begin, prefix = encode("prompt", "") if special else [], given
        if isinstance(prefix, str):
            prefix = encode("prompt", prefix, add_special_tokens=False)
        suffix = encode("suffix", form.suffix, add_special_tokens=False)
        return form.cut(around_the_gap(marks, begin, prefix, suffix))

    def _formed(
        self, field: str, text: str, form: PromptForm, *, special: bool
    ) -> tuple[list[int], bool]:
        """Token ids of a text in the form that its caller asks for, and whether some were cut.

        special: add the tokenizer's own around it.
        """
        stay = special and (form.keep_special or form.keep_begin)
        before, after = special_around(self.tokenizer.encode) if stay else ([], [])
        if form.keep_special and stay and self.pooler is not None:
            after += self.pooler.ending
        inner = self._encoder.encode(
            field, text, add_special_tokens=special and not stay, to_be_cut=form.most is not None
        )
        token_ids = form.cut_between(before, inner, after)
        return token_ids, len(token_ids) < len(before) + len(inner) + len(after)

    def _request(
        self,
        request_id: str,
        prompt: tuple[int, ...],
        max_tokens: int,
        prepared: PreparedParams,
        priority: int,
        arrival: float,
    ) -> Request:
        params = prepared.params
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params,
            max_tokens=max_tokens,
            seed=self._random.getrandbits(63) if params.seed is None else params.seed,
            arrival=arrival,
            eos_token_ids=self._eos_token_ids,
            bad_word_ids=prepared.bad_word_ids,
            rules=prepared.rules,
            pooling=prepared.pooling,
            prediction=prepared.prediction,
            priority=priority,
        )

    def _token_ids(
        self, field: str, given: object, *, add_special_tokens: bool = True, output: int = 1
    ) -> tuple[int, ...]:
        """The tokens of a prompt or an input; at least one, and no more than can fit."""
        self._check_length(field, given, output)
        token_ids: tuple[int, ...] = ()
        if given:
            if isinstance(given, str):
                given = self._encoder.encode(field, given, add_special_tokens=add_special_tokens)
            token_ids = check_token_ids(field, given, highest=self.vocab_size - 1)
        if not token_ids:
            raise RequestError(f"{field} must not be empty", field)
        return token_ids

    def _prediction(self, text: str | None) -> tuple[int, ...]:
        """The tokens of what an output is expected to be like; no more than an output may have."""
        if not text:
            return ()
        token_ids = self._token_ids("prediction", text, add_special_tokens=False)
        self._encoder.check_count("prediction", len(token_ids))
        return token_ids

    def _prepare_pooling(self, params: PoolingParams) -> PreparedParams:
        if self.pooler is None:
            raise RequestError("this model gives no embeddings", "model")
        check_token_ids("token_ids", params.token_ids, highest=self.vocab_size - 1)
        if params.token_ids and not self.generates:
            raise RequestError("this model has no head for tokens", "token_ids")
        return PreparedParams(SamplingParams(), pooling=self.pooler.filled(params))

    def _check_length(self, field: str, given: object, output: int = 1) -> None:
        if isinstance(given, str):
            self._encoder.check_characters(field, len(given))
        elif isinstance(given, Sequence):
            self._encoder.check_count(field, len(given), output)
        else:
            kind = type(given).__name__
            raise RequestError(f"{field} must be a text or a list of token ids, got {kind}", field)

    def _check_prompt_logprobs(self, known: int, params: SamplingParams) -> None:
        most = MAX_PROMPT_LOGPROBS // known
        if params.prompt_logprobs is not None and params.prompt_logprobs > most:
            raise RequestError(
                f"prompt_logprobs must be from 0 to {most} for a prompt of {known} tokens, "
                f"got {params.prompt_logprobs}",
                "prompt_logprobs",
            )

    def _max_tokens(
        self,
        known: int,
        prepared: PreparedParams,
        what: str = "the prompt",
        field: str = "prompt",
        *,
        cut: bool = False,
    ) -> int:
        """``max_tokens``, or what None means, after ``known`` tokens."""
        asked, least = prepared.max_tokens, prepared.params.min_tokens
        if self.max_model_len is None:
            return max(self._default_max_tokens, least) if asked is None else asked
        room = self.max_model_len - known
        if room < prepared.least_output:
            most = self.max_model_len - prepared.least_output
            raise ContextLengthError(
                f"{what} has {known} tokens; with max_model_len {self.max_model_len} "
                f"it may have at most {most}",
                field,
                known,
                most,
                self.max_model_len,
            )
        if asked is not None and asked > room and not cut:
            raise RequestError(
                f"max_tokens is {asked}, but max_model_len {self.max_model_len} "
                f"leaves at most {room} after the {known} tokens of {what}",
                "max_tokens",
            )
        if least > room:
            raise RequestError(
                f"min_tokens must be at most {room}, the room after the prompt; got {least}",
                "min_tokens",
            )
        return room if asked is None else min(room, asked)

    def _bad_word_ids(self, words: Iterable[str]) -> Iterator[tuple[int, ...]]:
        encode = partial(self._encoder.encode, "bad_words", add_special_tokens=False)
        for word in words:
            for ids in bad_word_ids(word, encode, self.tokenizer.own_texts):
                # The tokenizer may know tokens that the model does not, and so never writes.
                if max(ids) < self.vocab_size:
                    yield ids


def as_dict(prompt: Prompt) -> Mapping[str, Any]:
    """A prompt as a dict, to which options can be added."""
    if isinstance(prompt, Mapping):
        return prompt
    return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}


def _given_of(prompt: Prompt) -> object:
    """What a prompt is made of, which a dict names."""
    if not isinstance(prompt, Mapping):
        return prompt
    known = [key for key in _KINDS if prompt.get(key) is not None]
    if len(known) != 1 or set(prompt) - _PROMPT_KEYS:
        raise RequestError(
            'a prompt given as a dict must hold "prompt", "prompt_token_ids" or "prompt_embeds", '
            'and may hold "cache_salt", "adapter", "priority", "client" and '
            '"truncate_max_tokens"; got the keys '
            f"{shown(list(prompt))}",
            "prompt",
        )
    return cast(object, prompt[known[0]])


def chat_variables(
    chat_template: str | None = None,
    chat_template_content_format: str = "auto",
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a chat template gets beside the messages; see ``LLM.chat``."""
    if continue_final_message and add_generation_prompt:
        raise RequestError(
            "continue_final_message needs add_generation_prompt=False", "continue_final_message"
        )
    if chat_template_content_format not in ("auto", "string"):
        raise ConfigError("chat_template_content_format may only be auto or string")
    return {
        **(chat_template_kwargs or {}),
        **({"tools": list(tools)} if tools else {}),
        **({} if chat_template is None else {"chat_template": chat_template}),
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }


def _check_client(client: object) -> None:
    """RequestError unless it is a short text."""
    if not isinstance(client, str):
        raise RequestError(f"client must be a text, got {shown(client)}", "client")
    if len(client) > _LONGEST_CLIENT:
        raise RequestError(
            f"client must have at most {_LONGEST_CLIENT} characters, got {len(client)}", "client"
        )
