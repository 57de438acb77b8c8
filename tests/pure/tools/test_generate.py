"""``quire generate``: what is wrong with prompts is told before a model is loaded."""

from __future__ import annotations

import io

import pytest

from quire.tools.cli import main
from quire.tools.commands import generate


@pytest.mark.parametrize(
    ("given", "typed", "prompts"),
    [
        ([], "a b\n", ["a b"]),
        (["-"], "line\nline\n\n", ["line\nline\n"]),
        (["one", "-"], "two", ["one", "two"]),
    ],
)
def test_a_dash_is_standard_input(
    monkeypatch: pytest.MonkeyPatch, given: list[str], typed: str, prompts: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert generate._prompts(given) == prompts


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", ["-"], "standard input is empty"),
        (b"x", ["-", "-"], "can be read once only"),
        (b"\xff\xfe", [], "standard input is not text"),
    ],
)
def test_what_is_no_prompt_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes,
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
    assert main(["generate", *arguments]) == 1
    assert message in capsys.readouterr().err
