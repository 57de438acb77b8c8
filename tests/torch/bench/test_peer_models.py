"""What is compared beside other servers: models that are drawn, models of one's own, charts."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from benchmarks.peers import models
from benchmarks.peers.__main__ import main
from benchmarks.peers.cache import Cache, PeerError
from benchmarks.peers.models import SHAPES, Shape, directory_of, folder_of, shape_of
from benchmarks.peers.runners.gguf import blocks, form_of
from quire.models.loader import load_model

ROOT = Path(__file__).parents[3]
CHARTS = runpy.run_path(str(ROOT / "scripts/peer_charts.py"))
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "vocab_size": 8192}


@pytest.mark.parametrize("form", ["Q4_K", "Q6_K"])
def test_blocks_that_are_drawn_are_weights_without_a_mean(form: str) -> None:
    kind = gguf.GGMLQuantizationType[form]
    shape = gguf.quant_shape_to_byte_shape((64, 1024), kind)
    drawn = blocks(np.random.default_rng(1), form, shape)
    assert drawn.shape == shape and drawn.dtype == np.uint8
    weights = gguf.dequantize(drawn, kind)
    assert abs(weights.mean()) < 2e-3 and 0.015 < weights.std() < 0.03


def test_matrices_have_the_forms_that_llama_cpp_gives_them_in_q4_k_m() -> None:
    """What ``llama-quantize --dry-run`` says of 16 layers with tied embeddings."""
    finer = [
        layer
        for layer in range(16)
        if form_of(f"blk.{layer}.attn_v.weight", layer, 16, True) == "Q6_K"
    ]
    assert finer == [0, 1, 4, 7, 10, 13, 14, 15]
    assert form_of("blk.0.attn_q.weight", 0, 16, True) == "Q4_K"
    assert form_of("blk.0.ffn_down.weight", 0, 16, True) == "Q6_K"
    assert form_of("token_embd.weight", None, 16, tied=True) == "Q6_K"
    assert form_of("token_embd.weight", None, 16, tied=False) == "Q4_K"
    assert form_of("output.weight", None, 16, tied=False) == "Q6_K"


@pytest.mark.parametrize("tied", [True, False])
def test_a_large_model_is_drawn_a_file_after_the_other(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**SMALL, "tie_word_embeddings": tied, "max_position_embeddings": 64}
    monkeypatch.setitem(SHAPES, "drawn", Shape("LlamaConfig", fields, large=True))
    monkeypatch.setattr(models, "_FILE_BYTES", 200_000)
    monkeypatch.setattr(models, "_tokenizer", lambda path: None)
    path = directory_of(Cache(tmp_path), "drawn")
    assert len([*path.glob("*.safetensors")]) > 2
    assert load_model(path).dtype == torch.bfloat16
    assert ("lm_head.weight" in (path / "model.safetensors.index.json").read_text()) != tied


def test_a_shape_in_four_bits_alone_is_told(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="llama-8b is made in four bits alone: name a form of GGUF"):
        directory_of(Cache(tmp_path), "llama-8b")


def test_a_model_of_ones_own_is_read_where_it_lies(tmp_path: Path) -> None:
    for name in ("one", "other"):
        folder = tmp_path / name / "model"
        folder.mkdir(parents=True)
        config = {"model_type": "llama", "max_position_embeddings": 77}
        (folder / "config.json").write_text(json.dumps(config))
    own = str(tmp_path / "one" / "model")
    assert shape_of(own).max_model_len == 77
    assert directory_of(Cache(tmp_path / "cache"), own) == Path(own).resolve()
    assert folder_of(own).startswith("models/model-")
    assert folder_of(own) != folder_of(str(tmp_path / "other" / "model"))


def test_a_directory_without_a_config_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", "--models", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert f"--models: {tmp_path} has no config.json" in capsys.readouterr().err


def row(system: str, **rates: float | None) -> dict[str, Any]:
    told = {name: {"tokens_per_second": rate, "rounds": [1]} for name, rate in rates.items()}
    title = f"{system} (of a package), 16 slots"
    return {"system": system, "title": title, "form": "Q4_K_M / f16", "workloads": told}


def test_a_record_has_what_charts_show(tmp_path: Path) -> None:
    rows = [row("quire", alpaca=123.456, brief=9.87654), row("llamacpp", alpaca=50.04, brief=None)]
    machine = {"cpu": "a processor", "cores": 2, "threads": 2}
    later = [row("vllm", alpaca=None), row("quire", alpaca=1.0, prefix=2.0)]
    reports = [{"llama-8b": rows, "/somewhere/gemma": rows}, {"gemma": later}]
    kept = CHARTS["record"]([{"machine": machine, "shapes": shapes} for shapes in reports])
    assert kept["machine"] == {"cpu": "a processor", "cores": 2}
    assert [*kept["shapes"]] == ["llama-8b", "gemma"] and len(kept["shapes"]["gemma"]) == 2
    ours, theirs = kept["shapes"]["llama-8b"]
    assert ours["title"] == "quire" and theirs["workloads"] == {"alpaca": {"tokens_per_second": 50}}
    assert ours["workloads"]["brief"] == {"tokens_per_second": 9.9}
    both = kept["shapes"]["gemma"][0]["workloads"]
    assert (both["alpaca"], both["prefix"]) == tuple({"tokens_per_second": n} for n in (123, 2.0))
    CHARTS["plt"].rcParams["svg.fonttype"] = "none"
    CHARTS["chart"](kept["shapes"], tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text()
    for text in (">123<", ">9.9<", ">50<", ">not measured<", ">gemma: short chats at once<"):
        assert text in drawn
