"""GGUF files: numbers as the ``gguf`` package reads them, models as transformers runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from quire.errors import ConfigError, ModelError
from quire.gguf.types import TYPES
from quire.kernels.products import DTYPES, PackedWeight, Products
from quire.model import load_model, resolve_model
from quire.model.gguf.blocks import read_blocks
from quire.shape import read_shape
from support.gguf_files import write_gguf
from support.hf_reference import hf_greedy, hf_logits, random_prompts
from support.instruction_sets import TESTED
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import rewritten

ModelDir = Callable[[str], Path]

ROUNDED = [kind for kind in TYPES.values() if kind.is_rounded]
# Where in a block the float16 numbers are; all others may be any bytes.
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}
HALVES |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
CHUNK = 7
FAMILIES = ("llama", "llama3", "linear", "yarn", "biases", "smollm", "qwen2.5", "qwen3", "phi3",
            "longrope")  # fmt: skip


def random_blocks(kind: str, outputs: int, inputs: int) -> np.ndarray:
    """[outputs, bytes]"""
    random = np.random.default_rng(0)
    weights, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    blocks = random.integers(0, 256, (outputs, inputs // weights, size), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        numbers = random.standard_normal((*blocks.shape[:2], 1)).astype(np.float16)
        blocks[..., at : at + 2] = numbers.view(np.uint8)
    return blocks.reshape(outputs, -1)


@pytest.mark.parametrize("instruction_set", TESTED)
@pytest.mark.parametrize("kind", ROUNDED, ids=lambda kind: kind.name)
def test_every_number_is_exact(kind: Any, instruction_set: str) -> None:
    """Read as floats, multiplied by ones and looked up: bit for bit, and in no more memory."""
    rows = random_blocks(kind.name, 64, 512)
    expected = torch.from_numpy(gguf.dequantize(rows, Kind[kind.name]))
    found = read_blocks(kind, torch.from_numpy(rows))
    assert torch.equal(found.floats(torch.float32), expected)
    packed = PackedWeight.from_groups(
        Products(instruction_set), found.form, found.codes, found.groups, None
    )
    for dtype in DTYPES:
        assert torch.equal(packed.floats(torch.eye(512, dtype=dtype)).T, expected)
        assert torch.equal(packed.rows(torch.arange(64), dtype), expected.to(dtype))
    assert packed.nbytes == kind.kept_bytes * 64 * 512
    assert kind.kept or packed.nbytes == rows.nbytes


def mixed(name: str) -> Kind:
    """Parts of one product in types of their own, as in llama.cpp's mixtures."""
    by_part = {"k_proj": Kind.Q5_1, "v_proj": Kind.F16, "up_proj": Kind.Q4_1, "o_proj": Kind.Q5_0,
               "embed_tokens": Kind.Q8_0, "lm_head": Kind.Q4_0}  # fmt: skip
    return next((kind for part, kind in by_part.items() if part in name), Kind.Q4_0)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokens(family: str, model_dir: ModelDir, tmp_path: Path) -> None:
    """As transformers computes them with the rounded weights."""
    source = model_dir(family)
    rounded = write_gguf(source, tmp_path / "model.gguf", mixed)
    reference = rewritten(source, tmp_path / "hf", lambda name, _: {name: rounded[name]})
    texts = random_prompts(5, 30, 45)
    model = load_model(tmp_path / "model.gguf", "float32")
    assert model.eos_token_ids == (1,)
    found = PagedHarness(model).prefill(texts, CHUNK)
    for logits, text in zip(found, texts, strict=True):
        assert float((logits - hf_logits(reference, text)).abs().max()) < 1e-4
    if family in ("llama", "qwen3"):
        greedy = PagedHarness(model).generate(texts[:1], 24, CHUNK)
        assert greedy == [hf_greedy(reference, texts[0], 24)]


def test_floats_may_be_rounded_and_what_is_rounded_may_not(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    for kind, dtype in ((Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)):
        path = tmp_path / f"{kind.name}.gguf"
        write_gguf(model_dir("llama"), path, lambda _, kind=kind: kind)  # type: ignore[misc]
        assert load_model(path).dtype is dtype
        assert load_model(path, quantization="int8").weight_bytes < load_model(path).weight_bytes
    write_gguf(model_dir("llama"), tmp_path / "rounded.gguf", mixed)
    with pytest.raises(ConfigError, match=r"rounded\.gguf are quantised already"):
        load_model(tmp_path / "rounded.gguf", quantization="int8")


def test_the_planner_knows_the_bytes(model_dir: ModelDir, tmp_path: Path) -> None:
    write_gguf(model_dir("qwen3"), tmp_path / "model.gguf", mixed)
    shape, model = read_shape(tmp_path / "model.gguf"), load_model(tmp_path / "model.gguf")
    padding = 4 * 2 * 32 * 64 * 2  # panels come in pairs
    assert 0 <= model.weight_bytes - shape.weight_bytes < padding
    assert shape.num_layers == 2


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    for name in ("a-Q4_K_M.gguf", "a-Q4_K_S.gguf", "a-Q8_0.gguf", "b.q8_0.gguf"):
        (tmp_path / name).touch()
    yield tmp_path


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("Q4_K_M", "a-Q4_K_M.gguf"), ("q4_k_s", "a-Q4_K_S.gguf"), ("b.q8_0", "b.q8_0.gguf"),
     ("a-Q8_0.gguf", "a-Q8_0.gguf"), ("Q8_0", "several such files"), ("Q4", "no such file"),
     ("../b.q8_0.gguf", "no such file")],
)  # fmt: skip
def test_files_by_name(directory: Path, wanted: str, found: str) -> None:
    if found.endswith(".gguf"):
        assert resolve_model(f"{directory}:{wanted}") == directory / found
        return
    with pytest.raises(ModelError, match=found):
        resolve_model(f"{directory}:{wanted}")
