"""Log-probabilities in the three forms of the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from quire.engine import Logprob
from quire.engine.outputs import TokenLogprobTable

Json = dict[str, Any]

_LOWEST = -9999.0  # JSON has no -inf


def chat_logprobs(tables: Iterable[TokenLogprobTable], count: int) -> Json:
    """Chats: each token with the ``count`` likeliest in its place."""
    content = []
    for table in tables:
        chosen, likeliest = _ranked(table, count)
        content.append({**_entry(chosen), "top_logprobs": [_entry(entry) for entry in likeliest]})
    return {"content": content, "refusal": None}


def completion_logprobs(
    tables: Iterable[TokenLogprobTable],
    count: int,
    *,
    offset: int = 0,
    unscored: Sequence[str] = (),
) -> Json:
    """Completions: parallel lists.

    offset: of the first token in the choice's text.
    unscored: tokens before the first table: an echoed prompt's first one follows nothing.
    """
    tokens = list(unscored)
    values: list[float | None] = [None] * len(unscored)
    tops: list[dict[str, float] | None] = [None] * len(unscored)
    for table in tables:
        chosen, likeliest = _ranked(table, count)
        tokens.append(chosen.decoded_token)
        values.append(_finite(chosen.logprob))
        top: dict[str, float] = {}
        for entry in (chosen, *likeliest):  # tokens may look the same: the first one counts
            top.setdefault(entry.decoded_token, _finite(entry.logprob))
        tops.append(top)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": list(accumulate(map(len, tokens[:-1]), initial=offset)),
    }


def prompt_logprobs(tables: Sequence[TokenLogprobTable | None]) -> list[Json | None]:
    """vLLM's: for each prompt token a map from token id; null for the first one."""
    return [None if table is None else _by_token_id(table) for table in tables]


def _by_token_id(table: TokenLogprobTable) -> Json:
    return {
        str(token_id): {**entry._asdict(), "logprob": _finite(entry.logprob)}
        for token_id, entry in table.items()
    }


def _ranked(table: TokenLogprobTable, count: int) -> tuple[Logprob, list[Logprob]]:
    """The chosen token and the ``count`` likeliest ones, the likeliest first."""
    chosen = next(iter(table.values()))
    ranked = sorted(table.values(), key=lambda entry: entry.rank)
    return chosen, [entry for entry in ranked if entry.rank <= count][:count]


def _entry(logprob: Logprob) -> Json:
    token = logprob.decoded_token
    return {"token": token, "logprob": _finite(logprob.logprob), "bytes": list(token.encode())}


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
