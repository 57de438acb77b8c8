"""Draft models in lives of real engines: no bit of a text may depend on one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire import SamplingParams
from support.drafting import Verified
from support.engine_lives import Life, alone, draw_requests, serve
from support.law_of_bits import FORMS, first_difference

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SWAP, RECOMPUTE = {"squeezed": True, "swap": True}, {"squeezed": True}
CACHED, CHUNKS = {"caching": True}, {"budgets": (8, 150)}
_ONE_BY_ONE = (0, 2, 3, 5, 9, 14)


def drafted(draft: Path, **options: Any) -> dict[str, Any]:
    """Settings of an engine for which a model drafts."""
    return {"speculative_config": {"method": "draft", "model": str(draft), **options}}


def check_drafts(
    drafts: Sequence[Path],
    form: str,
    seed: int,
    events: Mapping[str, Any],
    signs: Sequence[str],
    least: int,
) -> None:
    """A life with each of these draft models gives the bits of every request alone.

    drafts: the first is the target, of whose drafts all must be right; others draft in float32.
    events: what happens in the life, of which ``signs`` must be seen, and ``least`` drafts.
    """
    rng, target = random.Random(seed), drafts[0]
    settings = {**FORMS[form], "block_size": rng.choice((4, 8, 16))}
    asked = draw_requests(rng, len(_ONE_BY_ONE))
    expected = alone(target, settings, asked)
    for draft in drafts if form == "float32" else drafts[:1]:
        verified: list[Verified] = []
        found, watch = serve(
            target,
            {**settings, **drafted(draft, quantization=settings.get("quantization"))},
            asked,
            Life(_ONE_BY_ONE, **events, seed=seed),
            prepare=lambda llm: verified.append(Verified(llm)),  # noqa: B023
        )
        for number, one in enumerate(asked):
            name = str(number)
            difference = first_difference(number, one, found[name], expected[name], watch.pieces)
            assert difference is None, difference
        happened = watch.happened()
        assert all(happened[sign] > 0 for sign in signs), happened
        assert verified[0].drafts > least
        assert (verified[0].right == verified[0].drafts) == (draft == target)
