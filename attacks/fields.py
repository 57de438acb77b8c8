"""Fields that are huge, or as many and as large as is allowed, with as many outputs as may be."""

from __future__ import annotations

from attacks.attack import (
    REFUSED,
    SERVED,
    TOO_LARGE,
    Attack,
    chat,
    completion,
    posting,
    posting_chats,
)
from attacks.prompts import one_word
from attacks.target import Target

_MANY = 100_000
_LONG = 200  # tokens of an output
_MB = 10**6


def distinct(count: int, length: int = 1) -> list[str]:
    """Different strings that no text will hold."""
    return [f"{number:x}".rjust(length, "~") + "§" for number in range(count)]


def many_stops(target: Target) -> bytes:
    return completion(target, stop=distinct(_MANY), n=50, max_tokens=_LONG, ignore_eos=True)


def most_stops(target: Target) -> bytes:
    """As many stop strings as are taken, then as long as they are taken."""

    def body(count: int, length: int) -> bytes:
        return completion(target, stop=distinct(count, length))

    count = target.most(lambda count: body(count, 1), up_to=_MANY)
    length = target.most(lambda length: body(count, length), up_to=10**7 // count)
    stop = distinct(count, length)
    return completion(target, stop=stop, n=50, max_tokens=_LONG, ignore_eos=True)


def most_bad_words(target: Target) -> bytes:
    def body(count: int, **fields: int) -> bytes:
        return completion(target, bad_words=distinct(count), **fields)

    return body(target.most(body, up_to=_MANY), n=50, max_tokens=_LONG)


def most_biases(target: Target) -> bytes:
    """A bias for as many of the first tokens as may have one, which no vocabulary exceeds."""

    def body(count: int, **fields: int) -> bytes:
        biases = {str(token): -1.0 for token in range(count)}
        return completion(target, logit_bias=biases, **fields)

    return body(target.most(body, up_to=_MANY), n=50, max_tokens=_LONG)


def most_outputs(target: Target, **fields: object) -> bytes:
    """As many outputs as are taken with 100 log-probabilities a token, then as long as may be."""

    def body(count: int, length: int, **more: object) -> bytes:
        options = {"logprobs": 100, "ignore_eos": True, **more}
        return completion(target, n=count, max_tokens=length, **options)

    count = target.most(lambda count: body(count, 1), up_to=256)
    length = target.most(lambda length: body(count, length), up_to=target.limits.max_model_len - 20)
    return body(count, length, **fields)


def most_beside(target: Target) -> bytes:
    """All that takes time beside the model, of 64 outputs, from nearly all tokens."""
    return completion(
        target, n=64, max_tokens=_LONG, ignore_eos=True, temperature=2.0, top_p=0.999, logprobs=40,
        logit_bias={str(token): -1.0 for token in range(1_000)}, repetition_penalty=1.1,
        bad_words=distinct(100), stop=distinct(60, 200), min_tokens=_LONG,
    )  # fmt: skip


def most_kept(target: Target) -> bytes:
    """Outputs whose log-probabilities, and the prompt's, are kept until one answer is made."""
    return completion(
        target, n=64, logprobs=20, prompt_logprobs=100, max_tokens=400, ignore_eos=True,
        temperature=1.0, top_p=0.99, seed=1,
    )  # fmt: skip


def prompt_logprobs(target: Target) -> bytes:
    length = target.limits.max_model_len - 1
    return completion(target, prompt=[7] * length, prompt_logprobs=100)


def widest_beams(target: Target) -> bytes:
    def body(width: int, **fields: int) -> bytes:
        return completion(target, use_beam_search=True, beam_width=width, **fields)

    return body(target.most(body, up_to=256), max_tokens=_LONG)


def template_variables(target: Target) -> bytes:
    return chat(target, chat_template_kwargs={name: name for name in distinct(_MANY)})


def unknown_fields(target: Target) -> bytes:
    return completion(target, **dict.fromkeys(distinct(_MANY), 1))


def huge_number(target: Target) -> bytes:
    return completion(target, max_tokens=1).replace(b": 1}", b": 1" + b"0" * _MB + b"}")


def numbers_out_of_range(target: Target) -> list[bytes]:
    """Integers, and what a reader of JSON may take for numbers."""
    fields = ("priority", "seed", "max_tokens", "n", "top_k", "logprobs", "temperature", "top_p")
    values = (2**2000, -(2**2000), float("inf"), float("nan"), -1e308)
    return [completion(target, **{field: value}) for field in fields for value in values]


def huge_texts(target: Target) -> list[bytes]:
    """Long strings where short ones are meant, which an error had better not repeat."""
    text = one_word(_MB)
    names = ("model", "user", "cache_salt", "stop", "bad_words", "suffix", "early_stopping")
    return [completion(target, **{name: text}) for name in names]


FIELDS = (
    Attack("100,000 stop strings, n=50", posting(many_stops), SERVED | TOO_LARGE),
    Attack("most and longest stops, n=50", posting(most_stops), SERVED | REFUSED),
    Attack("most bad words, n=50", posting(most_bad_words), SERVED | REFUSED),
    Attack("most logit biases, n=50", posting(most_biases), SERVED | REFUSED),
    Attack("most outputs, 100 logprobs", posting(most_outputs), SERVED | REFUSED),
    Attack("most beside the model, n=64", posting(most_beside), SERVED | REFUSED),
    Attack("one answer of 25,600 logprobs", posting(most_kept), SERVED | REFUSED),
    Attack("logprobs of a longest prompt", posting(prompt_logprobs), SERVED | REFUSED),
    Attack("widest beam search", posting(widest_beams), SERVED | REFUSED),
    Attack("100,000 template variables", posting_chats(template_variables), SERVED | TOO_LARGE),
    Attack("100,000 unknown fields", posting(unknown_fields), TOO_LARGE),
    Attack("a number of a million digits", posting(huge_number), TOO_LARGE),
    Attack("numbers out of range", posting(numbers_out_of_range, pause=0.02), SERVED | REFUSED),
    Attack("1 MB where a word is meant", posting(huge_texts), SERVED | TOO_LARGE | {"404"}),
)
