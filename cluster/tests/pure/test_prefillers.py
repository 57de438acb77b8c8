"""What becomes of a prompt that prefill replicas are asked for, whatever they do."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("ray")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Ray itself is warned of
    from ray.exceptions import ActorDiedError

    from quire_cluster import prefillers
    from quire_cluster.prefillers import Prefillers
from quire_cluster.routing import Hint
from quire_cluster.rules import Pairing

PEER = ("10.0.0.7", 14579)
PROMPT = {"prompt_token_ids": tuple(range(200)), "cache_salt": "s", "adapter": "poet"}


class Handle:
    """Of a deployment whose replica does what it is told: gives a sign, answers, fails, hangs."""

    def __init__(self, *deeds: Any) -> None:
        self._deeds = deeds
        self.hints: list[Hint] = []
        self.left = False

    def options(self, **options: Any) -> Handle:
        assert options == {"stream": True, "method_name": "prefill"}
        return self

    def remote(self, prompt: Any, hint: Hint) -> Handle:
        self.hints.append(hint)
        self._signs = self._play()
        return self

    def __anext__(self) -> Any:
        return anext(self._signs)

    def cancel(self) -> None:
        self.left = True

    async def _play(self) -> AsyncGenerator[Any, None]:
        for deed in self._deeds:
            if deed == "hangs":
                await asyncio.sleep(60)
            if isinstance(deed, Exception):
                raise deed
            yield deed


@pytest.mark.parametrize(
    ("deeds", "peer", "asked_again"),
    [
        ([None, None, PEER], PEER, True),
        ([None, ActorDiedError()], None, True),
        ([None], None, True),
        (["hangs"], None, False),
        ([None, "hangs"], None, False),
    ],
    ids=["answers", "dies", "breaks off", "is not there", "hangs"],
)
def test_whatever_they_do(
    deeds: list[Any], peer: Any, asked_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefillers, "TAKEN_WITHIN", 0.01)
    handle: Any = Handle(*deeds)
    own = Prefillers(handle, Pairing(100), 0.01)
    assert not own.pays(100) and own.pays(101)
    assert asyncio.run(own.prefill(PROMPT)) == peer
    assert handle.left, "nobody goes on computing for us"
    assert own.pays(101) is asked_again


def test_prompts_that_begin_alike_are_told_to() -> None:
    handle: Any = Handle(None, PEER)
    own = Prefillers(handle, Pairing(0), 1.0)

    async def ask() -> None:
        for change in ({}, {"prompt_token_ids": tuple(range(170))}, {"cache_salt": "other"}):
            await own.prefill(PROMPT | change)

    asyncio.run(ask())
    first, shorter, other = (hint.prefix for hint in handle.hints)
    assert len(shorter.pieces) == 5
    assert first.pieces[:5] == shorter.pieces
    assert not {*first.pieces} & {*other.pieces}
