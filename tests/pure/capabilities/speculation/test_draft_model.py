"""Who leaves drafts to a model: where there is one, and after everybody else."""

from __future__ import annotations

from typing import Any

import pytest

from quire.capabilities.speculation import speculation_of
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.memory import root_hash
from quire.core.protocol import TO_DRAFT, Request
from quire.core.scheduling.sequence import Sequence
from quire.text.params import SamplingParams


@pytest.mark.parametrize(
    ("options", "is_there"),
    [
        ({"method": "draft"}, True),
        ({"method": "draft_model", "model": "m"}, True),
        ({"method": "auto", "model": "m"}, True),
        ({"method": "auto"}, False),
        ({"method": "ngram"}, False),
    ],
)
def test_it_is_asked_last_where_there_is_a_model(options: dict[str, Any], is_there: bool) -> None:
    drafters = speculation_of(SpeculativeConfig.of(options)).drafters
    assert [drafter.name == "draft" for drafter in drafters].count(True) == is_there
    if not is_there:
        return
    request = Request("a", (1, 2), SamplingParams(), 9, seed=0)
    proposal = drafters[-1].propose(request, Sequence(0, 0, (1, 2), root_hash("")), 3)
    assert proposal is not None
    assert list(proposal.tokens) == [TO_DRAFT] * 3 == [TO_DRAFT] * len(proposal.chances)
