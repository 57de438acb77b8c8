"""``truncate_prompt_tokens``: to how many tokens a prompt is cut, checked alike by all doors."""

from __future__ import annotations

from quire.core.errors import RequestError

_FIELD = "truncate_prompt_tokens"


def most_tokens(asked: int | None, max_model_len: int | None, output: int = 0) -> int | None:
    """The number of tokens that are kept; None: all.

    output: tokens for which -1 leaves room.
    """
    if asked == 0:
        raise RequestError(f"{_FIELD} must be at least 1, or -1 for as many as fit", _FIELD)
    if asked is None or max_model_len is None:
        return None if asked == -1 else asked
    if asked > max_model_len:
        raise RequestError(
            f"{_FIELD} must be at most max_model_len, {max_model_len}, got {asked}", _FIELD
        )
    return max(1, max_model_len - output) if asked == -1 else asked
