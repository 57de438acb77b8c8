"""A decoder as data: what its parts and norms mean, and how it becomes another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from quire.core.errors import ConfigError, ModelError
from quire.kernels.layer_memory import KVShape, LayerKV
from quire.kernels.mlps import Activation
from quire.kernels.ops import AttentionSpec, Norm, Norms
from quire.kernels.reference import ReferenceKernels
from quire.models import loader
from quire.models.blueprint import Family
from quire.models.decoder import DecoderModel
from quire.models.layers import MLP, Attention, Layer, run_layers
from quire.models.linear import Joined, PlainLinear
from quire.models.llama import FAMILY as LLAMA
from quire.models.loader import load_model
from quire.models.streaming import Streaming
from support.hf_reference import random_prompts
from support.paged_batches import make_batch
from support.paged_harness import PagedHarness

ModelDir = Callable[[str], Path]

HEADS, KV_HEADS, DIM, HIDDEN, INNER = 4, 2, 8, 24, 40
EVERY_THREE = list(product([True, False], repeat=3))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def norm(used: bool) -> Norm | None:
    return Norm(HIDDEN, normal(HIDDEN), 1e-5, normal(HIDDEN), centred=True) if used else None


def make_layer(
    around_attention: tuple[bool, ...], around_mlp: tuple[bool, ...], scale: float, parallel: bool
) -> Layer:
    """One whose tokens see themselves only: attention is a choice of values."""
    heads = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
    return Layer(
        Attention(
            Joined(PlainLinear(normal(sum(heads.values()), HIDDEN) / 5), heads),
            PlainLinear(normal(HIDDEN, HEADS * DIM) / 5),
            KVShape(KV_HEADS, DIM, DIM),
            AttentionSpec(1.0, window=1),
        ),
        Norms(*map(norm, around_attention), scale),
        MLP(
            Joined(PlainLinear(normal(2 * INNER, HIDDEN) / 5), {"gate": INNER, "up": INNER}),
            PlainLinear(normal(HIDDEN, INNER) / 5),
            Activation("silu", gated=True),
        ),
        Norms(*map(norm, around_mlp), scale),
        parallel,
    )


def by_formula(layer: Layer, x: Tensor) -> Tensor:
    """x becomes after(x + scale * output(part(before(x)))), for attention and then for the MLP."""

    def normed(x: Tensor, norm: Norm | None) -> Tensor:
        if norm is None:
            return x
        return F.layer_norm(x, (HIDDEN,), norm.weight, norm.bias, norm.eps)

    def attention(h: Tensor) -> Tensor:
        values = layer.mixer.qkv.product(h)[:, -KV_HEADS * DIM :].view(-1, KV_HEADS, DIM)
        own = values.repeat_interleave(HEADS // KV_HEADS, dim=1)
        return layer.mixer.output(own.flatten(1))

    def mlp(h: Tensor) -> Tensor:
        gate, up = layer.mlp.up.product(h).chunk(2, dim=1)
        return layer.mlp.down(F.silu(gate) * up)

    first, second = layer.mixer_norms, layer.mlp_norms
    if layer.parallel:
        h = normed(x, first.before)
        given = h if second.before is None else normed(x, second.before)
        parts = normed(attention(h), first.output) + normed(mlp(given), second.output)
        return x + first.scale * parts
    for part, norms in ((attention, first), (mlp, second)):
        delta = normed(part(normed(x, norms.before)), norms.output)
        x = normed(x + norms.scale * delta, norms.after)
    return x


@pytest.mark.parametrize(("final", "parallel"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("used", EVERY_THREE)
def test_norms_around_the_parts_of_a_layer(
    used: tuple[bool, bool, bool], final: bool, parallel: bool
) -> None:
    torch.manual_seed(0)
    if parallel:
        used = (*used[:2], False)
    flipped = (*used[1::-1], used[2])
    first, second = ((True, *each[1:]) if parallel else each for each in (used, flipped))
    layers = [
        make_layer(first, flipped, 1.0, parallel),
        make_layer(second, used, 0.3, parallel),
    ]
    final_norm = norm(final)
    batch, num_blocks = make_batch([(5, 5), (9, 1)])
    x = normal(batch.query_starts[-1], HIDDEN)
    pool = torch.zeros(num_blocks, KV_HEADS, batch.block_size, DIM, dtype=torch.float64)
    kv = [LayerKV(pool.clone(), pool.clone()) for _ in layers]
    kernels = ReferenceKernels()
    found = run_layers(layers, final_norm, x.clone(), kv, kernels, kernels.plan(batch), [])
    for layer in layers:
        x = by_formula(layer, x)
    expected = x if final_norm is None else kernels.norm(x, final_norm)
    assert torch.allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize(
    ("family", "layer", "fused"),
    [
        ("biases", "model.layers.1", False),
        ("qwen3", "model.layers.1", False),
        ("phi3", "model.layers.1", True),
        ("opt", "model.decoder.layers.1", False),
    ],
)
def test_the_parts_of_a_joined_weight_are_known(
    family: str, layer: str, fused: bool, quantization: str | None, model_dir: ModelDir
) -> None:
    model = load_model(model_dir(family), quantization=quantization)
    assert isinstance(model, DecoderModel)
    stored = load_file(model_dir(family) / "model.safetensors")
    attention, mlp = model.decoder.layers[1].mixer, model.decoder.layers[1].mlp
    joined = {"self_attn.qkv": (attention.qkv, "q", "k", "v")}
    if family != "opt":
        joined["mlp.gate_up"] = (mlp.up, "gate", "up")
    x = torch.randn(3, 64)
    for whole, (own, *names) in joined.items():
        assert list(own.parts) == names
        if fused:
            sizes = list(own.parts.values())
            weights = stored[f"{layer}.{whole}_proj.weight"].split(sizes)
        else:
            places = [f"{layer}.{whole.split('.')[0]}.{name}_proj" for name in names]
            weights = [stored[f"{place}.weight"] for place in places]
            biases = [stored.get(f"{place}.bias") for place in places]
        for i, part in enumerate(own.split(own.product(x))):
            expected = F.linear(x, weights[i], None if fused else biases[i])
            tolerance = 1e-4 if quantization is None else 0.05 * float(expected.abs().max())
            assert (part - expected).abs().max() < tolerance


def streamed_logits(directory: Path, streaming: Streaming | None) -> Tensor:
    model = load_model(directory, streaming=streaming)
    return torch.cat(PagedHarness(model).prefill(random_prompts(30), 30))


def test_streaming_changes_what_is_seen_and_nothing_else(model_dir: ModelDir) -> None:
    directory = model_dir("qwen3")
    expected = streamed_logits(directory, None)
    found = streamed_logits(directory, Streaming(window=8, sinks=2))
    assert torch.allclose(found[:8], expected[:8], atol=1e-4)
    assert not torch.allclose(found[12:], expected[12:], atol=1e-2)
    model = load_model(directory, streaming=Streaming(window=8, sinks=2))
    assert model.windows == (8, 8)


@pytest.mark.parametrize(
    ("family", "message"),
    [("opt", "no rotary positions"), ("mistral", "windows of its own"), ("dynamic", "the length")],
)
def test_who_cannot_stream_is_told_before_weights_are_read(
    family: str, message: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = model_dir(family)
    monkeypatch.setattr("quire.models.weights.Weights.read", None)
    with pytest.raises(ConfigError, match=message):
        load_model(directory, streaming=Streaming(8))


def test_a_record_is_all_that_a_new_architecture_needs(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(shutil.copytree(model_dir("llama"), tmp_path / "new"))
    config = (directory / "config.json").read_text()
    (directory / "config.json").write_text(config.replace("LlamaForCausalLM", "NewForCausalLM"))
    with pytest.raises(ModelError, match="NewForCausalLM is not a decoder"):
        load_model(directory)
    family = Family(
        ("NewForCausalLM",),
        lambda config: LLAMA.read(replace(config, architecture="LlamaForCausalLM")),
    )
    monkeypatch.setitem(loader._NATIVE, "NewForCausalLM", family)
    found, expected = (
        PagedHarness(load_model(path)).prefill(random_prompts(5), 5)[0]
        for path in (directory, model_dir("llama"))
    )
    assert torch.equal(found, expected)
