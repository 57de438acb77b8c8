"""Log-probabilities in the three forms of the API.

What there may be many of is made as it is rendered: see ``rendering``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from msgspec import UNSET, UnsetType

from quire.engine.outputs import Logprob, TokenLogprobTable
from quire.http.answers.rendering import Answer, Many
from quire.text.text_tokens import Echo, TextToken

_LOWEST = -9999.0  # JSON has no -inf


class TopLogprob(Answer, kw_only=True):
    id: int | UnsetType = UNSET
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: Many[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(Answer):
    """Parallel lists, an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: Many[dict[str, float] | None]
    text_offset: list[int]


def chat_logprobs(
    tables: Iterable[TokenLogprobTable],
    count: int,
    *,
    by_id: bool = False,
    with_ids: bool = False,
    with_marks: bool = True,
) -> ChatLogprobs:
    """Chats: each token with the ``count`` likeliest in its place.

    by_id: a token is written as "token_id:7". with_ids: its id stands beside it.
    with_marks: a token that is no part of the text, as one that ends it, reads as it is named, and
        else as nothing.
    """
    entry = partial(_entry, by_id=by_id, with_ids=with_ids, with_marks=with_marks)
    return ChatLogprobs(_content(table, count, entry) for table in tables)


def completion_logprobs(
    tables: Sequence[TokenLogprobTable],
    count: int,
    *,
    offset: int = 0,
    echo: Echo | None = None,
    scores: Sequence[TokenLogprobTable | None] = (),
    by_id: bool = False,
) -> CompletionLogprobs:
    """Completions: parallel lists.

    offset: of the first token in the choice's text, where it does not begin with an echo.
    echo, scores: the prompt and its tokens' tables: the first one follows nothing.
    by_id: a token is written as "token_id:7".
    """
    scored, offsets = list[TokenLogprobTable | None](), list[int]()
    before = [] if echo is None else [*echo.tokens]
    if echo is not None:
        scored = [score and score.at(token) for score, token in zip(scores, before, strict=True)]
        offset = len(echo.text)
        # Where its tokens spell it otherwise, as a tokenizer without capitals does, no further.
        offsets = [min(at, offset) for at in _offsets(before, 0)]
    tokens = [*before, *(table.token for table in tables)]
    scored += tables
    return CompletionLogprobs(
        [_by_id(one.token_id) if by_id else one.text(one.token_id) for one in tokens],
        [None if table is None else _finite(table.chosen.logprob) for table in scored],
        (None if table is None else _top(table, count, by_id) for table in scored),
        [*offsets, *_offsets(tokens[len(before) :], offset)],
    )


def prompt_logprobs(tables: Iterable[TokenLogprobTable | None]) -> Iterator[dict[str, Any] | None]:
    """vLLM's: for each prompt token a map from token id; null for the first one."""
    return (None if table is None else _by_token_id(table) for table in tables)


def _offsets(tokens: Iterable[TextToken], first: int) -> list[int]:
    """Where each token's text begins."""
    return list(accumulate((len(token.added) for token in tokens), initial=first))[:-1]


def _top(table: TokenLogprobTable, count: int, by_id: bool) -> dict[str, float]:
    chosen, likeliest = _ranked(table, count)
    top: dict[str, float] = {}
    for token_id, entry in (chosen, *likeliest):  # tokens may look the same: the first one counts
        name = _by_id(token_id) if by_id else entry.decoded_token
        top.setdefault(name, _finite(entry.logprob))
    return top


def _content(
    table: TokenLogprobTable, count: int, entry: Callable[..., dict[str, Any]]
) -> TokenLogprob:
    chosen, likeliest = _ranked(table, count)
    top = [TopLogprob(**entry(table.token, *one)) for one in likeliest]
    return TokenLogprob(**entry(table.token, *chosen), top_logprobs=top)


def _by_token_id(table: TokenLogprobTable) -> dict[str, Any]:
    return {
        str(token_id): {**entry._asdict(), "logprob": _finite(entry.logprob)}
        for token_id, entry in table.items()
    }


def _ranked(
    table: TokenLogprobTable, count: int
) -> tuple[tuple[int, Logprob], list[tuple[int, Logprob]]]:
    """The chosen token and the ``count`` likeliest ones, the likeliest first."""
    entries = list(table.items())
    ranked = sorted(entries, key=lambda entry: entry[1].rank)
    return entries[0], [entry for entry in ranked if entry[1].rank <= count][:count]


def _entry(
    token: TextToken,
    token_id: int,
    logprob: Logprob,
    *,
    by_id: bool,
    with_ids: bool,
    with_marks: bool,
) -> dict[str, Any]:
    text, data = logprob.decoded_token, token.data(token_id)
    if not with_marks and token_id == token.token_id and not token.shown:
        text, data = "", b""
    return {
        "id": token_id if with_ids else UNSET,
        "token": _by_id(token_id) if by_id else text,
        "logprob": _finite(logprob.logprob),
        "bytes": list(data),
    }


def _by_id(token_id: int) -> str:
    return f"token_id:{token_id}"


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
