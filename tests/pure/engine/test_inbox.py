"""What an collector gives to the task that waits for it."""

from __future__ import annotations

import asyncio

import pytest

from quire.engine import Delta
from quire.engine.output_collector import OutputCollector
from quire.errors import EngineError


def delta(token_id: int) -> Delta:
    return Delta("r", 0, "", (token_id,), None, 0.0, False)


def test_all_that_came_is_taken_at_once_and_only_once() -> None:
    async def main() -> None:
        collector = OutputCollector()
        taken = asyncio.create_task(collector.take())
        await asyncio.sleep(0)
        collector.put(delta(1))
        collector.put(delta(2))
        assert [d.token_ids for d in await taken] == [(1,), (2,)]
        taken = asyncio.create_task(collector.take())
        await asyncio.sleep(0)
        assert not taken.done()
        collector.put(delta(3))
        assert [d.token_ids for d in await taken] == [(3,)]

    asyncio.run(main())


def test_what_came_before_a_failure_is_given_first() -> None:
    async def main() -> None:
        collector = OutputCollector()
        collector.put(delta(1))
        collector.fail(EngineError("gone"))
        assert [d.token_ids for d in await collector.take()] == [(1,)]
        for _ in range(2):
            with pytest.raises(EngineError, match="gone"):
                await collector.take()

    asyncio.run(main())
