"""Who is asked for drafts, and in which order."""

from __future__ import annotations

from quire.config import SpeculativeConfig
from quire.drafting.draft_model import DraftModelDrafter
from quire.drafting.proposal import Drafter
from quire.drafting.speculation import Speculation


def speculation_of(config: SpeculativeConfig) -> Speculation:
    """As these settings ask for it."""
    drafters: list[Drafter] = []
    if config.has_draft_model:
        drafters.append(DraftModelDrafter())
    return Speculation(drafters, config.num_speculative_tokens)
