"""vLLM's parameters that ask for what is so anyway: they may be as vLLM has them by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.errors import RequestError, shown

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
