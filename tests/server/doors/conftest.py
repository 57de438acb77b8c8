"""A live server whose model reasons and calls tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.live_server import LiveServer, eventually, live_server
from support.speaking import TEMPLATE


@pytest.fixture(scope="session")
def _speaking() -> Iterator[LiveServer]:
    with live_server({"chat_template": TEMPLATE, "num_blocks": 512}) as server:
        yield server


@pytest.fixture
def speaking(_speaking: LiveServer) -> Iterator[LiveServer]:
    """Must be idle after every test; what it was told to say or hear is forgotten."""
    yield _speaking
    eventually(_speaking.is_idle)
    _speaking.executor.script = None
    _speaking.executor.fail = lambda step: None


@pytest.fixture
def prompts(speaking: LiveServer) -> list[str]:
    """The prompts that it gets, as texts."""
    heard: list[str] = []
    decode = speaking.tokenizer.decode
    speaking.executor.fail = lambda step: heard.extend(
        decode(one.request.prompt_token_ids, skip_special_tokens=False) for one in step.opened
    )
    return heard
