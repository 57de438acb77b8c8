"""``short``: each token of a prompt counts like a hundredth of a second of waiting less."""

from __future__ import annotations

import pytest

from recipes.recipe import Recipe

_QUEUE = "src/quire/core/scheduling/request_queue.py"
_LAST = '    FAIR = "fair"\n'
_RANK = "        return request.arrival + PRIORITY_SECONDS * request.priority\n"

RECIPE = Recipe(
    "A scheduling policy",
    [
        ("src/quire/core/protocol/decision.py", _LAST, f'{_LAST}    SHORT = "short"\n'),
        (
            _QUEUE,
            _RANK,
            f"""        if self.policy is SchedulingPolicy.SHORT:
            return request.arrival + 0.01 * len(request.prompt_token_ids)
{_RANK}""",
        ),
        (
            "src/quire/engine/config/engine.py",
            '"fcfs", "priority", "fair"',
            '"fcfs", "priority", "fair", "short"',
        ),
    ],
)


def check() -> None:
    """It can be chosen, and orders requests."""
    from quire.core.errors import ConfigError
    from quire.core.memory import PagedAllocator
    from quire.core.protocol import Request, SchedulingPolicy
    from quire.engine.config import EngineConfig
    from quire.text.params import SamplingParams
    from support.schedulers import make_scheduler

    assert EngineConfig.create({"scheduling_policy": "short"}).scheduling_policy == "short"
    with pytest.raises(ConfigError, match="short"):
        EngineConfig.create({"scheduling_policy": "longest"})
    policy = SchedulingPolicy("short")
    scheduler = make_scheduler(PagedAllocator(64, 4), max_num_seqs=1, policy=policy)
    for name, length, arrival in (("long", 40, 0.0), ("short", 4, 0.1), ("late", 4, 9.0)):
        params = SamplingParams(max_tokens=1)
        scheduler.add(Request(name, tuple(range(length)), params, 1, seed=1, arrival=arrival))
    assert [group.request.request_id for group in scheduler.waiting] == ["short", "long", "late"]
