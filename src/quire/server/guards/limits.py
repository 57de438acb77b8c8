"""How much one request may ask for, all its choices together."""

from __future__ import annotations

from quire.engine import InputProcessor
from quire.errors import RequestError, shown
from quire.protocol import SamplingParams

MOST_CHOICES = 4096
MOST_LOGPROBS = 2**22  # a quarter of a kilobyte each, in memory and again in the answer


def check_answer(num_prompts: int, params: SamplingParams, input_processor: InputProcessor) -> None:
    """RequestError if the answer could become larger than a server should have to hold."""
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
            num_prompts * (input_processor.max_model_len or each),
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
