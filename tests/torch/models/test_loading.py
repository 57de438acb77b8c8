"""What is loaded, under which name, and what is said when it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.core.errors import ConfigError, ModelError
from quire.models.config import read_config
from quire.models.loader import load_model, resolve_model
from support.paged_harness import PagedHarness
from support.small_models import make_model

ModelDir = Callable[[str], Path]


@pytest.fixture
def edited(model_dir: ModelDir, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a family's model with fields of config.json changed; None removes one."""

    def edit(family: str, **changes: Any) -> Path:
        source = model_dir(family)
        fields = json.loads((source / "config.json").read_text())
        fields = {k: v for k, v in {**fields, **changes}.items() if v is not None}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        if not (tmp_path / "model.safetensors").exists():
            (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
        return tmp_path

    return edit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": None}, "architectures is missing"),
        ({"architectures": ["NoSuchModel"]}, "NoSuchModel is not a decoder"),
        ({"is_encoder_decoder": True}, "LlamaForCausalLM is an encoder-decoder"),
        (
            {"quantization_config": {"quant_method": "quip"}},
            "quantization_config has quant_method quip",
        ),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be int, but is '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) is not a multiple"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'; supported: gelu"),
        ({"dtype": "int8"}, "dtype is 'int8'; supported: bfloat16"),
        ({"rope_parameters": {"rope_type": "odd"}}, "rope_type is 'odd'; supported: deepseek_yarn"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor must be above 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"head_dim": 32}, "self_attn.q_proj.weight has shape"),
        ({"num_hidden_layers": 1}, "9 tensors are not part of this architecture"),
        ({"num_hidden_layers": 3}, "no tensor model.layers.2"),
        ({"eos_token_id": "end"}, "eos_token_id must be int or a list"),
    ],
    ids=str,
)
def test_faults_name_the_field(
    changes: dict[str, Any], message: str, edited: Callable[..., Path]
) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(edited("llama", **changes))


def test_layer_types_must_be_known(edited: Callable[..., Path]) -> None:
    kinds = ["full_attention", "linear_attention"]
    with pytest.raises(ModelError, match="layer_types must name full_attention or sliding"):
        load_model(edited("qwen2_window", layer_types=kinds))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama3", {"torch_dtype": "float32", "dtype": None}),
        ("yarn", {}),
        ("qwen2_window", {"layer_types": None}),
    ],
)
def test_older_spellings_are_read_the_same(
    family: str, changes: dict[str, Any], model_dir: ModelDir, edited: Callable[..., Path]
) -> None:
    """``rope_theta`` and ``rope_scaling``, ``type``, ``torch_dtype``, windows without a list."""
    rope = json.loads((model_dir(family) / "config.json").read_text())["rope_parameters"]
    old = {"rope_theta": rope.pop("rope_theta"), "rope_parameters": None}
    if rope["rope_type"] != "default":
        old["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    text = list(range(3, 33))
    models = (load_model(model_dir(family)), load_model(edited(family, **old, **changes)))
    new, older = (PagedHarness(model).prefill([text], chunk=30)[0] for model in models)
    assert torch.equal(new, older)


def test_a_window_counts_only_where_it_is_used(
    model_dir: ModelDir, edited: Callable[..., Path]
) -> None:
    """The weights of both families are the same, and ``use_sliding_window`` is false if absent."""
    unused = edited("qwen2_window", use_sliding_window=None, layer_types=None)
    directories = (model_dir("qwen2"), unused, model_dir("qwen2_window"))
    models = [load_model(directory) for directory in directories]
    full, same, windowed = (
        PagedHarness(model).prefill([list(range(3, 33))], chunk=30)[0] for model in models
    )
    assert torch.equal(full, same)
    assert not torch.allclose(full, windowed)


def test_eos_of_config_and_of_generation_config(edited: Callable[..., Path]) -> None:
    directory = edited("llama", eos_token_id=7)
    (directory / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    assert read_config(directory).eos_token_ids == (7, 9)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("auto", torch.float32), ("half", torch.float16), ("bfloat16", torch.bfloat16)],
)
def test_dtype(name: str, dtype: torch.dtype, model_dir: ModelDir) -> None:
    assert load_model(model_dir("llama"), dtype=name).dtype == dtype


def test_dtype_unknown(model_dir: ModelDir) -> None:
    with pytest.raises(ConfigError, match="dtype is 'int4'; allowed: auto, bfloat16"):
        load_model(model_dir("llama"), dtype="int4")


@pytest.mark.parametrize(
    ("family", "limit"), [("llama", 256), ("opt", 256), ("gpt2", 256), ("linear", 1024)]
)
def test_max_model_len(family: str, limit: int, model_dir: ModelDir) -> None:
    assert load_model(model_dir(family), max_model_len=limit).max_positions == limit
    for length in (0, limit + 1):
        with pytest.raises(ConfigError, match=f"this model allows 1 to {limit}"):
            load_model(model_dir(family), max_model_len=length)


def test_published_opt_names(model_dir: ModelDir, tmp_path: Path) -> None:
    """Some checkpoints of OPT have ``decoder.`` where others have ``model.decoder.``."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(model_dir("opt") / "model.safetensors")
    renamed = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((model_dir("opt") / "config.json").read_bytes())
    assert load_model(tmp_path).weight_bytes == load_model(model_dir("opt")).weight_bytes


def test_a_directory_resolves_to_itself(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["/no/such/model", "./model", "a/b/c"])
def test_paths_are_not_taken_for_names(name: str) -> None:
    with pytest.raises(ModelError, match="is not a directory"):
        resolve_model(name)


def test_a_name_that_is_none() -> None:
    with pytest.raises(ModelError, match="neither a directory nor a valid Hugging Face name"):
        resolve_model("what is this?")


def test_a_name_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="not in the cache, and Hugging Face cannot be reached"):
        resolve_model("some-owner/some-model")


def test_directory_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="is not a directory"):
        load_model(tmp_path / "missing")


def test_native_models_do_not_import_transformers(model_dir: ModelDir) -> None:
    code = (
        "import sys; from pathlib import Path; from quire.models.loader import load_model; "
        "load_model(Path(sys.argv[1])); assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(model_dir("llama"))], check=True)


def test_a_mixture_that_does_not_fit_is_told_in_which_form_it_would(tmp_path: Path) -> None:
    directory, asked = make_model("mixtral", tmp_path), list[int]()

    def admit(num_bytes: int, room: int) -> None:
        asked.append(num_bytes)
        if num_bytes > room:
            raise ModelError(f"{num_bytes:,} of {room:,}")

    with pytest.raises(ModelError, match=r"^[\d,]+ of 1$"):
        load_model(directory, admit=partial(admit, room=1))
    whole, int8, int4, in_file = asked
    assert int4 < int8 < whole and in_file < whole
    for room, form in ((int8, "int8"), (int4, "int4")):
        with pytest.raises(
            ModelError, match=rf"--quantization {form} it takes {room:,}(\. With|$)"
        ):
            load_model(directory, admit=partial(admit, room=room))
        load_model(directory, admit=partial(admit, room=room), quantization=form)
    load_model(directory, admit=partial(admit, room=int4), quantization="w4a8")
