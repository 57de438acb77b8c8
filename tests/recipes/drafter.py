"""``repeat``: a text goes on with its last token again."""

from __future__ import annotations

from recipes.recipe import Recipe

_CHAIN, _CONFIG = (f"src/quire/capabilities/speculation/{name}.py" for name in ("chain", "config"))
_DRAFTER = '''"""Drafts of a text that goes on with its last token."""

from __future__ import annotations

from quire.capabilities.speculation.proposal import Proposal
from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence


class RepeatDrafter:
    """See ``Drafter``."""

    name = "repeat"
    num_bytes = 0

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        """See ``Drafter``."""
        return Proposal([sequence.token_ids[-1]] * most, [0.9] * most, 1)

    def close(self, seq_id: int) -> None:
        """Nothing is kept."""
'''

RECIPE = Recipe(
    "A drafter",
    [
        (_CONFIG, '"suffix", "draft")', '"suffix", "draft", "repeat")'),
        (
            _CHAIN,
            "import Drafter, DraftModelDrafter\n",
            "import Drafter, DraftModelDrafter\n"
            "from quire.capabilities.speculation.repeat import RepeatDrafter\n",
        ),
        (
            _CHAIN,
            "    if config.has_draft_model:\n",
            '    if config.method == "repeat":\n'
            "        drafters.append(RepeatDrafter())\n"
            "    if config.has_draft_model:\n",
        ),
    ],
    {"src/quire/capabilities/speculation/repeat.py": _DRAFTER},
)


def check() -> None:
    """It drafts, its drafts are verified, and no text changes."""
    from quire import LLM, SamplingParams

    params = SamplingParams(max_tokens=48, temperature=0.0, logit_bias={65: 100.0})
    plain = LLM(kv_cache_memory_bytes="4MiB")
    drafting = LLM(kv_cache_memory_bytes="4MiB", speculative_config={"method": "repeat"})
    for biased in ({}, *[{65: 100.0}] * 4):  # the first ones may seem slow
        params = SamplingParams(max_tokens=48, temperature=0.0, logit_bias=biased)
        expected, found = (llm.generate("Once upon a time", params) for llm in (plain, drafting))
        assert found[0].outputs[0].token_ids == expected[0].outputs[0].token_ids
    assert drafting.engine.stats.num_accepted_tokens > 0
