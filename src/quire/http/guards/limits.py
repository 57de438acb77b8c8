"""How much one request may ask for, all its choices together."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import RequestError, shown
from quire.core.protocol import SamplingParams
from quire.engine.input_processor import InputProcessor

MOST_CHOICES = 4096
_CHARACTER, _SPECIAL = 4, 16  # most tokens of a character, and around a text
MOST_LOGPROBS = 2**22  # a quarter of a kilobyte each, in memory and again in the answer


def check_answer(
    num_prompts: int,
    params: SamplingParams,
    input_processor: InputProcessor,
    max_logprobs: int | None = None,
    prompts: Sequence[str | Sequence[int]] | None = None,
) -> None:
    """RequestError if the answer could become larger than a server should have to hold.

    max_logprobs: the operator's own bound for each token.
    prompts: where they are at hand; else each may be as long as the model takes.
    """
    for name in ("logprobs", "prompt_logprobs"):
        if max_logprobs is not None and (getattr(params, name) or 0) > max_logprobs:
            raise RequestError(f"{name} must be at most {max_logprobs} (--max-logprobs)", name)
    if num_prompts * params.width > MOST_CHOICES:
        raise RequestError(
            f"the number of prompts times n (or best_of, or beam_width) must be at most "
            f"{MOST_CHOICES:,}, got {num_prompts:,} times {params.width}",
            "n",
        )
    each = input_processor.most_tokens(params)
    counts = {
        "logprobs": (num_prompts * params.width * each, params.sample_logprobs),
        "prompt_logprobs": (
            _most_tokens(num_prompts, input_processor.max_model_len or each, prompts),
            params.prompt_logprobs,
        ),
    }
    for name, (tokens, likeliest) in counts.items():
        if likeliest is not None and tokens * (likeliest + 1) > MOST_LOGPROBS:
            raise RequestError(
                f"an answer may hold at most {MOST_LOGPROBS:,} {name}; {shown(tokens)} tokens with "
                f"{likeliest + 1} each would be more: ask for fewer, or for fewer or shorter "
                "outputs",
                name,
            )


def _most_tokens(count: int, longest: int, prompts: Sequence[str | Sequence[int]] | None) -> int:
    """Of ``count`` prompts; a character may be as many tokens as it has bytes."""
    if prompts is None:
        return count * longest
    lengths = (
        _CHARACTER * len(one) + _SPECIAL if isinstance(one, str) else len(one) for one in prompts
    )
    return sum(min(length, longest) for length in lengths)
