"""Models whose layers keep states: their bits, their forms, and what they are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from quire.core.errors import ConfigError, ModelError
from quire.kernels.layer_memory import StateShape
from quire.models.config import read_config
from quire.models.loader import check_divides, load_model
from quire.models.shape import read_shape
from quire.models.shard import DividedStates
from quire.models.streaming import Streaming
from support.gguf_hybrids import write_hybrid
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.small_models import HYBRIDS, make_model

ModelDir = Callable[[str], Path]

# As files can have them: what is made otherwise.
IN_GGUF: Mapping[str, Mapping[str, object]] = {
    "qwen3_next": {"mlp_only_layers": []},
    "granite_hybrid_dense": {"mamba_proj_bias": False},
    "falcon_h1-normed": {"projectors_bias": False, "mamba_d_ssm": 192},
    "qwen3_5": {}, "qwen3_5_moe": {}, "lfm2_plain": {}, "granite_hybrid": {},
    "lfm2_moe": {"tie_word_embeddings": True},
    "falcon_h1": {}, "nemotron_h": {}, "nemotron_h_moe": {}, "mamba2": {},
}  # fmt: skip

with_hybrids = pytest.mark.parametrize("family", HYBRIDS)


@with_hybrids
def test_bits_do_not_depend_on_how_texts_are_cut(family: str, model_dir: ModelDir) -> None:
    texts = random_prompts(1, 40, 21)
    model = load_model(model_dir(family), dtype="bfloat16")
    assert isinstance(model.kv_shapes[0], StateShape) or family in ("lfm2_moe", "nemotron_h_moe")
    expected = [PagedHarness(model).prefill([text], 64)[0] for text in texts]
    for chunk in (1, 7, 64):
        found = PagedHarness(model).prefill(texts, chunk)
        assert all(map(torch.equal, found, expected))


@with_hybrids
@pytest.mark.parametrize(("form", "tolerance"), [("int8", 0.12), ("int4", 0.8)])
def test_rounded(family: str, form: str, tolerance: float, model_dir: ModelDir) -> None:
    directory, texts = model_dir(family), random_prompts(20)
    model = load_model(directory, quantization=form)
    found = PagedHarness(model).prefill(texts, 7)[0]
    expected = hf_logits(directory, texts[0])
    assert (found - expected).square().mean().sqrt() < tolerance * expected.std()


def test_ranks_and_windows_are_refused(model_dir: ModelDir) -> None:
    directory = model_dir("qwen3_5")
    with pytest.raises(ConfigError, match=r"heads of its states \(6\) in .*allowed: 1, 2$"):
        check_divides(read_config(directory), 4)
    three = DividedStates(6, 3)
    assert [three.why_not(n) is None for n in (1, 2, 3, 6)] == [True, False, True, True]
    assert three._replace(together=True).why_not(6) is not None, "one key head's are on two ranks"
    tiled = three._replace(tiled=True).why_not(3)
    assert tiled is not None and "GGUF" in tiled
    check_divides(read_config(model_dir("mamba2")), 2)
    with pytest.raises(ConfigError, match="layers that keep a state of the whole text"):
        load_model(directory, streaming=Streaming(16, 4))


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("jamba", "mamba"),
        ("mamba", "state_size"),
        ("olmo_hybrid", "linear_attention"),
        ("minimax", "linear_attention"),
        ("zamba2", "linear_attention"),
    ],
)
def test_other_states_are_refused_by_their_kind(kind: str, named: str, tmp_path: Path) -> None:
    from transformers import CONFIG_MAPPING

    CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "architectures": ["OtherForCausalLM"]}))
    with pytest.raises(ModelError, match=f"{kind} has layers that keep a state.*{named}"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("family", "override", "named"),
    [
        ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate must be true"),
        ("qwen3_5", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: silu"),
        ("nemotron_h", {"mamba_hidden_act": "relu2"}, "mamba_hidden_act is 'relu2'"),
        ("bamba", {"time_step_limit": [1.0, 0.5]}, "time_step_limit must be two numbers"),
        ("granite_hybrid", {"position_embedding_type": "alibi"}, "rope, nope or null"),
        ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers must be 5 numbers"),
        ("nemotron_h_moe", {"moe_latent_size": 32}, "moe_latent_size must be null"),
        ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope must be true"),
        ("kimi_linear", {"moe_router_activation_func": "softmax"}, "must be sigmoid"),
        ("qwen3_next", {"linear_num_key_heads": 4}, "6 heads of states cannot share 4 of keys"),
    ],
)
def test_what_is_not_computed_is_refused(
    family: str, override: dict[str, object], named: str, model_dir: ModelDir
) -> None:
    with pytest.raises(ModelError, match=named):
        load_model(model_dir(family), hf_overrides=override)


def test_a_layer_of_an_unknown_kind_is_refused_by_name(model_dir: ModelDir) -> None:
    override = {"layer_types": ["linear_attention", "sparse_attention"]}
    with pytest.raises(ModelError, match="kinds that Quire does not compute: sparse_attention"):
        load_model(model_dir("qwen3_5"), hf_overrides=override)


def test_kimi_linear_is_read_by_the_fields_that_published_configs_have(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    published = {
        "linear_attn_config": {
            "full_attn_layers": [2],
            "kda_layers": [1],
            "head_dim": 20,
            "num_heads": 6,
            "short_conv_kernel_size": 4,
        },
        "first_k_dense_replace": 1,
        "mla_use_nope": True,
        "moe_router_activation_func": "sigmoid",
        "rope_theta": 10000.0,
    }
    directory = tmp_path / "published"
    shutil.copytree(model_dir("kimi_linear"), directory)
    told = json.loads((directory / "config.json").read_text())
    for name in (*told,):
        if name.startswith("linear_") or name in ("layer_types", "mlp_layer_types", "qk_head_dim"):
            del told[name]
    (directory / "config.json").write_text(json.dumps({**told, **published}))
    text = random_prompts(20)[0]
    found = PagedHarness(load_model(directory)).prefill([text], 7)[0]
    assert (found - hf_logits(model_dir("kimi_linear"), text)).abs().max() < 1e-4
    assert read_shape(directory) == replace(read_shape(model_dir("kimi_linear")), name="published")


@pytest.mark.parametrize("family", IN_GGUF)
def test_gguf_files(family: str, model_dir: ModelDir, tmp_path: Path) -> None:
    path, texts = tmp_path / "model.gguf", random_prompts(1, 30)
    fields = IN_GGUF[family]
    directory = make_model(family, tmp_path / family, **fields) if fields else model_dir(family)
    write_hybrid(directory, path)
    model = load_model(path)
    found = PagedHarness(model).prefill(texts, 7)
    for text, logits in zip(texts, found, strict=True):
        assert (logits - hf_logits(directory, text)).abs().max() < 2e-4
    cache = read_shape(path).cache()
    assert [bool(size) for size in cache.state_bytes] == [
        isinstance(shape, StateShape) for shape in model.kv_shapes
    ]
    write_hybrid(directory, path, Kind.F16)
    assert read_shape(path).dtype == "float16"  # some small ones are floats in all files
    write_hybrid(directory, path, Kind.Q8_0)
    rounded = PagedHarness(load_model(path, "float32")).prefill(texts, 7)
    for few, logits in zip(rounded, found, strict=True):
        assert (few - logits).square().mean().sqrt() < 0.12 * logits.std()


def test_decays_are_as_they_are_stored(model_dir: ModelDir) -> None:
    """In float32, whatever the model computes in."""
    directory = model_dir("qwen3_5")
    model = load_model(directory, "bfloat16")
    stored = load_file(directory / "model.safetensors")
    spec = model.decoder.layers[0].mixer.spec
    assert torch.equal(spec.decay, -stored["model.layers.0.linear_attn.A_log"].exp())
    assert torch.equal(spec.bias, stored["model.layers.0.linear_attn.dt_bias"])
