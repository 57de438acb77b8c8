"""What a GGUF file says of its model is computed, or changes nothing, or is refused by name.

The fields are those of the format's own list of constants, and of llama.cpp's loaders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ModelError
from quire.models.gguf import config_of, kept_sizes, open_gguf
from quire.models.gguf.architectures import ARCHITECTURES
from quire.models.gguf.by_layer import numbers_of_layers
from support.raw_gguf import (
    floating,
    number,
    numbers,
    parts,
    string,
    strings,
    tensor,
    truth,
    written,
)

ROOT = Path(__file__).parents[3]
CHANGING = {
    "rope.scale_linear": floating(4.0),
    "rope.scaling.factor": floating(4.0),  # of no type
    "rope.scaling.attn_factor": floating(1.2),
    "rope.scaling.yarn_log_multiplier": floating(0.1),
    "rope.scaling.yarn_beta_fast": floating(16.0),
    "rope.scaling.alpha": floating(1000.0),
    "rope.dimension_sections": numbers(16, 24, 24, 0),
    "rope.dimension_count_swa": number(8),
    "rope.freq_base_swa": floating(5e5),
    "pooling_type": number(1),
    "classifier.output_labels": strings(2, "no", "yes"),
    "attention.causal": truth(False),
    "attention.sliding_window": number(16),
    "attention.sliding_window_pattern": number(4),
    "attention.scale": floating(0.5),
    "attention.clamp_kqv": floating(8.0),
    "attention.max_alibi_bias": floating(8.0),
    "attention.temperature_scale": floating(0.1),
    "attention.output_scale": floating(0.5),
    "attention.shared_kv_layers": number(2),
    "attention.rope_pattern": numbers(1, 0),
    "attention.key_length_swa": number(8),
    "attn_logit_softcapping": floating(50.0),
    "final_logit_softcapping": floating(30.0),
    "logit_scale": floating(0.25),
    "embedding_scale": floating(12.0),
    "residual_scale": floating(0.22),
    "embedding_length_out": number(16),
    "hidden_activation": string("gelu"),
    "nextn_predict_layers": number(1),
    "leading_dense_block_count": number(1),
    "swiglu_clamp_exp": numbers(7, 7),
    "expert_weights_norm": truth(True),
    "dense_2_feat_in": number(768),
    "of.tomorrow": string("yes"),
}
HARMLESS = {
    "general.name": string("a model"),
    "general.type": string("model"),
    "general.base_model.count": number(1),
    "general.sampling.temp": floating(0.6),
    "tokenizer.ggml.pre": string("qwen2"),
    "tokenizer.ggml.suppress_tokens": numbers(1, 2),
    "quantize.imatrix.file": string("imatrix.dat"),
    "quantize.imatrix.entries_count": number(224),
    "imatrix.chunk_count": number(100),
    "somebody.quantised_on": string("a day"),
    "llama.rope.scale_linear": floating(4.0),  # of another architecture
    "qwen3.vocab_size": number(4),
    "qwen3.tensor_data_layout": string("Meta AI original pth"),
    "qwen3.attention.causal": truth(True),
    "qwen3.attention.layer_norm_epsilon": floating(1e-5),
    "qwen3.attention.sliding_window": number(0),
    "qwen3.pooling_type": number(3),  # the last token's, as ever
    "qwen3.rope.scale_linear": floating(1.0),
    "qwen3.rope.scaling.factor": floating(0.0),
    "qwen3.rope.scaling.attn_factor": floating(1.0),
    "qwen3.rope.scaling.yarn_ext_factor": floating(-1.0),
    "qwen3.rope.scaling.yarn_beta_fast": floating(32.0),
    "qwen3.rope.scaling.original_context_length": number(64),
    "qwen3.rope.scaling.finetuned": truth(False),
    "qwen3.rope.dimension_sections": numbers(0, 0, 0, 0),
    "qwen3.expert_count": number(0),
    "qwen3.nextn_predict_layers": number(0),
    "qwen3.deepstack_mapping": numbers(-1, -1),
    "qwen3.logit_scale": floating(1.0),
}


def config(path: Path, fields: dict[str, bytes], tensors: dict[str, bytes] | None = None) -> Any:
    file = parts()
    file["fields"] |= fields
    file["tensors"] |= tensors or {}
    file["data"] += bytes(32)
    return config_of(open_gguf(written(file, path)))


@pytest.mark.parametrize("name", CHANGING)
def test_what_changes_the_model_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"model\.gguf: .*qwen3\.{name}"):
        config(tmp_path / "model.gguf", {f"qwen3.{name}": CHANGING[name]})


def test_a_refusal_names_all_that_is_not_understood(tmp_path: Path) -> None:
    fields = {f"qwen3.of.tomorrow_{number}": string("yes") for number in range(6)}
    with pytest.raises(ModelError, match=r"tomorrow_0, .*tomorrow_3, 2 more"):
        config(tmp_path / "model.gguf", fields)


def test_what_changes_nothing_passes(tmp_path: Path) -> None:
    plain = config(tmp_path / "plain.gguf", {})
    assert config(tmp_path / "model.gguf", HARMLESS) == plain


@pytest.mark.parametrize("name", ["adapter", "mmproj", "imatrix"])
def test_other_kinds_of_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"general.type is '{name}'; supported: model"):
        config(tmp_path / "model.gguf", {"general.type": string(name)})


def test_yarn_is_read_with_all_that_it_says(tmp_path: Path) -> None:
    fields = {
        "type": string("yarn"),
        "factor": floating(4.0),
        "original_context_length": number(16),
        "attn_factor": floating(1.0),  # llama.cpp multiplies by it
        "yarn_ext_factor": floating(1.0),
        "yarn_attn_factor": floating(1.5),
        "yarn_beta_fast": floating(16.0),
        "yarn_beta_slow": floating(2.0),
    }
    found = config(
        tmp_path / "model.gguf", {f"qwen3.rope.scaling.{k}": v for k, v in fields.items()}
    )
    assert found["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.5,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    }


def test_a_scaling_beside_divided_frequencies(tmp_path: Path) -> None:
    """llama.cpp would do both."""
    fields = {
        "qwen3.rope.scaling.type": string("linear"),
        "qwen3.rope.scaling.factor": floating(2.0),
    }
    divided = {"rope_freqs.weight": tensor((8,), 0, 224)}
    with pytest.raises(ModelError, match=r"qwen3\.rope\.scaling\.factor is 2\.0; supported: 0, 1"):
        config(tmp_path / "model.gguf", fields, divided)


def test_one_of_two_sets_of_factors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"rope_factors_short\.weight without the other"):
        config(tmp_path / "model.gguf", {}, {"rope_factors_long.weight": tensor((8,), 0, 224)})


def test_how_much_of_a_head_is_rotated(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"rope\.dimension_count must be a whole number"):
        config(tmp_path / "model.gguf", {"qwen3.rope.dimension_count": string("16")})


@pytest.mark.parametrize("name", sorted({record.name for record in ARCHITECTURES}))
def test_every_architecture_is_asked(name: str, tmp_path: Path) -> None:
    file = parts()
    fields = {key.replace("qwen3.", f"{name}."): value for key, value in file["fields"].items()}
    fields |= {
        "general.architecture": string(name),
        f"{name}.attention.layer_norm_epsilon": floating(1e-5),
        f"{name}.expert_used_count": number(2),
        f"{name}.rope.scale_linear": floating(2.0),
        **({f"{name}.embedding_scale": floating(12.0)} if name == "minicpm" else {}),
    }
    if any(record.name == name and record.has_experts for record in ARCHITECTURES):
        fields[f"{name}.expert_count"] = number(4)
    else:
        del fields[f"{name}.expert_used_count"]
    file["fields"] = fields
    with pytest.raises(ModelError, match=rf"{name}\.rope\.scale_linear is 2\.0"):
        config_of(open_gguf(written(file, tmp_path / "model.gguf")))


def test_what_a_file_does_not_say_is_as_in_llama_cpp(tmp_path: Path) -> None:
    """How wide heads are, and how Granite's scores are scaled."""
    found = config(tmp_path / "model.gguf", {})
    assert found["head_dim"] == found["hidden_size"] // found["num_attention_heads"]
    file = parts()
    file["fields"] = {k.replace("qwen3.", "granite."): v for k, v in file["fields"].items()}
    file["fields"] |= {"general.architecture": string("granite")}
    scaled = config_of(open_gguf(written(file, tmp_path / "granite.gguf")))
    assert scaled["attention_multiplier"] == found["head_dim"] ** -0.5
    file["fields"]["granite.attention.scale"] = floating(0.25)
    scaled = config_of(open_gguf(written(file, tmp_path / "granite.gguf")))
    assert scaled["attention_multiplier"] == 0.25


def test_names_that_other_converters_have(tmp_path: Path) -> None:
    """Ollama's, of models that it has converted itself."""
    other = {
        "qwen3.max_position_embeddings": number(64),
        "qwen3.attention.head_dim": number(8),
        "qwen3.rope.global.freq_base": floating(1e6),
    }
    usual = {"qwen3.attention.key_length": number(8), "qwen3.rope.freq_base": floating(1e6)}
    expected = config(tmp_path / "usual.gguf", usual)
    assert expected["head_dim"] == 8 and expected["rope_theta"] == 1e6
    assert config(tmp_path / "other.gguf", other) == expected
    assert config(tmp_path / "both.gguf", {**other, **usual}) == expected
    differing = {**usual, "qwen3.attention.head_dim": number(16)}
    with pytest.raises(ModelError, match=r"head_dim is 16, but qwen3\.attention\.key_length is 8"):
        config(tmp_path / "differing.gguf", differing)


def test_both_bases_of_gemma_3_as_ollama_names_them(tmp_path: Path) -> None:
    file = parts()
    fields = {key.replace("qwen3.", "gemma3."): value for key, value in file["fields"].items()}
    fields |= {
        "general.architecture": string("gemma3"),
        "gemma3.attention.sliding_window": number(16),
        "gemma3.rope.global.freq_base": floating(1e6),
        "gemma3.rope.local.freq_base": floating(2e4),
    }
    found = config_of(open_gguf(written({**file, "fields": fields}, tmp_path / "model.gguf")))
    bases = {kind: one["rope_theta"] for kind, one in found["rope_parameters"].items()}
    assert bases == {"full_attention": 1e6, "sliding_attention": 2e4}


def test_a_window_of_none(tmp_path: Path) -> None:
    """Phi-4's files say 0, and one that no text outgrows changes nothing anywhere."""
    from quire.models.shape import read_shape

    file = parts()
    fields = {key.replace("qwen3.", "phi3."): value for key, value in file["fields"].items()}
    fields |= {"general.architecture": string("phi3"), "phi3.attention.sliding_window": number(0)}
    path = written({**file, "fields": fields}, tmp_path / "phi4.gguf")
    assert read_shape(path).windows == ()
    fields["phi3.attention.sliding_window"] = number(16)
    path = written({**file, "fields": fields}, tmp_path / "phi3.gguf")
    assert read_shape(path).windows == (16,)
    config(tmp_path / "model.gguf", {"qwen3.attention.sliding_window": number(64)})


@pytest.mark.parametrize(
    ("layers", "further", "kept"),
    [
        (2, 1, ["blk.0"]),
        (2, 2**32 - 1, ["blk.0", "blk.1"]),
        (2**32 - 1, 2**32 - 2, ["blk.0", "blk.1"]),
    ],
)
def test_layers_that_guess_are_not_weighed(
    layers: int, further: int, kept: list[str], tmp_path: Path
) -> None:
    """What a file says of their number is work only as far as it has tensors."""
    file = parts()
    file["fields"] |= {
        "qwen3.block_count": number(layers), "qwen3.nextn_predict_layers": number(further),
    }  # fmt: skip
    file["tensors"] |= {
        f"blk.{layer}.attn_q.weight": tensor((32,), 0, 224 + 128 * layer) for layer in range(2)
    }
    file["data"] += bytes(256)
    found = [name for name, _ in kept_sizes(open_gguf(written(file, tmp_path / "model.gguf")), 2)]
    weighed = [name.rpartition(".attn_q")[0] for name in found if "attn_q" in name]
    assert weighed == kept


def test_the_weight_of_a_logarithm_is_a_number(tmp_path: Path) -> None:
    file = parts()
    fields = {key.replace("qwen3.", "mistral3."): value for key, value in file["fields"].items()}
    fields |= {
        "general.architecture": string("mistral3"),
        "mistral3.rope.scaling.type": string("yarn"),
        "mistral3.rope.scaling.factor": floating(4.0),
        "mistral3.rope.scaling.original_context_length": number(16),
        "mistral3.rope.scaling.yarn_log_multiplier": floating(0.1),
    }
    path = tmp_path / "model.gguf"
    found = config_of(open_gguf(written({**file, "fields": fields}, path)))
    assert found["rope_scaling"]["mscale_all_dim"] == pytest.approx(0.1)
    fields["mistral3.rope.scaling.yarn_log_multiplier"] = string("x")
    with pytest.raises(ModelError, match="yarn_log_multiplier is 'x', no float"):
        config_of(open_gguf(written({**file, "fields": fields}, path)))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.5], None),
        ([0.5, 0.5], "must be a number for each of 1 layers"),
        ([float("nan")], "is nan in layer 0"),
        (["0.5"], "is '0.5' in layer 0"),
        (0.5, "must be a number for each of 1 layers"),
        (None, "must be a number for each of 1 layers"),
    ],
)
def test_numbers_of_layers(values: Any, said: str | None, tmp_path: Path) -> None:
    """xIELU's, which are tensors elsewhere."""
    known = next(record for record in ARCHITECTURES if record.name == "apertus")
    file = open_gguf(written(parts(), tmp_path / "model.gguf"))
    told = {name: [0.5] for name in known.numbers}
    metadata = {"apertus.block_count": 1, **told, "xielu.beta": values}
    file = file._replace(metadata=metadata)
    if said is None:
        found = numbers_of_layers(file, known)
        assert found["model.layers.0.mlp.act_fn.beta"] == 0.5 and len(found) == 4
        return
    with pytest.raises(ModelError, match=rf"xielu\.beta {said}"):
        numbers_of_layers(file, known)


def test_the_page_of_models_names_every_architecture() -> None:
    page = (ROOT / "docs/reference/models.md").read_text()
    table = page.partition("| architecture | family |")[2].partition("\n\n")[0]
    assert {name for record in ARCHITECTURES if f"`{(name := record.name)}`" not in table} == set()
