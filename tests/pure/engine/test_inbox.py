"""What an collector gives to the task that waits for it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from quire.core.errors import EngineError
from quire.core.protocol import TokenLogprobs
from quire.engine.delivery import OutputCollector
from quire.engine.outputs import Delta, RequestOutput, TokenLogprobTable, joined
from quire.text.text_tokens import TextToken
from quire.text.tokenizer import TokenTexts


def delta(token_id: int) -> Delta:
    return Delta("r", 0, "", (token_id,), None, 0.0, False)


def test_all_that_came_is_taken_at_once_and_only_once() -> None:
    async def main() -> None:
        collector = OutputCollector()
        taken = asyncio.create_task(collector.take())
        await asyncio.sleep(0)
        assert collector.put(delta(1)) and collector.put(delta(2))
        collector.wake()
        assert [d.token_ids for d in await taken] == [(1,), (2,)]
        taken = asyncio.create_task(collector.take())
        await asyncio.sleep(0)
        assert not taken.done()
        collector.put(delta(3))
        collector.wake()
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


NAMES = TokenTexts(lambda token_id: str(token_id).encode(), frozenset())


def gained(
    token: int, index: int = 0, *, first: bool = False, end: str | None = None, final: bool = False
) -> Delta:
    """One more token of one of two outputs; its text is its number, and so is its probability."""
    table = TokenLogprobTable(TokenLogprobs(-float(token), 1, ()), TextToken(NAMES, token))
    output = cast(RequestOutput, "all of it") if final else None
    return Delta("r", index, f"{token} ", (token,), (table,), token / 10, first, end, None, output)


def given(interval: int | None, *deltas: Delta) -> list[list[Delta]]:
    """What there is to take after each."""
    collector = OutputCollector(interval)

    async def main() -> list[list[Delta]]:
        return [await collector.take() if collector.put(delta) else [] for delta in deltas]

    return asyncio.run(main())


DELTAS = (
    gained(1, first=True),
    gained(2),
    gained(11, index=1, first=True),
    gained(3),
    gained(12, index=1),
    gained(4),
    gained(13, index=1, end="stop"),
    gained(5),
    gained(6, end="length", final=True),
)


@pytest.mark.parametrize("interval", [1, 2, 3, 100, None])
def test_gathered_tokens_lose_nothing_and_beginnings_and_ends_do_not_wait(
    interval: int | None,
) -> None:
    taken = given(interval, *DELTAS)
    for index, tokens in ((0, (1, 2, 3, 4, 5, 6)), (1, (11, 12, 13))):
        told = [delta for deltas in taken for delta in deltas if delta.index == index]
        alone = [one for delta in told for one in delta.singly()]
        assert alone == [delta for delta in DELTAS if delta.index == index]
        assert "".join(delta.text for delta in told) == "".join(f"{token} " for token in tokens)
        assert sum((delta.token_ids for delta in told), ()) == tokens
        tables = [table for delta in told for table in delta.logprobs or ()]
        assert [table.chosen.logprob for table in tables] == [-token for token in tokens]
        assert [delta.seconds for delta in told] == [next(one.singly()).seconds for one in told]
        assert [delta.first for delta in told] == [True, *[False] * (len(told) - 1)]
    assert [delta.finish_reason for delta in taken[6]] == ["stop"]
    assert [(delta.finish_reason, delta.final) for delta in taken[8]] == [("length", "all of it")]
    if interval is None:
        assert [len(deltas) for deltas in taken] == [0, 0, 0, 0, 0, 0, 1, 0, 1]
    else:
        assert [delta.token_ids for delta in (*taken[0], *taken[2])] == [(1,), (11,)]
        between = [delta.token_ids for delta in taken[3] + taken[5] + taken[7]]
        assert between[:1] == {1: [(3,)], 2: [(2, 3)], 3: [(2, 3, 4)], 100: []}[interval]


def test_what_ends_a_request_comes_after_all_of_its_outputs() -> None:
    ended = gained(7, end="error", final=True)._replace(token_ids=(), text="", logprobs=None)
    *_, last = given(
        10, gained(1, first=True), gained(11, 1, first=True), gained(2), gained(12, 1), ended
    )
    assert [(delta.index, delta.token_ids) for delta in last] == [(1, (12,)), (0, (2,))]
    assert last[-1].final == "all of it" and last[-1].finish_reason == "error"


def test_drafted_tokens_count_each() -> None:
    three = joined([gained(2), gained(3), gained(4)])
    taken = given(4, gained(1, first=True), three, gained(5), gained(6))
    assert [[delta.token_ids for delta in deltas] for deltas in taken] == [
        [(1,)], [], [(2, 3, 4, 5)], []
    ]  # fmt: skip
    assert [one.token_ids for one in taken[2][0].singly()] == [(2,), (3,), (4,), (5,)]
