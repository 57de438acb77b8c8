"""GGUF files: numbers as the ``gguf`` package reads them, models as transformers runs them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind

from quire.core.errors import ConfigError, ModelError
from quire.kernels.products import DTYPES, PackedWeight, Products
from quire.models.gguf import open_gguf, parts
from quire.models.gguf.types import TYPES
from quire.models.gguf_tensors.blocks import read_blocks
from quire.models.loader import load_model, resolve_model
from quire.models.shape import read_shape
from support.gguf_files import random_blocks, write_gguf
from support.gguf_views import write_views
from support.hf_reference import hf_greedy, hf_logits, random_prompts
from support.instruction_sets import TESTED
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import rewritten
from support.small_models import SMALL_LLAMA, make_model, save_model

ModelDir = Callable[[str], Path]

ROUNDED = [kind for kind in TYPES.values() if kind.is_rounded]
CHUNK = 7
FAMILIES = ("llama", "llama3", "linear", "yarn", "biases", "smollm", "qwen2.5", "qwen3", "phi3",
            "longrope", "olmo2", "olmo3", "granite", "stablelm", "stablelm-parallel", "arcee",
            "nemotron", "seed_oss", "exaone4", "glm4", "ernie4_5", "glm4_moe",
            "minimax_m2", "ernie4_5_moe", "ministral3", "granite_moe")  # fmt: skip
_EXPERTS = {**SMALL_LLAMA, "intermediate_size": 64, "num_experts_per_tok": 3}
_GEMMA = {
    **SMALL_LLAMA,
    "num_hidden_layers": 3,
    "head_dim": 24,
    "query_pre_attn_scalar": 24,
    "sliding_window": 12,
    "final_logit_softcapping": 8.0,
}
_LATENT = {
    **SMALL_LLAMA,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
_LATENT_EXPERTS = {
    **_LATENT,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
_COHERE = {**SMALL_LLAMA, "logit_scale": 0.3, "tie_word_embeddings": True}
# As GGUF files can have them.
OWN: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("GemmaConfig", {**SMALL_LLAMA, "head_dim": 24}),
    "gemma2": ("Gemma2Config", {**_GEMMA, "attn_logit_softcapping": 5.0}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **_GEMMA,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "smollm3": ("SmolLM3Config", {**SMALL_LLAMA, "num_hidden_layers": 5}),
    "starcoder2": ("Starcoder2Config", {**SMALL_LLAMA, "sliding_window": None}),
    # All of a head is turned, where most of the family turn a quarter, or a half.
    "stablelm-turned": ("StableLmConfig", {**SMALL_LLAMA, "partial_rotary_factor": 1.0}),
    "phi-turned": (
        "PhiConfig",
        {**SMALL_LLAMA, "num_key_value_heads": 4, "partial_rotary_factor": 1.0},
    ),
    "cohere": ("CohereConfig", _COHERE),
    "cohere2": ("Cohere2Config", {**_COHERE, "sliding_window": 12, "sliding_window_pattern": 2}),
    "mixtral": ("MixtralConfig", {**_EXPERTS, "num_local_experts": 6}),
    "qwen2moe": (
        "Qwen2MoeConfig",
        {
            **_EXPERTS,
            "num_experts": 6,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 96,
        },
    ),
    "qwen3moe": (
        "Qwen3MoeConfig",
        {
            **_EXPERTS,
            "head_dim": 24,
            "num_experts": 12,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        {
            **_EXPERTS,
            "num_local_experts": 6,
            "head_dim": 16,
            "sliding_window": 9,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            },
            "tie_word_embeddings": False,
        },
    ),
    "dots1": (
        "Dots1Config",
        {
            **SMALL_LLAMA,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "sliding_window": None,
            "layer_types": ["full_attention"] * 2,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            **_LATENT_EXPERTS,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "mscale": 0.7,
                "mscale_all_dim": 0.7,
            },
        },
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        {
            **_LATENT_EXPERTS,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
        },
    ),
    "youtu": ("YoutuConfig", {**_LATENT, "rope_interleave": True}),
    "olmoe": ("OlmoeConfig", {**_EXPERTS, "num_experts": 6}),
    "granitemoe": (
        "GraniteMoeConfig",
        {
            **_EXPERTS,
            "num_local_experts": 6,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
        },
    ),
}


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


def test_scales_that_kernels_cannot_keep() -> None:
    """An eighth of the smallest half there is: the numbers stay exact, as floats."""
    kind = next(kind for kind in ROUNDED if kind.name == "IQ2_S")
    rows = random_blocks(kind.name, 4, 256)
    rows[:, :2] = np.full((4, 1), 2.0**-24, np.float16).view(np.uint8)
    found = read_blocks(kind, torch.from_numpy(rows))
    assert not found.in_float16
    expected = torch.from_numpy(gguf.dequantize(rows, Kind[kind.name]))
    assert torch.equal(found.floats(torch.float32), expected)


def mixed(name: str) -> Kind:
    """Parts of one product in types of their own, as in llama.cpp's mixtures."""
    by_part = {"experts.gate_proj": Kind.MXFP4, "experts.up_proj": Kind.Q4_0,
               "k_proj": Kind.Q5_1, "v_proj": Kind.F16, "up_proj": Kind.Q4_1,
               "o_proj": Kind.Q5_0, "embed_tokens": Kind.Q8_0,
               "lm_head": Kind.Q4_0}  # fmt: skip
    return next((kind for part, kind in by_part.items() if part in name), Kind.Q4_0)


@pytest.fixture
def source(family: str, model_dir: ModelDir, tmp_path: Path) -> Path:
    """A model with safetensors files."""
    if family not in OWN:
        return model_dir(family)
    class_name, fields = OWN[family]
    return save_model(getattr(transformers, class_name)(**fields), tmp_path / "source")


@pytest.mark.parametrize("family", [*FAMILIES, *OWN])
def test_logits_and_tokens(family: str, source: Path, tmp_path: Path) -> None:
    """As transformers computes them with the rounded weights."""
    split = family != "deepseek_v2"  # of which there are files of both forms
    rounded = write_gguf(source, tmp_path / "model.gguf", mixed, split=split)
    reference = rewritten(source, tmp_path / "hf", lambda name, _: {name: rounded[name]})
    texts = random_prompts(5, 30, 45)
    model = load_model(tmp_path / "model.gguf", "float32")
    assert model.eos_token_ids == (1,)
    found = PagedHarness(model).prefill(texts, CHUNK)
    for logits, text in zip(found, texts, strict=True):
        assert float((logits - hf_logits(reference, text)).abs().max()) < 1e-4
    if family in ("llama", "qwen3", "qwen3moe"):
        greedy = PagedHarness(model).generate(texts[:1], 24, CHUNK)
        assert greedy == [hf_greedy(reference, texts[0], 24)]


def stacked(name: str) -> Kind:
    """Types of experts as llama.cpp's mixtures have them, whose blocks are of 256 numbers."""
    by_part = {"ffn_gate_up_exps": Kind.IQ4_XS, "ffn_gate_exps": Kind.IQ4_XS,
               "ffn_up_exps": Kind.IQ4_XS, "ffn_down_exps": Kind.Q4_K, "attn_k_b": Kind.Q8_0,
               "ffn_down": Kind.Q5_0, "shexp": Kind.Q4_1, "ssm_f_b": Kind.Q8_0,
               "token_embd": Kind.Q8_0}  # fmt: skip
    return next((kind for part, kind in by_part.items() if part in name), Kind.Q4_0)


# As GGUF files can have them: what is made otherwise, beside widths.
WIDE: Mapping[str, Mapping[str, Any]] = {
    "hunyuan": {},
    "hunyuan_moe": {},
    "apertus": {},
    "apertus-plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
    "phimoe": {
        "router_jitter_noise": 0.01,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 32,
            "long_factor": [1.0 + 0.3 * n for n in range(32)],
            "short_mscale": 1.243163121016122,
            "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 128,
        },
    },
    "llama4": {
        "intermediate_size_mlp": 512,
        "num_experts_per_tok": 2,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "no_rope_layer_interval": 4,
    },
    "mistral4": {"moe_intermediate_size": 256},
    "glm_moe_dsa": {"moe_intermediate_size": 256, "first_k_dense_replace": 1},
    "mimo_v2_flash": {"moe_intermediate_size": 256},
    "glm": {"attention_bias": True},
    "falcon": {"ffn_hidden_size": 256},
    "sarvam_moe": {"moe_intermediate_size": 256, "n_shared_experts": 1},
    "kimi_linear": {"linear_num_heads": 4, "linear_head_dim": 32, "moe_intermediate_size": 256},
}
_WIDTHS = {"hidden_size": 256, "intermediate_size": 256, "initializer_range": 0.1}


@pytest.mark.parametrize("family", WIDE)
def test_stacks_of_experts_and_what_files_leave_out(family: str, tmp_path: Path) -> None:
    """As transformers computes them with the rounded weights."""
    name = family.removesuffix("-plain")
    source = make_model(name, tmp_path / "source", **_WIDTHS, **WIDE[family])
    rounded = write_views(source, tmp_path / "model.gguf", stacked)
    reference = rewritten(source, tmp_path / "hf", lambda name, _: {name: rounded[name]})
    texts = random_prompts(5, 45)
    model = load_model(tmp_path / "model.gguf", "float32")
    found = PagedHarness(model).prefill(texts, CHUNK)
    for logits, text in zip(found, texts, strict=True):
        assert float((logits - hf_logits(reference, text)).abs().max()) < 2e-4
    planned = read_shape(tmp_path / "model.gguf").quire_bytes
    assert model.weight_bytes == pytest.approx(planned, rel=0.1)  # padding, and floats are wider


def test_what_files_of_llama_4_do_not_say(tmp_path: Path) -> None:
    """llama.cpp has chunks of 8,192 tokens in three of four layers, whose heads are normalised but
    where there are 128 experts; queries of the fourth grow.
    """
    fields = {**WIDE["llama4"], "num_local_experts": 128, "use_qk_norm": False}
    source = make_model("llama4", tmp_path / "source", **fields, max_position_embeddings=1 << 16)
    write_views(source, tmp_path / "model.gguf", lambda _: Kind.F32)
    model = load_model(tmp_path / "model.gguf")
    assert model.windows == (8192, 8192, 8192, None)
    assert read_shape(tmp_path / "model.gguf").windows == model.windows
    text = random_prompts(20)
    found = PagedHarness(model).prefill(text, CHUNK)[0]
    assert float((found - hf_logits(source, text[0])).abs().max()) < 1e-4
    with pytest.raises(
        ModelError, match=r"llama4\.attention\.sliding_window is 0; supported: 8192"
    ):
        with_field(tmp_path / "model.gguf", "llama4.attention.sliding_window", 0)


def with_field(path: Path, name: str, value: Any) -> None:
    """Load the file as if it said so."""
    read_header, patch = parts.read_header, pytest.MonkeyPatch()
    file = read_header(path)
    told = file._replace(metadata={**file.metadata, name: value})
    with patch.context() as patched:
        patched.setattr(parts, "read_header", lambda _: told)
        load_model(path)


@pytest.mark.parametrize(
    ("family", "name", "value", "said"),
    [
        ("kimi_linear", "attention.key_length_mla", 1 << 30, "qk_nope_head_dim must be of at most"),
        ("kimi_linear", "kda.head_dim", 1 << 30, "states have .* numbers; at most 4,194,304"),
        ("mistral4", "nextn_predict_layers", 1 << 62, None),  # as many as the file has
        ("mistral4", "rope.scaling.yarn_log_multiplier", 1e300, "mscale_all_dim must be at most"),
        ("hunyuan", "attention.head_count", 1 << 28, "num_attention_heads must be of at most"),
        ("glm", "attention.head_count_kv", 3, "rows, and heads have"),
        ("glm", "attention.value_length", 1 << 40, "value_length .* is not"),
        ("mimo_v2_flash", "attention.head_count_kv", [1, 2], "attention.head_count_kv must be"),
        ("mimo_v2_flash", "attention.head_count_kv", [1, 2, 2], "differs among layers"),
        ("mimo_v2_flash", "attention.sliding_window_pattern", [1], "a truth for each layer"),
        ("glm_moe_dsa", "attention.indexer.types", [True], "indexer_types must be full or shared"),
        ("glm_moe_dsa", "attention.indexer.top_k", 0, "index_topk must be at least 1"),
        ("apertus", "xielu.beta", array("f", [7.0, 7.0]), r"act_fn\.beta is 7; supported: 0\.5"),
    ],
)
def test_sizes_that_no_tensor_has(
    family: str, name: str, value: Any, said: str | None, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Refused before memory is taken, by whichever name it is read."""
    write_views(model_dir(family), tmp_path / "model.gguf", lambda _: Kind.F32)
    architecture = open_gguf(tmp_path / "model.gguf").metadata["general.architecture"]
    whole = name if name.startswith("xielu") else f"{architecture}.{name}"
    if said is None:
        with_field(tmp_path / "model.gguf", whole, value)
        return
    with pytest.raises(ModelError, match=said):
        with_field(tmp_path / "model.gguf", whole, value)


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


@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_rounded_weights_multiply_rounded_rows_as_they_are(source: Path, tmp_path: Path) -> None:
    """The codes of every type but MXFP4's; of 8 bits none are left where 4 are asked for."""
    path, texts = tmp_path / "model.gguf", random_prompts(3, 30)
    write_gguf(source, path, lambda name: Kind.Q8_0 if "v_proj" in name else mixed(name))
    models = {form: load_model(path, quantization=form) for form in (None, "w8a8", "w4a8")}
    exact = PagedHarness(models[None]).prefill(texts, CHUNK)
    for form in ("w8a8", "w4a8"):
        for a, b in zip(PagedHarness(models[form]).prefill(texts, CHUNK), exact, strict=True):
            assert 1e-3 < float((a - b).norm() / (b - b.mean(dim=1, keepdim=True)).norm()) < 0.25
    sizes = [model.weight_bytes for model in models.values()]
    assert sizes[0] == sizes[1] > sizes[2]
    ids = torch.arange(5)
    for model in models.values():  # the embedding and the head stay
        assert torch.equal(
            model.decoder.head.rows(ids, torch.float32),  # type: ignore[attr-defined]
            models[None].decoder.head.rows(ids, torch.float32),  # type: ignore[attr-defined]
        )


@pytest.mark.parametrize("family", ["qwen3", "qwen2moe", "olmoe", "gemma2", "deepseek_v3"])
def test_the_planner_knows_the_bytes(source: Path, tmp_path: Path) -> None:
    write_gguf(source, tmp_path / "model.gguf", mixed)
    shape, model = read_shape(tmp_path / "model.gguf"), load_model(tmp_path / "model.gguf")
    padding = 16_000  # of 300 tokens, and routers' outputs in float32, to whole pairs of panels
    assert 0 <= model.weight_bytes - shape.weight_bytes < padding
    assert shape.num_layers == len(model.windows)


def test_stacks_of_another_number_of_experts(tmp_path: Path) -> None:
    """Refused before any expert is read."""
    class_name, fields = OWN["olmoe"]
    source = save_model(getattr(transformers, class_name)(**fields), tmp_path / "source")
    write_gguf(source, tmp_path / "model.gguf", mixed)
    content = (tmp_path / "model.gguf").read_bytes()
    said = b"olmoe.expert_count" + struct.pack("<I", 4)
    told = content.replace(said + struct.pack("<I", 6), said + struct.pack("<I", 5))
    assert told != content
    (tmp_path / "model.gguf").write_bytes(told)
    with pytest.raises(ModelError, match=r"shape \(6, .*but olmoe\.expert_count is 5"):
        load_model(tmp_path / "model.gguf")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    for name in (
        "c-Q6_K-00001-of-00002.gguf",
        "c-Q6_K-00002-of-00002.gguf",
        "a-Q4_K_M.gguf",
        "a-Q4_K_S.gguf",
        "a-Q8_0.gguf",
        "b.q8_0.gguf",
    ):
        (tmp_path / name).touch()
    yield tmp_path


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("Q4_K_M", "a-Q4_K_M.gguf"), ("q4_k_s", "a-Q4_K_S.gguf"), ("b.q8_0", "b.q8_0.gguf"),
     ("a-Q8_0.gguf", "a-Q8_0.gguf"), ("Q8_0", "several such files"), ("Q4", "no such file"),
     ("Q6_K", "c-Q6_K-00001-of-00002.gguf"), ("../b.q8_0.gguf", "no such file")],
)  # fmt: skip
def test_files_by_name(directory: Path, wanted: str, found: str) -> None:
    if found.endswith(".gguf"):
        assert resolve_model(f"{directory}:{wanted}") == directory / found
        return
    with pytest.raises(ModelError, match=found):
        resolve_model(f"{directory}:{wanted}")
