"""GGUF files from strangers: what is wrong is said, by file and field, before it costs memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import ModelError
from quire.models.gguf import config_of, open_gguf
from quire.models.shape import read_shape
from support.raw_gguf import Parts, number, parts, string, strings, tensor, written

HUGE = 1 << 60


def field(name: str, value: bytes | None) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        if value is None:
            del parts["fields"][name]
        else:
            parts["fields"][name] = value

    return change


def part(name: str, value: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.update({name: value})


def norm(*place: Any) -> Callable[[Parts], None]:
    return lambda parts: parts["tensors"].update({"output_norm.weight": tensor(*place)})


def mixture(count: Any = 4, chosen: int = 2) -> Callable[[Parts], None]:
    """The model as one of experts; ``count`` None: how many is not said."""

    def change(parts: Parts) -> None:
        fields = {k.replace("qwen3.", "qwen3moe."): v for k, v in parts["fields"].items()}
        fields["general.architecture"] = string("qwen3moe")
        fields["qwen3moe.expert_used_count"] = number(chosen)
        if count is not None:
            value = number(count) if isinstance(count, int) else count
            fields["qwen3moe.expert_count"] = value
        parts["fields"] = fields

    return change


WRONG: dict[str, tuple[Callable[[Parts], None], str]] = {
    "another file": (part("magic", b"GGML"), "beginning is not that of a GGUF file"),
    "version": (part("version", 1), "says version 1; supported: 2, 3"),
    "big-endian": (part("version", 3 << 24), "in little-endian order"),
    "fields": (part("num_fields", HUGE), "has 1,152,921,504,606,846,976 fields; at most 65,536"),
    "tensors": (part("num_tensors", HUGE), "tensors; at most 131,072"),
    "more fields than there are": (part("num_fields", 10**4), "is followed by a name of"),
    "elements": (field("x", strings(HUGE)), "'x' has 1,152,921,504,606,846,976 elements"),
    "fewer elements": (field("x", strings(10**6)), "'x' goes on beyond the end of the file"),
    "a text without end": (field("x", struct.pack("<IQ", 8, HUGE)), "'x' goes on beyond the end"),
    "a type": (field("x", struct.pack("<I", 77)), "'x' is of type 77, which is unknown"),
    "arrays of arrays": (field("x", struct.pack("<IIQ", 9, 9, 1)), "an array of type 9"),
    "no text": (field("x", struct.pack("<IQ", 8, 1) + b"\xff"), "'x' is not UTF-8"),
    "alignment": (field("general.alignment", number(33)), "general.alignment must be a power of"),
    "a part": (field("split.count", number(3)), "one of 3 parts of a model: name the first, which"),
    "dimensions": (norm((1,) * 9, 0, 96), "output_norm.weight' has 9 dimensions; 1 to 4"),
    "a large shape": (norm((HUGE, HUGE), 0, 96), "which the file has no room for"),
    "an empty shape": (norm((0,), 0, 96), "which the file has no room for"),
    "an unknown type": (norm((32,), 99, 96), "output_norm.weight' is of type 99; supported: F32"),
    "an unread type": (norm((32,), 24, 96), "is of I8; supported"),
    "half a block": (norm((16,), 2, 96), "rows of 16 numbers, no whole blocks of Q4_0"),
    "an odd place": (norm((32,), 0, 97), "begins at 97, no multiple of 32"),
    "a place beyond": (norm((32,), 0, 1 << 50), "but the file has only"),
    "overlapping": (norm((32,), 0, 64), "output_norm.weight' overlaps with 'token_embd.weight'"),
    "truncated": (part("data", bytes(200)), "is it whole?"),
    "architecture": (
        field("general.architecture", string("mamba")), "general.architecture is 'mamba'; supported"
    ),
    "no architecture": (field("general.architecture", None), "general.architecture is None"),
    "experts": (field("qwen3.expert_count", number(8)), "qwen3.expert_count is 8"),
    "no experts": (mixture(count=None), "qwen3moe.expert_count is missing"),
    "as many experts": (mixture(count=HUGE), "qwen3moe.expert_count must be 1 to 4,096, but is 1"),
    "experts that are no number": (
        mixture(count=string("8")), "qwen3moe.expert_count must be 1 to 4,096, but is '8'"
    ),
    "more chosen than there are": (
        mixture(chosen=HUGE), "qwen3moe.expert_used_count must be 1 to 4, but is 115"
    ),
    "another router": (
        field("qwen3.expert_gating_func", number(2)), "qwen3.expert_gating_func is 2; supported"
    ),
    "as many layers": (
        field("qwen3.block_count", number(1 << 30)), "qwen3.block_count must be 1 to 2, but is 107"
    ),
    "no size": (field("qwen3.block_count", None), "qwen3.block_count is missing"),
    "another kind of size": (
        field("qwen3.block_count", string("x")), "qwen3.block_count must be 1 to 2, but is 'x'"
    ),
    "layers that differ": (
        field("qwen3.feed_forward_length", struct.pack("<IIQII", 9, 4, 2, 32, 64)),
        "qwen3.feed_forward_length is not the same in all layers",
    ),
    "values": (field("qwen3.attention.value_length", number(8)), "value_length (8) is not"),
    "a scaling": (
        field("qwen3.rope.scaling.type", string("odd")), "qwen3.rope.scaling.type is 'odd'"
    ),
    "no embedding": (
        lambda parts: parts["tensors"].pop("token_embd.weight"), "no tensor token_embd.weight"
    ),
}  # fmt: skip


def test_a_good_one(tmp_path: Path) -> None:
    path = written(parts(), tmp_path / "model.gguf")
    assert config_of(open_gguf(path))["vocab_size"] == 4
    assert read_shape(path).num_layers == 1


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str, tmp_path: Path) -> None:
    change, message = WRONG[name]
    damaged = parts()
    change(damaged)
    path = written(damaged, tmp_path / "model.gguf")
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as refusal:
            read_shape(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_what_files_leave_to_the_code(tmp_path: Path) -> None:
    """The scale of Gemma 2's queries hangs on its size; routers are in F32 whatever all else is."""
    for layers, scalar in ((46, 32 // 2), (45, 24)):
        told = parts()
        told["fields"] = {k.replace("qwen3.", "gemma2."): v for k, v in told["fields"].items()}
        told["fields"]["general.architecture"] = string("gemma2")
        told["fields"]["gemma2.block_count"] = number(layers)
        told["fields"]["gemma2.attention.key_length"] = number(24)
        places = {"token_embd.weight": tensor((4, 32), 1, 0)}
        for layer in range(layers):
            routers = f"blk.{layer}.ffn_gate_inp.weight"
            places[routers] = tensor((1, 32), 0, 256 + 128 * layer)
        told |= {"tensors": places, "data": bytes(256 + 128 * layers)}
        config = config_of(open_gguf(written(told, tmp_path / "model.gguf")))
        assert config["query_pre_attn_scalar"] == scalar
        assert config["dtype"] == "float16"
        assert config["sliding_window"] == 4096


SPLIT = "model-{:05}-of-00002.gguf"


def split(tmp_path: Path) -> list[Path]:
    """The model in two parts: all that is said is in the first, the norm in the second."""
    paths = []
    for part, name in enumerate(("token_embd.weight", "output_norm.weight")):
        one = parts()
        one["fields"] = {} if part else {**one["fields"], "split.tensors.count": number(2)}
        one["fields"] |= {"split.no": number(part), "split.count": number(2)}
        place = tensor((32,), 0, 0) if part else one["tensors"][name]
        one |= {"tensors": {name: place}, "data": bytes(128)}
        paths.append(written(one, tmp_path / SPLIT.format(part + 1)))
    return paths


def test_parts_are_one(tmp_path: Path) -> None:
    paths = split(tmp_path)
    found = open_gguf(paths[0])
    assert {name: info.path for name, info in found.tensors.items()} == {
        "token_embd.weight": paths[0],
        "output_norm.weight": paths[1],
    }
    shape = read_shape(paths[0])
    assert shape.weight_bytes == 4 * 18 + 32 * 4
    assert shape.as_quire_keeps().weight_bytes == 4 * 18 + 32 * 2  # floats in the model's type


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    first, second = split(tmp_path)
    with pytest.raises(ModelError, match=r"name the first.*NAME-00001-of-00002\.gguf"):
        open_gguf(second)
    second.write_bytes(first.read_bytes())
    with pytest.raises(ModelError, match=r"00002-of-00002\.gguf: split\.no must be 1, but is 0"):
        open_gguf(first)
    second.unlink()
    with pytest.raises(ModelError, match=r"00002-of-00002\.gguf does not exist"):
        open_gguf(first)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\0\0\0"])
def test_no_file_to_speak_of(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.gguf"):
        open_gguf(tmp_path / "model.gguf")


@settings(max_examples=150)
@given(
    changes=st.lists(st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=8))),
    length=st.integers(0, 2000),
)
def test_anything(changes: list[tuple[int, bytes]], length: int) -> None:
    """Bytes written over, and the end cut off: a refusal or a file, never another error."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = written(parts(), Path(directory) / "model.gguf")
        content = bytearray(path.read_bytes())
        for at, values in changes:
            content[at : at + len(values)] = values
        path.write_bytes(content[:length])
        try:
            read_shape(path)
        except ModelError as error:
            assert str(path) in str(error)
