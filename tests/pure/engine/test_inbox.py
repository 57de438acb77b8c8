"""What an inbox gives to the task that waits for it."""

from __future__ import annotations

import asyncio

import pytest

from quire.engine import Delta
from quire.engine.inbox import Inbox
from quire.errors import EngineError


def delta(token_id: int) -> Delta:
    return Delta("r", 0, "", (token_id,), None, 0.0, False)


def test_all_that_came_is_taken_at_once_and_only_once() -> None:
    async def main() -> None:
        inbox = Inbox()
        taken = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        inbox.put(delta(1))
        inbox.put(delta(2))
        assert [d.token_ids for d in await taken] == [(1,), (2,)]
        taken = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        assert not taken.done()
        inbox.put(delta(3))
        assert [d.token_ids for d in await taken] == [(3,)]

    asyncio.run(main())


def test_what_came_before_a_failure_is_given_first() -> None:
    async def main() -> None:
        inbox = Inbox()
        inbox.put(delta(1))
        inbox.fail(EngineError("gone"))
        assert [d.token_ids for d in await inbox.take()] == [(1,)]
        for _ in range(2):
            with pytest.raises(EngineError, match="gone"):
                await inbox.take()

    asyncio.run(main())
