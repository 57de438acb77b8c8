"""``quire models``: what is here, and what of it can be served for how many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.models.hub import CachedModel
from quire.tools.cli import main
from quire.tools.commands import models


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Models in a cache: one of ours, one of transformers', and two that cannot be served."""
    found = []
    for name, architecture, weights in (
        ("own", "Qwen3ForCausalLM", "model.safetensors"),
        ("other", "GPT2LMHeadModel", "model.safetensors"),
        ("pickled", "LlamaForCausalLM", "model.bin"),
        ("encoder", "BertModel", "model.safetensors"),
        ("seeing", "CLIPModel", "model.safetensors"),
    ):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        (directory / weights).touch()
        found.append(CachedModel(name, "", directory))
    monkeypatch.setattr(models, "cached_models", lambda download_dir: found)


@pytest.mark.usefixtures("here")
def test_each_model_is_told_with_who_serves_it_and_what_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "free_for_models", lambda is_gpu: (64 << 20, 0.5))
    assert main(["models", "--tokens", "200", "--json"]) == 0
    demo, own, other, pickled, encoder, seeing = json.loads(capsys.readouterr().out)["models"]
    assert demo["name"] == "the demonstration model"
    assert demo["served_by"] == own["served_by"] == "Quire"
    assert other["served_by"] == "transformers" and "is missing" in other["note"]
    # Half of what its weights leave of 64 MiB, in blocks of 16 tokens of 2 KiB, 13 for 200 tokens.
    assert demo["users"] == (32 * 1024 - demo["weight_bytes"] // 2048) // 32 // 13
    assert demo["users_at_longest"] == 7
    assert pickled["served_by"] is None and "pickled weights" in pickled["note"]
    assert encoder["served_by"] == "transformers" and "an encoder" in encoder["note"]
    assert seeing["served_by"] is None and "is not a decoder" in seeing["note"]


@pytest.mark.usefixtures("here")
def test_a_model_that_does_not_fit_is_told_what_would_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "free_for_models", lambda is_gpu: (7 << 20, 0.5))
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert "the demonstration model: its weights take 7.54 MiB, and 7 MiB are free; with " in text
    assert "--quantization int8 it would fit" in text
    assert main(["models", "--tokens", "0"]) == 1
    assert "tokens must be an integer of at least 1" in capsys.readouterr().err
