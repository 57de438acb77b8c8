"""How much of a prompt its caller would like to have kept in the prefix cache, and for how long.

All prompts are cached. Anthropic's ``cache_control`` and OpenAI's ``prompt_cache_key`` and
``prompt_cache_retention`` are hints of which of them come again: their blocks are evicted after
others, as far as the pool's share for them goes, and a client is charged for it under the fair
policy. Nothing that is answered depends on them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from quire.core.protocol import KEPT_SECONDS
from quire.text.tokenizer import Tokenizer

_TIMES = {"5m": KEPT_SECONDS, "1h": 3600.0, "24h": 86400.0}
_ALL = 2**40  # tokens: the whole prompt, and what is written to it
_MOST = 4  # of a request's marks that are looked for, its last ones: Anthropic allows as many
_TAIL = 160  # characters before a mark by which it is found
_EDGE, _LEAST = 3, 4  # tokens that may read otherwise where the tail begins or ends; that must not


class Mark(NamedTuple):
    """A prompt is kept to the end of a text in it. None: all of it."""

    text: str | None
    seconds: float


def mark_of(control: Mapping[str, Any] | None, text: str | None) -> list[Mark]:
    """What Anthropic's ``cache_control`` says at the end of a text."""
    if control is None:
        return []
    return [Mark(text, _seconds(control.get("ttl")))]


def mark_of_key(key: str | None, retention: str | None) -> list[Mark]:
    """What OpenAI's fields say of a prompt: one that has a key is one of many that begin alike."""
    return [Mark(None, _seconds(retention))] if key or retention else []


def kept_by(marks: Sequence[Mark]) -> list[tuple[int, float]]:
    """What marks of a whole prompt want kept; see ``Request``."""
    return [(_ALL, mark.seconds) for mark in marks if mark.text is None]


def _seconds(time: object) -> float:
    return _TIMES.get(time, KEPT_SECONDS) if isinstance(time, str) else KEPT_SECONDS


def found_in(
    marks: Sequence[Mark], token_ids: Sequence[int], tokenizer: Tokenizer
) -> list[tuple[int, float]]:
    """The first tokens of a prompt that its marks want kept; see ``Request``.

    A mark whose text does not stand in the prompt as it was given is left out.
    """
    keep, first = kept_by(marks), 0
    prompt = array("I", token_ids)
    content, width = prompt.tobytes(), prompt.itemsize
    for text, seconds in marks[-_MOST:]:
        if text is None:
            continue
        tail = tokenizer.encode(text[-_TAIL:], add_special_tokens=False)[_EDGE:-1]
        if len(tail) < _LEAST:
            continue
        at = content.find(array("I", tail).tobytes(), first)
        if at >= 0 and at % width == 0:
            first = at + len(tail) * width
            keep.append((first // width, seconds))
    return keep
