"""Who is asked for drafts, and in which order."""

from __future__ import annotations

from quire.config import MOST_DRAFTS, SpeculativeConfig
from quire.drafting.proposal import Drafter
from quire.drafting.speculation import Speculation
from quire.errors import ConfigError


def speculation_of(config: SpeculativeConfig | None) -> Speculation | None:
    """As these settings ask for it; without any, for requests that bring a prediction."""
    if config is not None:
        return Speculation(drafters_of(config), config.num_speculative_tokens)
    drafters = prediction_drafters()
    return Speculation(drafters, MOST_DRAFTS, predicted_only=True) if drafters else None


def drafters_of(config: SpeculativeConfig) -> list[Drafter]:
    """Whoever knows most comes first: what a request predicts, texts, then a model."""
    drafters: list[Drafter] = prediction_drafters()
    if config.method in ("ngram", "suffix", "auto"):
        drafters.append(_text_drafter(config))
    return drafters


def prediction_drafters() -> list[Drafter]:
    """For requests that bring a prediction, with or without speculation. None without the C++."""
    try:
        from quire.drafting.prediction import PredictionDrafter
    except ImportError:
        return []
    return [PredictionDrafter()]


def _text_drafter(config: SpeculativeConfig) -> Drafter:
    try:
        from quire.drafting.ngram import NgramDrafter
        from quire.drafting.suffix import SuffixDrafter
    except ImportError as error:
        raise ConfigError(
            f'speculative_config: method "{config.method}" needs the drafters in C++, and this '
            "installation has none (was there a compiler when it was installed?). Install a "
            f'compiler and then Quire again, or choose method "draft" with a model; {error}'
        ) from None
    if config.method == "ngram":
        return NgramDrafter(config.prompt_lookup_max, config.prompt_lookup_min)
    return SuffixDrafter(config)
