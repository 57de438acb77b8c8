"""Fixtures: a live server for each test, and one that the tests which leave it as it was share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.live_server import LiveServer, eventually, live_server


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as server:
        yield server
        eventually(server.is_idle)


@pytest.fixture(scope="session")
def _shared() -> Iterator[LiveServer]:
    with live_server() as server:
        yield server


@pytest.fixture
def shared(_shared: LiveServer) -> Iterator[LiveServer]:
    """Must be idle after every test, and is."""
    yield _shared
    eventually(_shared.is_idle)
