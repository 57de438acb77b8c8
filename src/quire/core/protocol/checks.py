"""What a caller's values are checked for. Each error names the field and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.errors import RequestError, shown

MAX_INTEGER = 2**31 - 1  # where nothing else bounds an integer: what every library can hold


def check_integer(name: str, value: object, low: int, high: int = MAX_INTEGER) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, got {shown(value)}", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be from {low} to {high}, got {shown(value)}", name)


def check_token_ids(
    name: str, values: object, *, most: int = MAX_INTEGER, highest: int = MAX_INTEGER
) -> tuple[int, ...]:
    """``values`` if they are at most ``most`` token ids from 0 to ``highest``."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise RequestError(f"{name} must be a list of token ids, got {shown(values)}", name)
    if len(values) > most:
        raise RequestError(f"{name} must hold at most {most} token ids, got {len(values)}", name)
    token_ids = tuple(values)
    # The three passes over what may be a long prompt run in C.
    if not set(map(type, token_ids)) <= {int}:
        for value in token_ids:
            if isinstance(value, bool) or not isinstance(value, int):
                raise RequestError(f"{name} must hold token ids, got {shown(value)}", name)
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) <= highest):
        wrong = next(value for value in token_ids if not 0 <= value <= highest)
        which = "any" if highest == MAX_INTEGER else "the"
        raise RequestError(
            f"{name} holds token id {shown(wrong)}, outside {which} vocabulary (0 to {highest})",
            name,
        )
    return token_ids


def check_unicode(name: str, text: str) -> None:
    """RequestError if ``text`` holds half a character, which no tokenizer can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} is not valid Unicode: {error}", name) from error


# -- vLLM's parameters that ask for what is so anyway --------------------------------------------

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "logits_processors": (),
    "guided_decoding": (),
    "truncate_prompt_tokens": (),
    "extra_args": (),
    "spaces_between_special_tokens": (True,),
    "prompt_logprob_token_ids": (),
    "prompt_logprob_start": (0,),
    "logprob_token_ids": (),
    "flat_logprobs": (False,),
    "output_kind": (0, 2),  # whole outputs, and those at the end: both are what a call returns
    "stream_interval": (1,),
    "skip_clone": (True, False),
    "skip_reading_prefix_cache": (False,),
    "repetition_detection": (),
    "routed_experts_prompt_start": (0,),
    "trace_decode_token_ids": (),
}
"""Values beside None, and what is empty."""


def check_neutral(given: Sequence[object]) -> None:
    """RequestError for a value that would do something; ``given`` in the order of ``NEUTRAL``."""
    for (name, values), value in zip(NEUTRAL.items(), given, strict=True):
        if value is None or value in ((), [], {}):
            continue
        plain = getattr(value, "value", value)  # of an enum
        if plain not in values or isinstance(plain, bool) != isinstance(values[0], bool):
            allowed = " or ".join(map(str, (None, *values)))
            raise RequestError(f"{name} may only be {allowed} here, got {shown(value)}", name)
