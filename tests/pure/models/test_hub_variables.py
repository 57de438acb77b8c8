"""The variables of Hugging Face's that the documentation names do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from support.hub import hub, repository

PAGE = Path(__file__).parents[3] / "docs/howto/install.md"
TOKEN, NAME = "hf_sesame", "owner/good"


class Pulled(NamedTuple):
    status: int
    directory: str
    messages: str


def pull(home: Path, address: str, variables: Mapping[str, str] = {}) -> Pulled:
    """``quire pull`` in a process of its own, since the library reads variables once."""
    kept = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
    own = {"HOME": str(home), "HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "quire", "pull", NAME],
        env={**kept, **own, **variables}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return Pulled(done.returncode, done.stdout.strip(), done.stderr)


def an_endpoint(tmp_path: Path) -> None:
    with hub(good=repository()) as (address, fetched):
        assert pull(tmp_path, address).status == 0 and len(fetched) == 2


def a_token(tmp_path: Path) -> None:
    with hub(TOKEN, good=repository()) as (address, _):
        assert pull(tmp_path, address, {"HF_TOKEN": TOKEN}).status == 0


def a_file_with_a_token(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(TOKEN)
    with hub(TOKEN, good=repository()) as (address, _):
        assert pull(tmp_path, address, {"HF_TOKEN_PATH": str(tmp_path / "secret")}).status == 0


def no_token(tmp_path: Path) -> None:
    with hub(TOKEN, good=repository()) as (address, _):
        silent = {"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
        refused = pull(tmp_path, address, silent)
        assert refused.status == 1 and "or set HF_TOKEN" in refused.messages


def a_home(tmp_path: Path) -> None:
    with hub(good=repository()) as (address, _):
        found = pull(tmp_path, address, {"HF_HOME": str(tmp_path / "mine")})
        assert found.directory.startswith(f"{tmp_path}/mine/hub/")


def a_cache(tmp_path: Path) -> None:
    both = {"HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "mine")}
    with hub(good=repository()) as (address, _):
        assert pull(tmp_path, address, both).directory.startswith(f"{tmp_path}/cache/")


def a_cache_of_all_programs(tmp_path: Path) -> None:
    with hub(good=repository()) as (address, _):
        found = pull(tmp_path, address, {"XDG_CACHE_HOME": str(tmp_path / "all")})
        assert found.directory.startswith(f"{tmp_path}/all/huggingface/hub/")


def no_hub(tmp_path: Path) -> None:
    with hub(good=repository()) as (address, fetched):
        refused = pull(tmp_path, address, {"TRANSFORMERS_OFFLINE": "1"})
        assert refused.status == 1 and "(HF_HUB_OFFLINE)" in refused.messages and not fetched
        there = pull(tmp_path, address)
        assert there.directory.startswith(f"{tmp_path}/.cache/huggingface/hub/")
    assert pull(tmp_path, address, {"HF_HUB_OFFLINE": "1"})[:2] == (0, there.directory)


def a_proxy(tmp_path: Path) -> None:
    with hub(good=repository()) as (address, fetched):
        assert pull(tmp_path, "http://hub.invalid", {"HTTP_PROXY": address}).status == 0
        assert len(fetched) == 2


TESTED = {
    "HF_TOKEN": a_token,
    "HF_TOKEN_PATH": a_file_with_a_token,
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": no_token,
    "HF_HOME": a_home,
    "HF_HUB_CACHE": a_cache,
    "XDG_CACHE_HOME": a_cache_of_all_programs,
    "HF_ENDPOINT": an_endpoint,
    "HF_HUB_OFFLINE": no_hub,
    "HTTP_PROXY": a_proxy,
}


@pytest.mark.parametrize("variable", TESTED)
def test_a_variable_does_what_the_table_says(variable: str, tmp_path: Path) -> None:
    TESTED[variable](tmp_path)


@pytest.mark.skipif(not PAGE.exists(), reason="Quire runs without its sources")
def test_every_variable_of_the_table_is_tested() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)`.*\|$", PAGE.read_text(), re.M)
    assert rows == [*TESTED]
