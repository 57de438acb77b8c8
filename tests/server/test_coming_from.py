"""What docs/howto/coming-from.md says of flags and paths is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from support.commands import flags_of_commands
from support.live_server import MODEL, scripted_engine

PAGE = Path(quire.__file__).parents[2] / "docs/howto/coming-from.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no sources")

_FLAG = re.compile(r"--[a-z][\w-]+")
_PATH = re.compile(r"`(/[\w/-]+)`")
_COMMAND = re.compile(r"`quire (\w+)")


def rows() -> Iterator[tuple[str, str]]:
    """What it is called there, and what is here."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            _, theirs, ours, _ = line.split("|")
            yield theirs, ours


def test_flags_are_there_or_not_as_the_page_says() -> None:
    commands = flags_of_commands()
    flags, serve = set().union(*commands.values()), commands["serve"]
    for theirs, ours in rows():
        assert set(_FLAG.findall(ours)) <= flags, ours
        assert set(_COMMAND.findall(ours)) <= commands.keys(), ours
        if ours.startswith(" the same"):
            assert set(_FLAG.findall(theirs)) <= serve, theirs
        elif ours.startswith(" not there"):
            assert not set(_FLAG.findall(theirs)) & serve, theirs


def test_paths_are_there_or_not_as_the_page_says() -> None:
    engine, _ = scripted_engine()
    app = create_app(engine, [MODEL], ServerConfig())
    paths = {getattr(route, "path", "") for route in app.routes}
    for theirs, ours in rows():
        for path in _PATH.findall(theirs):
            assert (path in paths) != ours.startswith(" not there"), path
