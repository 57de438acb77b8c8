"""Log-probabilities in the three forms of the API.

What there may be many of is made as it is rendered: see ``rendering``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

from quire.engine import Logprob
from quire.engine.outputs import TokenLogprobTable

Json = dict[str, Any]

_LOWEST = -9999.0  # JSON has no -inf


def chat_logprobs(tables: Iterable[TokenLogprobTable], count: int, *, by_id: bool = False) -> Json:
    """Chats: each token with the ``count`` likeliest in its place.

    by_id: a token is told as "token_id:7".
    """
    return {"content": (_content(table, count, by_id) for table in tables), "refusal": None}


def completion_logprobs(
    tables: Sequence[TokenLogprobTable],
    count: int,
    *,
    offset: int = 0,
    unscored: Sequence[tuple[int, str]] = (),
    by_id: bool = False,
) -> Json:
    """Completions: parallel lists.

    offset: of the first token in the choice's text.
    unscored: tokens before the first table: an echoed prompt's first one follows nothing.
    by_id: a token is told as "token_id:7".
    """
    chosen = [(table.token_id, table.chosen) for table in tables]
    texts = [*(text for _, text in unscored), *(entry.decoded_token for _, entry in chosen)]
    names = [_by_id(id) for id, _ in (*unscored, *chosen)] if by_id else texts
    nothing = [None] * len(unscored)
    return {
        "tokens": names,
        "token_logprobs": [*nothing, *(_finite(entry.logprob) for _, entry in chosen)],
        "top_logprobs": chain(nothing, (_top(table, count, by_id) for table in tables)),
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=offset)),
    }


def prompt_logprobs(tables: Iterable[TokenLogprobTable | None]) -> Iterator[Json | None]:
    """vLLM's: for each prompt token a map from token id; null for the first one."""
    return (None if table is None else _by_token_id(table) for table in tables)


def _top(table: TokenLogprobTable, count: int, by_id: bool) -> dict[str, float]:
    chosen, likeliest = _ranked(table, count)
    top: dict[str, float] = {}
    for token_id, entry in (chosen, *likeliest):  # tokens may look the same: the first one counts
        name = _by_id(token_id) if by_id else entry.decoded_token
        top.setdefault(name, _finite(entry.logprob))
    return top


def _content(table: TokenLogprobTable, count: int, by_id: bool) -> Json:
    chosen, likeliest = _ranked(table, count)
    return {
        **_entry(*chosen, by_id),
        "top_logprobs": [_entry(*entry, by_id) for entry in likeliest],
    }


def _by_token_id(table: TokenLogprobTable) -> Json:
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


def _entry(token_id: int, logprob: Logprob, by_id: bool) -> Json:
    text = logprob.decoded_token
    return {
        "token": _by_id(token_id) if by_id else text,
        "logprob": _finite(logprob.logprob),
        "bytes": list(text.encode()),
    }


def _by_id(token_id: int) -> str:
    return f"token_id:{token_id}"


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
