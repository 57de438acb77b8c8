"""What is said where no model could be had by a name, and where there is no PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.models import hub
from quire.tools.cli import main
from quire.tools.commands.nearest import hint, nearest
from support.hub import hub as serve_hub
from support.hub import repository


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache without models, in a directory without any."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("qwen3.5-9b", ["Qwen/Qwen3.5-9B"]),
        ("qwen/qwen3.5-9", ["Qwen/Qwen3.5-9B"]),
        ("SmolLM2-135M", ["HuggingFaceTB/SmolLM2-135M-Instruct"]),
        ("gemma-4-e", ["google/gemma-4-E2B-it", "google/gemma-4-E4B-it"]),
        ("Qwen/Qwen3.5-9B", []),  # it is right, and cannot be had now
        ("no-such-model", []),
        ("/", []),
        ("\0", []),
        ("q" * 100_000, []),
    ],
)
def test_the_suggested_name_that_comes_near(name: str, found: list[str]) -> None:
    assert nearest(name) == found


def test_what_lies_beside_a_path(alone: Path) -> None:
    (alone / "models" / "my-model").mkdir(parents=True)
    (alone / "models" / "my-model" / "config.json").touch()
    (alone / "models" / "my-notes").mkdir()
    (alone / "other.gguf").touch()
    assert nearest("models/my-modle") == ["models/my-model"]
    assert nearest(f"{alone}/models/my-modle/") == [f"{alone}/models/my-model"]
    assert nearest("./othr.gguf") == nearest("othr.gguf") == ["./other.gguf"]


def test_a_model_in_the_cache(monkeypatch: pytest.MonkeyPatch, alone: Path) -> None:
    held = [hub.CachedModel("us/our-chat", "0", alone)]
    monkeypatch.setattr("quire.tools.commands.nearest.cached_models", lambda: held)
    assert nearest("our-chat") == nearest("us/our-chta") == ["us/our-chat"]


@pytest.mark.parametrize("command", [["serve"], ["generate", "x", "--model"], ["chat"]])
def test_a_path_where_nothing_is(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "./qwen3.5-9b"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "model ./qwen3.5-9b: there is no such file" in line and line.endswith(
        hint("./qwen3.5-9b")
    )
    assert "did you mean Qwen/Qwen3.5-9B? " in line and "quire doctor" in line


def test_a_name_that_the_hub_does_not_know(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_hub() as (address, _):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        assert main(["pull", "Qwen/Qwen3.5-9BB"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "no such repository on Hugging Face" in line and "Qwen/Qwen3.5-9B? " in line


def test_whether_the_hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hub() as (address, _):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"{address}/a/b")
        assert hub.why_unreached() == f"{address}/a/b answers with status 404"
    with serve_hub(good=repository()) as (address, _):
        monkeypatch.setattr(
            "huggingface_hub.constants.ENDPOINT", f"{address}/owner/good/resolve/main/config.json"
        )
        assert hub.why_unreached() is None
    assert "/config.json cannot be reached: " in (hub.why_unreached() or "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in (hub.why_unreached() or "")


def without_pytorch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which has not loaded PyTorch before."""
    program = "import sys; sys.modules['torch'] = None; from quire.tools.cli import main"
    return subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(main(sys.argv[1:]))", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


def test_without_pytorch_a_command_says_so_and_doctor_what_to_do() -> None:
    refused = without_pytorch("generate", "x")
    assert refused.returncode == 1
    assert "quire: error: PyTorch is not installed" in refused.stderr
    told = without_pytorch("doctor")
    assert told.returncode == 0
    assert "torch none" in told.stdout and "1. PyTorch cannot be loaded" in told.stdout
    assert "pip install torch" in told.stdout and "C++ kernels" not in told.stdout
