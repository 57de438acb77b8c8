"""Dense modules behind the pooling, as sentence-transformers computes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from quire import LLM, PoolingParams
from quire.core.errors import ModelError, RequestError
from quire.execution.device_runtime import OnCPU
from support.small_encoders import make_encoder
from support.small_models import make_model


@pytest.fixture
def model(tmp_path: Path, kind: str) -> Path:
    if kind == "decoder":
        return make_model("qwen3", tmp_path)
    return make_encoder("Bert", tmp_path)


def add_dense(
    directory: Path, name: str, module: nn.Linear, activation: str, **more: Any
) -> dict[str, str]:
    """Write a module as sentence-transformers does; its entry in modules.json."""
    (directory / name).mkdir()
    config = {
        "in_features": module.in_features,
        "out_features": module.out_features,
        "bias": module.bias is not None,
        "activation_function": f"torch.nn.modules.{activation}",
        **more,
    }
    (directory / name / "config.json").write_text(json.dumps(config))
    tensors = {f"linear.{key}": value for key, value in module.state_dict().items()}
    save_file(tensors, directory / name / "model.safetensors")
    return {"type": "sentence_transformers.models.Dense", "path": name}


def list_modules(directory: Path, dense: Sequence[dict[str, str]], *, normalize: bool) -> None:
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    pooling = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
    ends = [{"type": "sentence_transformers.models.Normalize", "path": "9"}] if normalize else []
    (directory / "modules.json").write_text(json.dumps([pooling, *dense, *ends]))


def vectors(directory: Path, **params: Any) -> list[torch.Tensor]:
    llm = LLM(directory, threads=1, hf_overrides={"is_matryoshka": True})
    prompts = [[3, 4, 5, 6, 7], [8, 9]]
    outputs = llm.embed(prompts, PoolingParams(**params), use_tqdm=False)
    return [torch.tensor(one.outputs.embedding) for one in outputs]


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_states_pass_them_before_they_are_cut_and_normalised(model: Path) -> None:
    torch.manual_seed(3)
    states = vectors(model, pooling="MEAN", normalize=False)
    wide, narrow = nn.Linear(len(states[0]), 56), nn.Linear(56, 24, bias=False)
    entries = [
        add_dense(model, "2_Dense", wide, "activation.Tanh"),
        add_dense(model, "3_Dense", narrow, "linear.Identity",
                  module_input_name="sentence_embedding"),
    ]  # fmt: skip
    list_modules(model, entries, normalize=True)
    with torch.no_grad():
        expected = [narrow(torch.tanh(wide(state))) for state in states]
    for cut in (None, 10):
        for found, whole in zip(vectors(model, dimensions=cut), expected, strict=True):
            part = whole[:cut]
            torch.testing.assert_close(found, part / part.norm(), atol=1e-5, rtol=0)
    with pytest.raises(RequestError, match="dimensions must be from 1 to 24"):
        vectors(model, dimensions=25)


@pytest.mark.parametrize("kind", ["encoder"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"in_features": 31}, r"in_features.* must be 32"),
        ({"out_features": 9}, r"linear\.weight has shape \(8, 32\), but .* \(9, 32\)"),
        ({"out_features": 0}, "out_features"),
        ({"activation_function": "os.system"}, "activation_function.*Identity or Tanh"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
        ({"bias": False}, r"not part of this architecture: linear\.bias"),
        ({"activation_function": "my.own.Tanh"}, "activation_function.*of torch.nn"),
        (None, "2_Dense has no model.safetensors; pytorch_model.bin is not read"),
    ],
)
def test_what_they_cannot_be(change: dict[str, Any] | None, said: str, model: Path) -> None:
    entry = add_dense(model, "2_Dense", nn.Linear(32, 8), "activation.Tanh", **(change or {}))
    if change is None:
        (model / "2_Dense" / "model.safetensors").rename(model / "2_Dense" / "pytorch_model.bin")
    list_modules(model, [entry], normalize=False)
    with pytest.raises(ModelError, match=said):
        LLM(model, threads=1)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_they_are_read_only_where_there_is_memory_for_them(
    kind: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own file says how large they are, and it may be all holes."""
    wide = nn.Linear({"decoder": 64, "encoder": 32}[kind], 30_000)
    list_modules(model, [add_dense(model, "2_Dense", wide, "activation.Tanh")], normalize=False)
    asked = list[int]()
    monkeypatch.setattr(OnCPU, "admit", lambda self, num_bytes: asked.append(num_bytes))
    llm = LLM(model, threads=1)
    assert asked[0] == 8 * 30_000 * (wide.in_features + 1)
    assert llm.capacity.weight_bytes > asked[0]
    refused = ModelError("no room")
    monkeypatch.setattr(OnCPU, "admit", Mock(side_effect=refused))
    monkeypatch.setattr("quire.models.weights.Weights.take", Mock(side_effect=AssertionError))
    with pytest.raises(ModelError, match="no room"):
        LLM(model, threads=1)
