"""A model's files may be cut or written over while it is served: it stays what it was.

A mapped file that is cut ends the process, and all streams with it; one that is written over
changes the model in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.models import loader
from quire.models.base import Model
from quire.models.dense import read_dense
from quire.models.encoder import TextBatch
from quire.models.gguf_tensors.tensors import GGUFTensors
from quire.models.loader import load_encoder, load_model
from support.gguf_files import write_gguf
from support.paged_harness import PagedHarness
from support.small_encoders import make_encoder
from support.small_models import make_model

TEXT = [list(range(3, 33))]


def check_outlives(directory: Path, compute: Callable[[], Tensor]) -> None:
    """That ``compute`` gives the same after its files are written over, and after they are cut."""
    before, files = compute(), list(directory.glob("*.safetensors"))
    for path in files:
        with path.open("r+b") as file:
            file.write(b"\x55" * path.stat().st_size)
    assert torch.equal(compute(), before)
    for path in files:
        os.truncate(path, 7)
    assert torch.equal(compute(), before)


def logits(model: Model) -> Tensor:
    return PagedHarness(model).prefill(TEXT, chunk=30)[0]


@pytest.mark.parametrize("family", ["biases", "qwen2", "gpt2", "gpt_oss", "opt"])
def test_own_families(family: str, tmp_path: Path) -> None:
    """In float32, as they are stored, where no number need be changed."""
    model = load_model(make_model(family, tmp_path))
    check_outlives(tmp_path, lambda: logits(model))


def test_own_families_without_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "choose_products", lambda *_: None)
    model = load_model(make_model("qwen2", tmp_path))
    check_outlives(tmp_path, lambda: logits(model))


def test_fallbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_NATIVE", {})
    model = load_model(make_model("olmo2", tmp_path))
    check_outlives(tmp_path, lambda: logits(model))


@pytest.mark.parametrize("family", ["Bert", "ModernBert"])
def test_encoders(family: str, tmp_path: Path) -> None:
    directory, batch = make_encoder(family, tmp_path), TextBatch(torch.tensor([[2, 5, 6, 7, 3]]))
    model = load_encoder(directory, "auto", None, None, lambda num_bytes: None)
    check_outlives(tmp_path, lambda: model.forward(batch))


def test_modules_behind_the_pooling(tmp_path: Path) -> None:
    fields = '{"in_features": 4, "out_features": 3, "activation_function": "torch.nn.Identity"}'
    (tmp_path / "config.json").write_text(fields)
    tensors = {"linear.weight": torch.randn(3, 4).double(), "linear.bias": torch.ones(3).double()}
    save_file(tensors, tmp_path / "model.safetensors")
    dense = read_dense(tmp_path, 4, lambda num_bytes: None)
    check_outlives(tmp_path, lambda: dense(torch.ones(4).double()))


def test_what_the_fallback_takes_is_no_more_than_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors are read as they are asked for, not all at once beside the module."""
    monkeypatch.setattr(loader, "_NATIVE", {})
    directory, taken = make_model("olmo2", tmp_path), list[int]()
    load_model(directory, admit=taken.append)
    sizes = [tensor.nbytes for tensor in load_file(directory / "model.safetensors").values()]
    assert sum(sizes) <= taken[0] <= sum(sizes) + max(sizes), "and one tensor that is packed"


def test_gguf_files(tmp_path: Path) -> None:
    """Served on as they were; while they are loaded, what their header said must hold."""
    path = tmp_path / "model.gguf"
    write_gguf(make_model("llama", tmp_path / "model"), path, lambda name: Kind.Q8_0)
    model, opened = load_model(path), GGUFTensors(path)
    before = logits(model)
    path.write_bytes(b"\x55" * path.stat().st_size)
    assert torch.equal(logits(model), before)
    with pytest.raises(OSError, match="the file has changed while it was loaded"):
        opened.get_tensor("model.norm.weight")
