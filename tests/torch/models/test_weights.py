"""Checkpoints are read into memory of their own, and refused where something is amiss."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quire.core.errors import ModelError
from quire.models.parts import ALL, WHOLE, TensorPart
from quire.models.weights import Weights


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """One file with tensors a [2, 3] and b [4]."""
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The same tensors in two files."""
    save_file({"a": torch.arange(6.0).view(2, 3)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(4)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_tensors_by_name(layout: str, request: pytest.FixtureRequest) -> None:
    weights = Weights(request.getfixturevalue(layout), torch.float32)
    assert torch.equal(weights.take("a", 2, 3), torch.arange(6.0).view(2, 3))
    assert torch.equal(weights.take("b", 4), torch.ones(4))
    assert "a" in weights
    assert "c" not in weights
    assert weights.bytes_taken == 40
    weights.finish()


def test_dtype_is_converted_or_kept(single: Path) -> None:
    weights = Weights(single, torch.bfloat16)
    assert weights.take("a", 2, 3).dtype == torch.bfloat16
    assert weights.bytes_taken == 12
    assert Weights(single, None).dtype == torch.float32


@pytest.mark.parametrize(
    "part", [WHOLE, TensorPart(slice(1, 2)), TensorPart(ALL, slice(0, 2))], ids=str
)
def test_what_is_read_outlives_its_file(part: TensorPart, single: Path) -> None:
    """A mapping would show what is written over it, and end the process where it is cut."""
    path, wanted = single / "model.safetensors", part.of(torch.arange(6.0).view(2, 3))
    weights = Weights(single, torch.float32)
    tensors = [read("a", 2, 3, part=part) for read in (weights.take, weights.read)]
    tensors.append(weights.take_floats("a", 2, 3, part=part))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"\xff" * size)
    assert all(torch.equal(one, wanted) for one in tensors)
    os.truncate(path, 0)
    assert all(torch.equal(one, wanted) for one in tensors)


def cut(path: Path) -> None:
    os.truncate(path, 100)


def replaced(path: Path) -> None:
    """By one of other tensors, as a download would."""
    other = path.with_name("other")
    save_file({"b": torch.zeros(4), "a": torch.zeros(2, 3), "c": torch.zeros(9)}, other)
    other.replace(path)


def written_to(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize("part", [WHOLE, TensorPart(slice(1, 2))], ids=["whole", "part"])
@pytest.mark.parametrize("change", [cut, replaced, written_to])
def test_a_file_that_changes_while_it_is_loaded(
    change: Callable[[Path], None], part: TensorPart, single: Path
) -> None:
    """What its header said of tensors holds no more."""
    weights = Weights(single, torch.float32)
    change(single / "model.safetensors")
    with pytest.raises(ModelError, match="a cannot be read: the file has changed while it was"):
        weights.take("a", 2, 3, part=part)


def test_the_dtype_of_most(tmp_path: Path) -> None:
    few, many = torch.ones(2), torch.ones(3, 4, dtype=torch.bfloat16)
    save_file({"a": few, "b": many}, tmp_path / "model.safetensors")
    assert Weights(tmp_path, None).dtype == torch.bfloat16


def test_faults_name_the_tensor(single: Path) -> None:
    weights = Weights(single, torch.float32)
    with pytest.raises(ModelError, match="the checkpoint has no tensor c"):
        weights.take("c", 1)
    with pytest.raises(ModelError, match=r"a has shape \(2, 3\), but the config asks for \(3, 2\)"):
        weights.take("a", 3, 2)
    weights.take("a", 2, 3)
    with pytest.raises(ModelError, match="1 tensors are not part of this architecture: b"):
        weights.finish()


def test_computed_tables_of_old_checkpoints_are_left_alone(tmp_path: Path) -> None:
    names = ("model.layers.0.self_attn.rotary_emb.inv_freq", "transformer.h.0.attn.causal_mask")
    save_file({name: torch.ones(4) for name in names}, tmp_path / "model.safetensors")
    Weights(tmp_path, torch.float32).finish()


def test_other_types_are_refused(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(4, dtype=torch.int8), "b": torch.ones(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    weights = Weights(tmp_path, None)
    with pytest.raises(ModelError, match=r"a holds torch\.int8 where floats are expected"):
        weights.take("a", 4)
    with pytest.raises(ModelError, match=r"b holds torch\.float32 where int32 is expected"):
        weights.read_codes("b", 4)


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        Weights(tmp_path, None)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match="pickled weights"):
        Weights(tmp_path, None)


@pytest.mark.parametrize("kept", [0, 5, 60, -1])
def test_truncated_file(single: Path, kept: int) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        Weights(single, None)


def test_missing_shard(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"files that are not there: two\.safetensors"):
        Weights(sharded, None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}'])
def test_damaged_index(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"index\.json (cannot be read|is not a|does not hold)"):
        Weights(sharded, None)
