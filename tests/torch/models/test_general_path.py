"""What transformers computes: its products, norms, MLPs and experts become ours, checked."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from quire.capabilities.adapters.checkpoint import check_adapter
from quire.core.errors import ConfigError, ModelError
from quire.kernels.ranks import Ranks
from quire.models import loader, transformers_model
from quire.models.adaptable import adaptable, num_layers
from quire.models.config import read_config
from quire.models.loader import load_model
from quire.models.transformers_loading import LeftInFiles, load_causal_lm
from quire.models.transformers_model import TransformersModel
from quire.models.weights import Weights
from support.lora import merge, save_adapter
from support.paged_harness import PagedHarness
from support.small_models import SMALL_LLAMA, VOCAB_SIZE, save_model
from support.thread_ranks import on_ranks

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FIELDS: dict[str, dict[str, Any]] = {
    "Afmoe": {  # a gate beside queries, keys and values
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "num_shared_experts": 1,
        "sliding_window": 8,
    },
    "Apertus": {},  # an activation with weights, no gate
    "BioGpt": {},  # of which no parameter is left
    "GPT2": {"n_inner": 96},  # weights that are turned, a head that is the embedding
    "Llama": {},
    "Mixtral": EXPERTS,
    "NanoChat": {},  # norms without weights
    "Phi3": {},  # projections that are in one
    "Phimoe": EXPERTS,
}
OURS = {
    "Afmoe": ("ChosenExperts", "FusedMLP", "Normed", "Product"),
    "Apertus": ("FusedAttention", "Normed", "Product"),
    "BioGpt": ("FusedAttention", "Normed", "Product"),
    "GPT2": ("FusedAttention", "FusedLayer", "FusedMLP", "HeadRows", "Normed"),
    "Llama": ("FusedAttention", "FusedLayer", "FusedMLP", "Normed"),
    "Mixtral": ("ChosenExperts", "FusedAttention", "Normed"),
    "NanoChat": ("FusedMLP", "Normed", "Product"),  # it turns heads, then norms them
    "Phimoe": ("ChosenExperts", "FusedAttention", "Normed"),
}
KNOWN = {"Linear", "Conv1D", *(name for names in OURS.values() for name in names)}


def saved(architecture: str, root: Path) -> Path:
    directory = root / architecture
    if not directory.exists():
        config = getattr(transformers, f"{architecture}Config")
        fields = {**SMALL_LLAMA, "pad_token_id": 2, **FIELDS[architecture]}
        save_model(config(**fields), directory)
    return directory


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Saves a small model of an architecture, and loads it as if there were no code of ours."""

    usual, lock = transformers_model.load_causal_lm, threading.Lock()

    def one_at_a_time(*args: Any) -> Any:  # of the ranks, which are threads here
        with lock:
            return usual(*args)

    monkeypatch.setattr(transformers_model, "load_causal_lm", one_at_a_time)

    def make(architecture: str, **settings: Any) -> TransformersModel:
        directory = saved(architecture, tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(loader, "_NATIVE", {})
            model = load_model(directory, **settings)
        assert isinstance(model, TransformersModel)
        return model

    return make


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (1, 19, 30)]


@pytest.mark.parametrize("architecture", OURS)
def test_modules_are_ours_where_they_compute_the_same(architecture: str, foreign: Any) -> None:
    found = {type(module).__name__ for module in foreign(architecture)._decoder.modules()}
    assert found & KNOWN == set(OURS[architecture])


def test_attention_that_is_other_at_far_positions_stays(
    foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama.modeling_llama import LlamaAttention

    usual = LlamaAttention.forward

    def forward(self: Any, **keywords: Any) -> Any:
        states, weights = usual(self, **keywords)
        return states * (1 + (keywords["position_ids"] > 200)[..., None] / 8), weights

    monkeypatch.setattr(LlamaAttention, "forward", forward)
    layer: Any = foreign("Llama")._decoder.layers[0]
    assert type(layer).__name__ == "LlamaDecoderLayer"
    assert type(layer.self_attn).__name__ == "LlamaAttention"


@pytest.mark.parametrize("architecture", ["Apertus", "Llama", "Phimoe"])
def test_bits_depend_on_the_text_alone(architecture: str, foreign: Any) -> None:
    model = foreign(architecture, dtype="bfloat16")
    several = PagedHarness(model).prefill(texts(), chunk=7)
    for text, beside_others in zip(texts(), several, strict=True):
        (alone,) = PagedHarness(model).prefill([text], chunk=64)
        assert torch.equal(alone, beside_others)


@pytest.mark.parametrize("architecture", ["Llama", "Mixtral"])
@pytest.mark.parametrize("quantization", ["int8", "w8a8"])
def test_weights_are_rounded_as_in_models_of_our_own(
    architecture: str, quantization: str, foreign: Any, tmp_path: Path
) -> None:
    model = foreign(architecture, quantization=quantization)
    own = load_model(tmp_path / architecture, quantization=quantization)
    assert model.weight_bytes <= 1.02 * own.weight_bytes
    for found, expected in zip(*(logits(one) for one in (model, own)), strict=True):
        assert (found - expected).norm() < 0.02 * expected.norm()


def logits(model: Any) -> list[Tensor]:
    return PagedHarness(model).prefill(texts(), chunk=7)


def test_four_bits(foreign: Any) -> None:
    exact, rounded = foreign("Apertus"), foreign("Apertus", quantization="int4")
    assert rounded.weight_bytes < 0.4 * exact.weight_bytes
    found, expected = logits(rounded)[2], logits(exact)[2]
    assert 0 < (found - expected).norm() < 0.4 * expected.norm()


def test_weights_stay_in_their_files_until_they_are_packed(foreign: Any, tmp_path: Path) -> None:
    foreign("Apertus")
    directory = tmp_path / "Apertus"
    weights = Weights(directory, None)
    left = LeftInFiles(weights)
    module = load_causal_lm(read_config(directory), weights, left)
    layers = [one for one in module.model.modules() if isinstance(one, nn.Linear)]
    assert layers
    for layer in layers:
        assert layer.weight.untyped_storage().nbytes() == layer.weight.itemsize
        assert left.weight(layer).shape == layer.weight.shape
        assert left.weight(layer).isfinite().all()


def test_a_layer_whose_weight_is_used_in_other_ways_stays(
    foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.apertus.modeling_apertus import ApertusMLP

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.linear(self.act_fn(self.up_proj(x)), self.weight()))

    def weight(self: Any) -> Tensor:
        return torch.eye(self.down_proj.weight.shape[1])

    expected = logits(foreign("Apertus"))
    monkeypatch.setattr(ApertusMLP, "forward", forward)
    monkeypatch.setattr(ApertusMLP, "weight", weight, raising=False)
    model = foreign("Apertus")
    mlp: Any = model._decoder.layers[0].mlp
    assert (type(mlp.up_proj).__name__, type(mlp.down_proj)) == ("Product", nn.Linear)
    for found, wanted in zip(logits(model), expected, strict=True):
        assert (found - wanted).abs().max() < 1e-4


@pytest.mark.parametrize(("architecture", "dora"), [("Apertus", False), ("Llama", True)])
def test_adapters(architecture: str, dora: bool, foreign: Any, tmp_path: Path) -> None:
    """As if they were merged; of modules that share a product one may have none."""
    model, directory = foreign(architecture), tmp_path / architecture
    targets = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    adapter = save_adapter(tmp_path / "adapter", directory, targets=targets, use_dora=dora)
    merge(directory, adapter, tmp_path / "merged")
    updates = check_adapter(adapter, adaptable(model), 8).read().updates
    found = PagedHarness(model, updates=updates).prefill(texts(), chunk=7)
    for with_adapter, wanted in zip(found, logits(load_model(tmp_path / "merged")), strict=True):
        assert (with_adapter - wanted).abs().max() < 1e-4
    assert 1 + max(layer for layer, _ in updates) <= num_layers(model)


def test_what_is_rounded_already_is_refused(foreign: Any, tmp_path: Path) -> None:
    foreign("BioGpt")
    fields = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
    with pytest.raises(ModelError, match="weights that are rounded already"):
        load_model(tmp_path / "BioGpt", hf_overrides=fields)


DIVIDED = {
    "GPT2": (2, 0.75),  # heads of keys and values, and bytes of a rank's, of all
    "Llama": (1, 0.75),
    "Mixtral": (1, 0.65),
    "NanoChat": (2, 0.9),  # attention is transformers' own
}


@pytest.mark.parametrize(
    ("architecture", "quantization"), [*((name, None) for name in DIVIDED), ("Llama", "int8")]
)
def test_ranks_give_what_one_gives(
    architecture: str, quantization: str | None, foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bits that do not depend on who else is there."""
    monkeypatch.setattr(loader, "_NATIVE", {})
    whole = foreign(architecture, quantization=quantization)
    heads, part = DIVIDED[architecture]

    def run(ranks: Ranks) -> list[Tensor]:
        model = foreign(architecture, quantization=quantization, ranks=ranks)
        assert {shape.num_kv_heads for shape in model.kv_shapes} == {heads}
        assert quantization or model.weight_bytes < part * whole.weight_bytes
        return [*logits(model), *PagedHarness(model).prefill(texts()[1:2], chunk=64)]

    (first, *others), expected = on_ranks(2, run), logits(whole)
    most = 2e-5 if quantization is None else 0.03
    for found, wanted in zip(first, expected, strict=False):
        assert (found - wanted).norm() < most * wanted.norm()
    assert torch.equal(first[1], first[3])
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(other, first, strict=True))


def test_adapters_on_ranks(foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    adapter = save_adapter(tmp_path / "adapter", saved("Llama", tmp_path), targets=targets)
    merge(tmp_path / "Llama", adapter, tmp_path / "merged")
    expected = logits(load_model(tmp_path / "merged"))
    monkeypatch.setattr(loader, "_NATIVE", {})

    def run(ranks: Ranks) -> list[Tensor]:
        model = foreign("Llama", ranks=ranks)
        updates = check_adapter(adapter, adaptable(model), 8).read().updates
        return PagedHarness(model, updates=updates).prefill(texts(), chunk=7)

    for found, wanted in zip(on_ranks(2, run)[0], expected, strict=True):
        assert (found - wanted).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("architecture", "size", "message"),
    [
        ("Llama", 3, "3, but that many ranks do not divide the 4 heads of LlamaForCausalLM"),
        ("Phi3", 2, "2, but of Phi3ForCausalLM all is transformers' own; allowed: 1"),
    ],
)
def test_what_ranks_do_not_divide_is_refused(
    architecture: str,
    size: int,
    message: str,
    foreign: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved(architecture, tmp_path)
    monkeypatch.setattr(loader, "_NATIVE", {})
    with pytest.raises(ConfigError, match=message):
        on_ranks(size, lambda ranks: foreign(architecture, ranks=ranks))
