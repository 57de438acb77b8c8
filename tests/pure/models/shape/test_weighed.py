"""Weights are what they weigh in their files, where those are there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ModelError
from quire.models.shape import read_shape

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
OF_LAYERS = 2 * (4 * 64 * 64 + 3 * 64 * 128)
SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I32": 4, "U8": 1}


def put(path: Path, **tensors: tuple[str, list[int]]) -> int:
    """Write a file whose tensors are all zeros, and return their bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for length in shape:
            size *= length
        header[name.replace("__", ".")] = {
            "dtype": dtype, "shape": shape, "data_offsets": [end, end + size],
        }  # fmt: skip
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return end


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_bytes_are_those_of_the_headers(directory: Path) -> None:
    plain = read_shape(directory)
    assert plain.stored_bytes is None
    first = put(directory / "a.safetensors", model__embed_tokens__weight=("BF16", [100, 64]))
    second = put(directory / "b.safetensors", model__layers__1__mlp=("BF16", [64, 700]))
    put(directory / "consolidated.safetensors", all=("BF16", [10_000]))  # a second copy
    assert read_shape(directory).weight_bytes == first + second
    assert read_shape(directory / "config.json").weight_bytes == first + second  # of a hub's cache
    index = {"weight_map": {"model.x": "a.safetensors", "model.y": "b.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_shape(directory).weight_bytes == first + second
    (directory / "b.safetensors").unlink()
    assert read_shape(directory).weight_bytes == plain.weight_bytes  # not all of it is here


def test_floats_are_loaded_in_the_model_s_type(directory: Path) -> None:
    put(directory / "a.safetensors", a=("F32", [1000]), b=("I32", [10]), c=("F8_E4M3", [7]))
    shape = read_shape(directory)
    assert shape.weight_bytes == 1000 * 2 + 40 + 7
    assert shape.of_dtype("bfloat16") == shape
    other = shape.of_dtype("float32")
    assert other.stored_bytes is None and other.weight_bytes == 4 * other.num_params
    assert shape.rounded("int8").stored_bytes is None


def test_what_only_speculation_loads_is_left_out(directory: Path) -> None:
    put(
        directory / "a.safetensors", model__layers__1__a=("BF16", [10]),
        model__layers__2__a=("BF16", [1000]), mtp__fc=("BF16", [1000]),
        vision__layers__30__a=("BF16", [5]),
    )  # fmt: skip
    assert read_shape(directory).weight_bytes == 2 * 15
    (directory / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    put(directory / "a.safetensors", model__embed=("BF16", [10]), lm_head__weight=("BF16", [10]))
    assert read_shape(directory).weight_bytes == 2 * 10  # one table


def test_a_rounded_checkpoint_is_weighed_and_quire_keeps_it_otherwise(directory: Path) -> None:
    rounded = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (directory / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": rounded}))
    size = put(directory / "a.safetensors", a=("F8_E4M3", [OF_LAYERS]), b=("BF16", [12_800]))
    shape = read_shape(directory)
    assert shape.weight_bytes == size and shape.weight_form.name == "fp8"
    assert shape.as_quire_keeps().weight_bytes == 2 * shape.num_params


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a whole safetensors file"),
        (b"\xff" * 100, "is not a whole safetensors file"),
        ((5).to_bytes(8, "little") + b"[1,2]", "its header is no object"),
        ((9).to_bytes(8, "little") + b'{"a": 1} ', "the header's entry of a is none"),
        ((5).to_bytes(8, "little") + b"{not}", "its header is no JSON"),
    ],
    ids=["empty", "too long", "a list", "no tensor", "no JSON"],
)
def test_headers_that_are_none_are_refused(content: bytes, message: str, directory: Path) -> None:
    (directory / "a.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=re.escape(message)):
        read_shape(directory)


@pytest.mark.parametrize(("more", "message"), [(-1, "does not fill"), (1, "tensors end at")])
def test_a_file_that_is_not_whole_is_refused(more: int, message: str, directory: Path) -> None:
    put(directory / "a.safetensors", model__embed=("BF16", [10]))
    content = (directory / "a.safetensors").read_bytes()
    (directory / "a.safetensors").write_bytes(content[:more] if more < 0 else content + bytes(more))
    with pytest.raises(ModelError, match=message):
        read_shape(directory)


def test_no_pipe_is_waited_for(directory: Path) -> None:
    os.mkfifo(directory / "a.safetensors")
    with pytest.raises(ModelError, match="is no plain file"):
        read_shape(directory)
