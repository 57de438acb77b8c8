"""Prompts that are too long, slow to tokenize, or as many and as long as is allowed."""

from __future__ import annotations

import random
import string

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
from attacks.target import Target

_MB = 10**6
_TEXT = "The town by the river was quiet. "


def words(size: int) -> str:
    return (_TEXT * (size // len(_TEXT) + 1))[:size]


def one_word(size: int) -> str:
    return "".join(random.Random(0).choices(string.ascii_letters, k=size))


def emojis(size: int) -> str:
    return "".join(map(chr, random.Random(1).choices(range(0x1F300, 0x1F640), k=size)))


def any_unicode(size: int) -> str:
    """Characters of every script, and of none; halves of pairs left out."""
    choices = [*range(0x80, 0xD800), *range(0xE000, 0x30000)]
    return "".join(map(chr, random.Random(2).choices(choices, k=size)))


def random_ids(number: int, length: int) -> list[int]:
    generator = random.Random(number)
    return [generator.randrange(5, 250) for _ in range(length)]


def filled(target: Target, over: int = 0) -> bytes:
    """A completion whose body has exactly as many bytes as one may have, or some more."""
    room = target.limits.max_body_bytes - len(completion(target, prompt="")) + over
    return completion(target, prompt=words(room))


def longest_prompts(target: Target) -> list[bytes]:
    """Prompts of the most tokens, all different; the numbers are tokens of any model."""
    length = target.limits.max_model_len - 1
    return [completion(target, prompt=random_ids(number, length)) for number in range(64)]


def texts_that_may_fit(target: Target) -> list[bytes]:
    """A token or less for every character: what cannot be told from an honest text by its size."""
    size = target.limits.max_model_len
    return [completion(target, prompt=make(size)) for make in (one_word, emojis, any_unicode)]


def most_ids(target: Target) -> bytes:
    """As many token ids as a body holds."""
    room = target.limits.max_body_bytes - len(completion(target, prompt=[]))
    ids = b"[" + b"7," * (room // 2 - 1) + b"7]"
    return completion(target, prompt=[]).replace(b"[]", ids)


def most_prompts(target: Target) -> bytes:
    """As many prompts as one body may hold; OpenAI takes 2,048."""

    def body(count: int) -> bytes:
        return completion(target, prompt=["The town"] * count)

    return body(target.most(body, up_to=2048))


def kept_prompts(target: Target) -> list[bytes]:
    """Prompts that are asked to be kept for a day, and never come again."""
    length = target.limits.max_model_len // 2
    return [
        completion(
            target, prompt=random_ids(number, length), prompt_cache_key=f"{number}",
            prompt_cache_retention="24h",
        )
        for number in range(200)
    ]  # fmt: skip


def long_chat(target: Target) -> bytes:
    return chat(target, messages=[{"role": "user", "content": words(24 * _MB)}])


def short_prompts(target: Target) -> list[bytes]:
    return [completion(target, prompt=random_ids(number, 8)) for number in range(1000)]


PROMPTS = (
    Attack("prompt of 1 MB", posting(lambda t: completion(t, prompt=words(_MB))), TOO_LARGE),
    Attack("prompt of 10 MB", posting(lambda t: completion(t, prompt=words(10 * _MB))), TOO_LARGE),
    Attack("prompt of 24 MB", posting(lambda t: completion(t, prompt=words(24 * _MB))), TOO_LARGE),
    Attack("chat of 24 MB", posting_chats(long_chat), TOO_LARGE),
    Attack("body exactly at its limit", posting(filled), REFUSED),
    Attack("body a byte too long", posting(lambda t: filled(t, over=1)), TOO_LARGE | {"closed"}),
    Attack("one word of 1 MB", posting(lambda t: completion(t, prompt=one_word(_MB))), TOO_LARGE),
    Attack("a million emojis", posting(lambda t: completion(t, prompt=emojis(_MB))), TOO_LARGE),
    Attack(
        "1 MB of any Unicode", posting(lambda t: completion(t, prompt=any_unicode(_MB))), TOO_LARGE
    ),
    Attack("64 texts that may fit", posting(texts_that_may_fit, parallel=64), SERVED | REFUSED),
    Attack("64 prompts of most tokens", posting(longest_prompts, parallel=64), SERVED),
    Attack("200 prompts kept for a day", posting(kept_prompts, parallel=8), SERVED),
    Attack("a body full of token ids", posting(most_ids), TOO_LARGE),
    Attack("2,048 prompts in a body", posting(most_prompts), SERVED),
    Attack("1,000 requests at once", posting(short_prompts, parallel=1000, pause=1.0), SERVED),
)
