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


def chat_logprobs(tables: Iterable[TokenLogprobTable], count: int) -> Json:
    """Chats: each token with the ``count`` likeliest in its place."""
    return {"content": (_content(table, count) for table in tables), "refusal": None}


def completion_logprobs(
    tables: Sequence[TokenLogprobTable],
    count: int,
    *,
    offset: int = 0,
    unscored: Sequence[str] = (),
) -> Json:
    """Completions: parallel lists.

    offset: of the first token in the choice's text.
    unscored: tokens before the first table: an echoed prompt's first one follows nothing.
    """
    chosen = [table.chosen for table in tables]
    tokens = [*unscored, *(entry.decoded_token for entry in chosen)]
    nothing = [None] * len(unscored)
    return {
        "tokens": tokens,
        "token_logprobs": [*nothing, *(_finite(entry.logprob) for entry in chosen)],
        "top_logprobs": chain(nothing, (_top(table, count) for table in tables)),
        "text_offset": list(accumulate(map(len, tokens[:-1]), initial=offset)),
    }


def prompt_logprobs(tables: Iterable[TokenLogprobTable | None]) -> Iterator[Json | None]:
    """vLLM's: for each prompt token a map from token id; null for the first one."""
    return (None if table is None else _by_token_id(table) for table in tables)


def _top(table: TokenLogprobTable, count: int) -> dict[str, float]:
    chosen, likeliest = _ranked(table, count)
    top: dict[str, float] = {}
    for entry in (chosen, *likeliest):  # tokens may look the same: the first one counts
        top.setdefault(entry.decoded_token, _finite(entry.logprob))
    return top


def _content(table: TokenLogprobTable, count: int) -> Json:
    chosen, likeliest = _ranked(table, count)
    return {**_entry(chosen), "top_logprobs": [_entry(entry) for entry in likeliest]}


def _by_token_id(table: TokenLogprobTable) -> Json:
    return {
        str(token_id): {**entry._asdict(), "logprob": _finite(entry.logprob)}
        for token_id, entry in table.items()
    }


def _ranked(table: TokenLogprobTable, count: int) -> tuple[Logprob, list[Logprob]]:
    """The chosen token and the ``count`` likeliest ones, the likeliest first."""
    entries = list(table.values())
    ranked = sorted(entries, key=lambda entry: entry.rank)
    return entries[0], [entry for entry in ranked if entry.rank <= count][:count]


def _entry(logprob: Logprob) -> Json:
    token = logprob.decoded_token
    return {"token": token, "logprob": _finite(logprob.logprob), "bytes": list(token.encode())}


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
