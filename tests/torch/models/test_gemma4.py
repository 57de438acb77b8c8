"""Gemma 3n and 4: what layers keep and share, in bits and bytes; what of Gemma 4 is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.capabilities.adapters.checkpoint import check_adapter
from quire.core.errors import ModelError
from quire.execution.kv.layers import bytes_per_token
from quire.kernels.dispatch import choose_kernels
from quire.kernels.layer_memory import KVShape, LayerKV
from quire.models.adaptable import adaptable
from quire.models.centring import centre_keys
from quire.models.decoder import DecoderModel
from quire.models.gguf import config_of, end_tokens, open_gguf
from quire.models.loader import load_model
from quire.models.shape import read_shape
from quire.text.tokenizer import load_tokenizer
from support import lora
from support.gguf_gemmas import Kind, small_vocabulary, write_gemma
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import rewritten
from support.small_models import GEMMAS, make_model

ModelDir = Callable[[str], Path]

_LAUREL = ("linear_left", "linear_right")
with_families = pytest.mark.parametrize("family", GEMMAS)

# As google/gemma-4-E2B publishes it, but for fields of images and sounds.
_E2B = {
    "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma4_text", "attention_k_eq_v": False, "enable_moe_block": False,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1536,
        "hidden_size_per_layer_input": 256, "intermediate_size": 6144,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        "max_position_embeddings": 131072, "num_attention_heads": 8,
        "num_global_key_value_heads": None, "num_hidden_layers": 35, "num_key_value_heads": 1,
        "num_kv_shared_layers": 20, "sliding_window": 512, "tie_word_embeddings": True,
        "use_double_wide_mlp": True, "vocab_size": 262144, "vocab_size_per_layer_input": 262144,
    },
    "vision_config": {"model_type": "gemma4_vision"},
}  # fmt: skip


def test_layers_that_share_take_no_blocks_of_their_own(tmp_path: Path) -> None:
    """E2B keeps what 12 layers of a window and 3 of full attention make, of its 35."""
    (tmp_path / "config.json").write_text(json.dumps(_E2B))
    cache = read_shape(tmp_path).cache()
    assert len(cache.windows) == 15 and cache.windows.count(512) == 12
    assert cache.bytes_per_token == 12 * 2 * 256 * 2 + 3 * 2 * 512 * 2 == 18_432
    assert read_shape(tmp_path).num_params == pytest.approx(4.63e9, rel=5e-3)


@with_families
@pytest.mark.parametrize(("form", "tolerance"), [("int8", 0.1), ("int4", 0.5)])
def test_rounded_weights(family: str, form: str, tolerance: float, model_dir: ModelDir) -> None:
    """In most rows: of experts, a router's near tie falls otherwise in some."""
    directory, text = model_dir(family), random_prompts(20)[0]
    model = load_model(directory, quantization=form)
    found = PagedHarness(model).prefill([text], 7)[0]
    expected = hf_logits(directory, text)
    error = (found - expected).square().mean(1).sqrt()
    assert error.median() < tolerance * expected.std()


@with_families
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.int8, 0.08), (torch.uint8, 0.6)])
def test_rounded_caches(
    family: str, dtype: torch.dtype, tolerance: float, model_dir: ModelDir
) -> None:
    """Queries of several layers meet keys that were rounded once."""
    directory, text = model_dir(family), random_prompts(40)[0]
    model = load_model(directory)
    assert isinstance(model, DecoderModel)
    if dtype == torch.uint8:
        model = centre_keys(model, random_prompts(64)[0])
    harness = PagedHarness(model, 16)
    packed = 2 if dtype == torch.uint8 else 1

    def pool(shape: KVShape) -> LayerKV:
        tile = (16, shape.num_kv_heads, 4)
        return LayerKV.of(
            shape,
            lambda width: torch.zeros(*tile, width // packed, dtype=dtype),
            scales=lambda: torch.zeros(tile),
        )

    harness.kv = [pool(shape) for shape in model.kv_shapes if isinstance(shape, KVShape)]
    harness.kernels = choose_kernels(model.dtype)
    found, expected = harness.prefill([text], 7)[0], hf_logits(directory, text)
    assert (found - expected).square().mean().sqrt() < tolerance * expected.std()


@with_families
def test_adapters(family: str, model_dir: ModelDir, tmp_path: Path) -> None:
    """An adapter of keys that are values too changes both."""
    directory, text = model_dir(family), random_prompts(19)[0]
    targets = (*lora.ALL, "per_layer_input_gate", "per_layer_projection", *_LAUREL)
    adapter = lora.save_adapter(tmp_path / "adapter", directory, targets=targets)
    model = load_model(directory)
    updates = check_adapter(adapter, adaptable(model), 8).read().updates
    found = PagedHarness(model, updates=updates).prefill([text], 7)[0]
    expected = hf_logits(lora.merge(directory, adapter, tmp_path / "merged"), text)
    assert (found - expected).abs().max() < 2e-4
    assert (found - hf_logits(directory, text)).abs().max() > 0.1, "the adapter must show"


def changed(source: Path, target: Path, **fields: object) -> Path:
    directory = rewritten(source, target, lambda name, tensor: {name: tensor})
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return directory


def logits(directory: Path) -> Tensor:
    return PagedHarness(load_model(directory)).prefill(random_prompts(19), 7)[0]


def test_sizes_by_kind_of_layer_as_they_are_published(model_dir: ModelDir, tmp_path: Path) -> None:
    source = model_dir("gemma4-dense")
    fields = {"global_head_dim": 48, "num_global_key_value_heads": 1, "per_layer_config": None}
    assert torch.equal(logits(changed(source, tmp_path / "x", **fields)), logits(source))
    own = {"head_dim": 48, "num_key_value_heads": 1}
    padded = {"per_layer_config": {"01": own, "03": own}}  # as those of more layers are
    assert torch.equal(logits(changed(source, tmp_path / "y", **padded)), logits(source))


def test_tensors_of_keys_that_nobody_uses_are_left(model_dir: ModelDir, tmp_path: Path) -> None:
    def with_keys(name: str, tensor: Tensor) -> dict[str, Tensor]:
        unused = name.replace("q_proj", "k_proj") if "layers.5" in name else name
        return {name: tensor, unused: tensor.clone()}

    source = model_dir("gemma4")
    assert torch.equal(logits(rewritten(source, tmp_path / "x", with_keys)), logits(source))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers must be at least 0 and less than 6"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers must be less"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention must be"),
        ({"vocab_size_per_layer_input": 299}, "vocab_size_per_layer_input must be at least"),
        ({"per_layer_config": {"6": {"head_dim": 8}}}, "per_layer_config must be of layers below"),
        ({"per_layer_config": {"9" * 5000: {}}}, "per_layer_config must be of layers below"),
        ({"per_layer_config": {"0": {"scale": 8}}}, "known are head_dim, num_key_value_heads"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "of one head_dim in layers of"),
    ],
)
def test_what_cannot_be(
    fields: dict[str, object], named: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=named):
        load_model(changed(model_dir("gemma4"), tmp_path / "x", **fields))


@with_families
def test_a_plan_has_the_bytes_that_the_engine_takes(family: str, model_dir: ModelDir) -> None:
    shapes = load_model(model_dir(family)).kv_shapes
    plan = read_shape(model_dir(family))
    assert plan.kv_bytes_per_token == bytes_per_token(shapes, torch.float32)


@pytest.fixture
def plain(family: str, tmp_path: Path) -> Path:
    """A model without biases, as files have none."""
    return make_model(family, tmp_path / "source", attention_bias=False)


@with_families
def test_gguf_files(family: str, plain: Path, tmp_path: Path) -> None:
    text, target = random_prompts(30)[0], tmp_path / "a.gguf"
    expected = hf_logits(plain, text)
    write_gemma(plain, target)
    model, shape = load_model(target), read_shape(target)
    found = PagedHarness(model).prefill([text], 7)[0]
    assert (found - expected).abs().max() < 1e-4
    assert shape.kv_bytes_per_token == bytes_per_token(model.kv_shapes, torch.float32)
    assert shape.weight_bytes == pytest.approx(model.weight_bytes, rel=0.03)
    write_gemma(plain, target, Kind.Q8_0)
    found = PagedHarness(load_model(target, dtype="float32")).prefill([text], 7)[0]
    error = (found - expected).square().mean(1).sqrt()
    assert error.median() < 0.1 * expected.std()


def test_tokens_of_gguf_files_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """As version 2026.10 gives them."""
    target = tmp_path / "a.gguf"
    source = make_model("gemma4", tmp_path / "source", attention_bias=False)
    write_gemma(source, target, vocabulary=small_vocabulary)
    tokenizer = load_tokenizer(target)
    for text, ids in (
        ("tea  the hat\n\n\nso", [267, 292, 277, 267, 273, 266, 285, 268, 267, 264, 263, 272, 269]),
        ("<|turn>user\n  hi<turn|>\n", [4, 124, 272, 298, 263, 277, 273, 270, 5, 263]),
        ("na\u00efve <|channel>x", [271, 268, 202, 182, 125, 289, 6, 127]),
        ("a\r\n\r\nb \n \n", [268, 20, 263, 20, 263, 105, 265, 263, 265, 263]),
        ("</s><eos>", [67, 54, 272, 69, 1]),
    ):
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
    assert tokenizer.encode("tea") == [2, 267, 292]
    assert set(end_tokens(open_gguf(target).metadata)) == {1, 5}


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("feed_forward_length", [96, 96, 96, 96, 96, 192], "neither the same in all layers nor"),
        ("attention.head_count_kv", [1, 1], "must be a number for each of 6 layers"),
        ("rope.dimension_count", 20, "rope.dimension_count is 20, and heads are of 40"),
        ("attention.sliding_window_pattern", None, "sliding_window_pattern is missing"),
    ],
)
def test_files_that_contradict_themselves(
    name: str, value: object, named: str, tmp_path: Path
) -> None:
    target = tmp_path / "a.gguf"
    write_gemma(make_model("gemma4", tmp_path / "x", attention_bias=False), target)
    file = open_gguf(target)
    metadata = {**file.metadata, f"gemma4.{name}": value}
    with pytest.raises(ModelError, match=named):
        config_of(file._replace(metadata=metadata))
