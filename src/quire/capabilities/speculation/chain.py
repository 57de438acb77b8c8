"""Who is asked for drafts, and in which order."""

from __future__ import annotations

from quire.capabilities.speculation.config import MOST_DRAFTS, SpeculativeConfig
from quire.capabilities.speculation.proposal import Drafter, DraftModelDrafter
from quire.capabilities.speculation.speculation import Speculation
from quire.kernels.compiled import DRAFTERS, need, why_missing


def speculation_of(config: SpeculativeConfig | None) -> Speculation | None:
    """The speculation that settings ask for; without any, for requests that bring a prediction."""
    if config is not None:
        return Speculation(drafters_of(config), config.num_speculative_tokens)
    drafters = prediction_drafters()
    return Speculation(drafters, MOST_DRAFTS, predicted_only=True) if drafters else None


def drafters_of(config: SpeculativeConfig) -> list[Drafter]:
    """The drafter that knows most comes first: what a request predicts, texts, then a model."""
    drafters: list[Drafter] = prediction_drafters()
    if config.method in ("ngram", "suffix", "auto"):
        drafters.append(_text_drafter(config))
    if config.has_draft_model:
        drafters.append(DraftModelDrafter())
    return drafters


def prediction_drafters() -> list[Drafter]:
    """Drafters for requests that bring a prediction; none without the C++."""
    if why_missing(DRAFTERS) is not None:
        return []
    from quire.capabilities.speculation.prediction import PredictionDrafter

    return [PredictionDrafter()]


def _text_drafter(config: SpeculativeConfig) -> Drafter:
    what = f'speculative_config: method "{config.method}" needs the drafters'
    need(DRAFTERS, what, 'choose method "draft" with a model')
    from quire.capabilities.speculation.own_texts import NgramDrafter
    from quire.capabilities.speculation.suffix import SuffixDrafter

    if config.method == "ngram":
        return NgramDrafter(config.prompt_lookup_max, config.prompt_lookup_min)
    return SuffixDrafter(config)
