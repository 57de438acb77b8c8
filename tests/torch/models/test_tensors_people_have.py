"""Tensors as savers leave them: biases of zeros, one table under either name, names without prefix.

The references are transformers' own models of the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor

from quire.core.errors import ModelError
from quire.kernels.mlps import Experts
from quire.models import loader
from quire.models.encoder import TextBatch
from quire.models.loader import load_encoder, load_model
from support.hf_reference import hf_logits, hf_model, random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import Tensors, as_floats, awq, gptq, is_projection, rewritten
from support.rounded_checkpoints import rounded as int4_of
from support.small_encoders import make_encoder
from support.small_models import SMALL_LLAMA, make_model

ModelDir = Callable[[str], Path]

WHOLE = "model.safetensors"


def logits(directory: Path, **options: Any) -> list[Tensor]:
    return PagedHarness(load_model(directory, **options)).prefill(random_prompts(5, 30), 7)


def check_as(found: list[Tensor], reference: Path, tolerance: float = 1e-3) -> None:
    for one, text in zip(found, random_prompts(5, 30), strict=True):
        assert (one - hf_logits(reference, text)).abs().max() < tolerance


def with_biases(name: str, tensor: Tensor, value: float = 0.0) -> Tensors:
    """As AutoGPTQ wrote them for every projection."""
    if not is_projection(name):
        return {name: tensor}
    bias = torch.zeros(len(tensor), dtype=torch.float16)
    bias[-1] = value
    return {name: tensor, f"{name.removesuffix('.weight')}.bias": bias}


@pytest.mark.parametrize("method", ["gptq", "awq", "floats"])
def test_biases_of_zeros_are_left_out(method: str, model_dir: ModelDir, tmp_path: Path) -> None:
    def packed(name: str, tensor: Tensor) -> Tensors:
        found = with_biases(name, tensor)
        if method == "floats" or not is_projection(name):
            return found
        weight, bare = found.pop(name), name.removesuffix(".weight")
        symmetric = method == "gptq"
        return found | (gptq(bare, weight, 32, symmetric) if symmetric else awq(bare, weight, 32))

    def floats(name: str, tensor: Tensor) -> Tensors:
        if method == "floats" or not is_projection(name):
            return {name: tensor}
        return {name: as_floats(*int4_of(tensor, 32, symmetric=method == "gptq"))}

    config = {"quant_method": method, "bits": 4, "group_size": 32} if method != "floats" else None
    source = model_dir("llama")
    found = logits(rewritten(source, tmp_path / "packed", packed, config))
    check_as(found, rewritten(source, tmp_path / "floats", floats))


@pytest.mark.parametrize("value", [1e-6, -1.0, float("nan")])
def test_other_biases_are_refused(value: float, model_dir: ModelDir, tmp_path: Path) -> None:
    directory = rewritten(
        model_dir("llama"), tmp_path / "biased", lambda n, t: with_biases(n, t, value)
    )
    with pytest.raises(ModelError, match=r"14 tensors are not part .*\.bias"):
        load_model(directory)


def test_biases_of_zeros_through_transformers(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_NATIVE", {})
    directory = rewritten(model_dir("llama"), tmp_path / "zeros", with_biases)
    check_as(logits(directory), model_dir("llama"))
    biased = rewritten(model_dir("llama"), tmp_path / "ones", lambda n, t: with_biases(n, t, 1.0))
    with pytest.raises(ModelError, match=r"unexpected tensors: .*\.bias"):
        load_model(biased)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_masks_of_old_checkpoints_through_transformers(prefix: str, tmp_path: Path) -> None:
    """As GPT-2's savers of other times left them in each layer."""
    directory = make_model("gpt2", tmp_path)
    before = logits(directory)
    tensors = load_file(directory / WHOLE)
    names = {name: f"{prefix}{name.removeprefix('transformer.')}" for name in tensors}
    masks: Tensors = {f"{prefix}h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in (0, 1)}
    masks[f"{prefix}h.0.attn.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.uint8)
    save_file({**{names[n]: t for n, t in tensors.items()}, **masks}, directory / WHOLE)
    assert all(map(torch.equal, logits(directory), before))


def test_zeros_of_a_decoder_alone_through_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_NATIVE", {})
    directory = rewritten(make_model("llama", tmp_path / "model"), tmp_path / "zeros", with_biases)
    tensors = load_file(directory / WHOLE)
    save_file({n.removeprefix("model."): t for n, t in tensors.items()}, directory / WHOLE)
    check_as(logits(directory), tmp_path / "model")


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_tables_of_old_encoders(family: str, tmp_path: Path) -> None:
    directory, batch = make_encoder(family, tmp_path), TextBatch(torch.tensor([[2, 5, 6, 3]]))

    def states() -> Tensor:
        return load_encoder(directory, "auto", None, None, lambda num_bytes: None).forward(batch)

    before, tensors = states(), load_file(directory / WHOLE)
    numbers = torch.arange(64)[None]
    tables = {"position_ids": numbers, "token_type_ids": torch.zeros_like(numbers)}
    more = {f"embeddings.{name}": table for name, table in tables.items()}
    save_file({**tensors, **more}, directory / WHOLE)
    assert torch.equal(states(), before)


OWN = ("smollm", "qwen2.5", "gpt2", "opt", "opt-350m", "gemma2", "falcon")
FOREIGN = ("smollm", "gemma2")
TIED = [*((one, "Quire") for one in OWN), *((one, "transformers") for one in FOREIGN)]


@pytest.mark.parametrize("kept", ["head", "embedding", "safetensors"])
@pytest.mark.parametrize(("family", "through"), TIED)
def test_a_table_that_is_stored_once(
    family: str, through: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors' own save_model keeps one of the names of what is shared."""
    if through == "transformers":
        monkeypatch.setattr(loader, "_NATIVE", {})
    directory = make_model(family, tmp_path / "model")
    fields = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**fields, "tie_word_embeddings": True}))
    tensors = load_file(directory / WHOLE)
    tensors.pop("lm_head.weight", None)
    save_file(tensors, directory / WHOLE, metadata={"format": "pt"})
    module = hf_model(directory)
    expected = [module(torch.tensor([text])).logits[0] for text in random_prompts(5, 30)]
    if kept == "safetensors":
        save_model(module, str(directory / WHOLE))
    else:
        tensors = dict(module.state_dict())
        table = module.get_input_embeddings().weight
        names = [name for name, one in tensors.items() if one.data_ptr() == table.data_ptr()]
        assert len(names) == 2
        heads = [name for name in names if name.startswith(("lm_head", "embed_out"))]
        tensors.pop(*(set(names) - set(heads) if kept == "head" else heads))
        save_file({n: t.clone() for n, t in tensors.items()}, directory / WHOLE)
    for one, reference in zip(logits(directory), expected, strict=True):
        assert (one - reference).abs().max() < 1e-3


def test_a_head_is_not_made_of_an_embedding_that_is_its_own(tmp_path: Path) -> None:
    directory = make_model("llama", tmp_path)
    for left, message in (
        ("lm_head.weight", "no tensor lm_head"),
        ("model.embed_tokens.weight", "no tensor model.embed_tokens.weight"),
    ):
        tensors = load_file(directory / WHOLE)
        kept = tensors.pop(left)
        save_file(tensors, directory / WHOLE)
        with pytest.raises(ModelError, match=message):
            load_model(directory)
        save_file({**tensors, left: kept}, directory / WHOLE)


def test_a_decoder_alone_beside_its_head(tmp_path: Path) -> None:
    """Whose names have lost what they begin with."""
    directory = make_model("llama", tmp_path)
    before = logits(directory)
    tensors = load_file(directory / WHOLE)
    save_file({n.removeprefix("model."): t for n, t in tensors.items()}, directory / WHOLE)
    assert all(map(torch.equal, logits(directory), before))


def by_outputs(name: str, tensor: Tensor) -> Tensors:
    scales = tensor.abs().amax(dim=1, keepdim=True) / 127
    codes = (tensor / scales).round().to(torch.int8)
    return {name: codes, f"{name.removesuffix('.weight')}.weight_scale": scales}


@pytest.mark.parametrize("spelling", ["", "model."])
def test_an_embedder_without_its_prefix_that_is_rounded_by_outputs(
    spelling: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Its config may call projections either way; here one is ignored, and one is a pattern's."""
    ignored = f"{spelling}layers.0.mlp.up_proj"

    def packed(name: str, tensor: Tensor) -> Tensors:
        own = name.removeprefix("model.")
        if name == "lm_head.weight":
            return {}
        if not is_projection(name) or own == "layers.0.mlp.up_proj.weight":
            return {own: tensor}
        return by_outputs(own, tensor)

    def floats(name: str, tensor: Tensor) -> Tensors:
        if not is_projection(name) or name == "model.layers.0.mlp.up_proj.weight":
            return {name: tensor}
        codes, scales = by_outputs(name, tensor).values()
        return {name: codes * scales}

    group = {"targets": ["re:(model.)?layers.*"], "weights": {"num_bits": 8, "strategy": "channel"}}
    config = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": [ignored],
    }
    source = model_dir("qwen3")
    directory = rewritten(source, tmp_path / "packed", packed, config)
    fields = json.loads((directory / "config.json").read_text())
    fields["architectures"] = ["Qwen3Model"]
    (directory / "config.json").write_text(json.dumps(fields))
    whole = hf_model(rewritten(source, tmp_path / "floats", floats))
    model = load_model(directory)
    found = PagedHarness(model).prefill(random_prompts(5, 30), 7)
    table = whole.get_input_embeddings().weight
    for one, text in zip(found, random_prompts(5, 30), strict=True):
        states = whole.model(torch.tensor([text])).last_hidden_state[0]
        assert (one - states @ table.T).abs().max() < 1e-3


FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
OF_FLOATS = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}
FROZEN = {
    "quant_method": "compressed-tensors",
    "format": "naive-quantized",
    "quantization_status": "frozen",
    "config_groups": {"group_0": OF_FLOATS},
    "ignore": ["lm_head"],
}


@pytest.mark.parametrize("config", [FP8, FROZEN], ids=["AutoFP8", "compressed-tensors"])
def test_eight_bit_floats_as_the_first_tools_wrote_them(
    config: dict[str, Any], model_dir: ModelDir, tmp_path: Path
) -> None:
    """With a single scale for keys and values, which are kept as the engine is told to."""

    def packed(name: str, tensor: Tensor) -> Tensors:
        if not is_projection(name):
            return {name: tensor}
        scale, bare = tensor.abs().amax() / 448, name.removesuffix(".weight")
        found = {
            name: (tensor / scale).to(torch.float8_e4m3fn),
            f"{bare}.weight_scale": scale[None],
        }
        if name.endswith("k_proj.weight"):
            found[f"{bare.removesuffix('.k_proj')}.kv_scale"] = torch.ones(1)
        return found

    def floats(name: str, tensor: Tensor) -> Tensors:
        values = list(packed(name, tensor).values())
        return {name: values[0].float() * values[1] if len(values) > 1 else tensor}

    source = model_dir("llama")
    found = logits(rewritten(source, tmp_path / "packed", packed, config))
    check_as(found, rewritten(source, tmp_path / "floats", floats))


def test_auto_gptq_as_it_left_models(model_dir: ModelDir, tmp_path: Path) -> None:
    """What says how weights are rounded in a file of its own, a name of its own, and zeros."""

    def packed(name: str, tensor: Tensor) -> Tensors:
        found = with_biases(name, tensor)
        if not is_projection(name):
            return found
        weight = found.pop(name)
        return found | gptq(name.removesuffix(".weight"), weight, 32, True)

    source = model_dir("smollm")
    directory = rewritten(source, tmp_path / "packed", packed)
    (directory / WHOLE).rename(directory / "gptq_model-4bit-32g.safetensors")
    told = {"bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": False, "sym": True,
            "model_name_or_path": None, "model_file_base_name": None}  # fmt: skip
    (directory / "quantize_config.json").write_text(json.dumps(told))

    def floats(name: str, tensor: Tensor) -> Tensors:
        if not is_projection(name):
            return {name: tensor}
        return {name: as_floats(*int4_of(tensor, 32, symmetric=True))}

    check_as(logits(directory), rewritten(source, tmp_path / "floats", floats))


def without_dtype(directory: Path, dtype: torch.dtype) -> Path:
    """A model of older times: its weights alone tell their type."""
    tensors = load_file(directory / WHOLE)
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, directory / WHOLE)
    fields = json.loads((directory / "config.json").read_text())
    del fields["dtype"]
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_configs_that_say_no_type(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = without_dtype(make_model("olmo2", tmp_path / "decoder"), dtype)
    assert load_model(decoder).dtype == dtype
    monkeypatch.setattr(loader, "_NATIVE", {})
    assert load_model(decoder).dtype == dtype
    encoder = without_dtype(make_encoder("Bert", tmp_path / "encoder"), dtype)
    model = load_encoder(encoder, "auto", None, None, lambda num_bytes: None)
    assert model.dtype == dtype
    assert model.forward(TextBatch(torch.tensor([[2, 5, 6, 3]]))).dtype == dtype


def edited(source: Path, directory: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """The model of ``source`` with another config."""
    directory.mkdir()
    for file in source.iterdir():
        (directory / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    edit(config)
    (directory / "config.json").unlink()
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_part_of_each_head_is_turned_by_its_older_name(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """Published MiniMax-M2 has ``rotary_dim``, and no share."""

    def older(config: dict[str, Any]) -> None:
        theta = config.pop("rope_parameters")["rope_theta"]
        config.update(rotary_dim=8, rope_theta=theta)
        config.pop("partial_rotary_factor", None)

    directory = model_dir("minimax_m2")
    found = logits(edited(directory, tmp_path / "older", older))
    assert all(map(torch.equal, found, logits(directory)))
    check_as(found, directory, 1e-4)

    def whole(config: dict[str, Any]) -> None:
        older(config)
        config["rotary_dim"] = 16

    assert not torch.equal(logits(edited(directory, tmp_path / "whole", whole))[1], found[1])


@pytest.mark.parametrize("family", ["glm4_moe_lite", "minimax_m2", "afmoe", "lfm2_moe"])
def test_numbers_that_choose_experts_keep_their_digits(
    family: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    """GLM 5's lie between 6.8 and 7.1, where bfloat16 has eight numbers for hundreds of them."""
    biases: list[Tensor] = []

    def near_seven(name: str, tensor: Tensor) -> Tensors:
        if not name.endswith(("e_score_correction_bias", "expert_bias")):
            return {name: tensor}
        biases.append(7 + 0.01 * torch.rand(tensor.shape, dtype=torch.float32))
        return {name: biases[-1]}

    directory = rewritten(model_dir(family), tmp_path / "near", near_seven)
    model = load_model(directory, dtype="bfloat16")
    found = [
        layer.mlp.routing.bias
        for layer in model.decoder.layers  # type: ignore[attr-defined]
        if isinstance(layer.mlp, Experts)
    ]
    assert found and all(any(torch.equal(one, bias) for bias in biases) for one in found)


@pytest.mark.parametrize("family", ["hy_v3", "exaone_moe", "deepseek_v3"])
def test_routers_in_float32_tell_near_ties_apart(
    family: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Rows of routers differ by less than bfloat16 has digits for; transformers keeps them too."""

    def near(name: str, tensor: Tensor) -> Tensors:
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            return {name: tensor * 0}
        if not name.endswith(("mlp.gate.weight", "router.gate.weight")):
            return {name: tensor}
        shares = torch.rand((len(tensor), 1), generator=torch.Generator().manual_seed(1))
        return {name: tensor[:1] + 2e-4 * tensor[:1].abs().mean() * (shares - 0.5)}

    directory = rewritten(model_dir(family), tmp_path / "near", near)
    texts = random_prompts(40)
    found, expected = (
        PagedHarness(load_model(directory, dtype=dtype)).prefill(texts, 64)[0]
        for dtype in ("bfloat16", "float32")
    )
    errors = (found - expected).square().mean(1).sqrt() / expected.std()
    assert errors.median() < 0.1


def test_weights_of_experts_are_scores_without_what_their_choice_adds(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """However large that is, as GLM 5's are: taken off again, less would be left of a score."""

    def large(name: str, tensor: Tensor) -> Tensors:
        is_bias = name.endswith("e_score_correction_bias")
        return {name: tensor + 30 if is_bias else tensor}

    directory = rewritten(model_dir("glm4_moe"), tmp_path / "large", large)
    found = logits(directory)
    assert all(one.isfinite().all() for one in found)
    check_as(found, directory, 1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_that_is_tied_is_so_in_a_whole_that_is_not(tied: bool, tmp_path: Path) -> None:
    """As llava-onevision-qwen2-0.5b is published; where there is a head, that is the head."""
    text = {
        **SMALL_LLAMA,
        "model_type": "qwen2",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
    config = {
        "architectures": ["LlavaOnevisionForConditionalGeneration"],
        "model_type": "llava_onevision",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model"},
    }
    source = make_model("qwen2.5" if tied else "qwen2", tmp_path / "source")
    (source / "config.json").write_text(json.dumps(config))
    found = logits(source)
    text.update(architectures=["Qwen2ForCausalLM"], tie_word_embeddings=tied)
    (source / "config.json").write_text(json.dumps(text))
    check_as(found, source, 1e-4)
