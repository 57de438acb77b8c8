"""Every family computes what ``transformers`` computes, however its tokens are batched."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.models.decoder import DecoderModel
from quire.models.loader import load_model
from quire.models.transformers_model import TransformersModel
from support.hf_reference import hf_greedy, hf_logits, hf_model, random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import Tensors, rewritten
from support.small_models import FAMILIES, GEMMAS, HYBRIDS, RECORDS, VOCAB_SIZE, make_model

ModelDir = Callable[[str], Path]

FALLBACK = ("gpt2",)
STRETCHING = ("dynamic",)  # with the length of the sequence; 32 tokens at first
CHUNK = 7
FAULTY = {
    "ernie4_5_moe": "leaves the weights of new routers as memory was",
    "gemma3n": "looks for tokens behind the end of the tables of layers",
}
STEPPED = tuple(family for family in HYBRIDS if "-" not in family)  # alike, prompts and steps


def max_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def check_reference(family: str) -> None:
    """Skip a model that the first release of transformers that is allowed computes wrongly."""
    import transformers
    from transformers.models.bamba.modeling_bamba import BambaRMSNormGated

    grouped = family.startswith(("bamba", "granite_hybrid", "mamba2"))
    if grouped and "group_size" not in inspect.signature(BambaRMSNormGated).parameters:
        pytest.skip("this release of transformers normalizes all groups in one")
    if family in FAULTY and transformers.__version__.startswith("5.20."):
        pytest.skip(f"transformers 5.20 {FAULTY[family]}")


@pytest.mark.parametrize("family", [*FAMILIES, *HYBRIDS, *RECORDS, *GEMMAS])
def test_logits(family: str, model_dir: ModelDir) -> None:
    check_reference(family)
    directory, texts = model_dir(family), random_prompts(1, 5, 19, 30)
    model = load_model(directory)
    assert isinstance(model, TransformersModel if family in FALLBACK else DecoderModel)
    found = PagedHarness(model).prefill(texts, CHUNK)
    expected = [hf_logits(directory, text) for text in texts]
    assert max_difference(found, expected) < 1e-4
    assert min(logits.std() for logits in expected) > 0.05, "too flat to tell anything"


@pytest.mark.parametrize("family", STEPPED)
def test_greedy_tokens(family: str, model_dir: ModelDir) -> None:
    """Those of the others are compared in an engine: ``engine/test_parity.py``."""
    check_reference(family)
    directory, texts = model_dir(family), random_prompts(3, 25)
    model = load_model(directory, max_model_len=128)
    found = PagedHarness(model).generate(texts, 64, CHUNK)
    assert found == [hf_greedy(directory, text, 64) for text in texts]
    assert len({*found[0], *found[1]}) > 8, "too monotonous to tell anything"


@pytest.mark.parametrize("family", STRETCHING)
def test_prompts_beyond_the_original_length(family: str, model_dir: ModelDir) -> None:
    directory, texts = model_dir(family), random_prompts(20, 33, 50)
    model = load_model(directory, max_model_len=128)
    found = PagedHarness(model).prefill(texts, CHUNK)
    expected = [hf_logits(directory, text) for text in texts]
    assert max_difference(found, expected) < 1e-4


@pytest.mark.parametrize(("family", "length"), [(f, n) for f in STRETCHING for n in (32, 33)])
def test_kv_depends_on_prompt_length(family: str, length: int, model_dir: ModelDir) -> None:
    model = load_model(model_dir(family), max_model_len=length)
    assert model.kv_depends_on_prompt_length == (length > 32)


@pytest.mark.parametrize(("served", "lengths"), [(32, (1, 20, 32)), (256, (33, 50))])
def test_one_set_of_longrope_turns_all_texts(
    served: int, lengths: tuple[int, ...], model_dir: ModelDir
) -> None:
    """transformers chooses by each text; here are those for which it chooses the same."""
    from transformers import AutoModelForCausalLM

    directory = model_dir("longrope")
    model = load_model(directory, max_model_len=served)
    assert not model.kv_depends_on_prompt_length
    texts = random_prompts(*lengths)
    found = PagedHarness(model).prefill(texts, CHUNK)
    for text, logits in zip(texts, found, strict=True):
        other = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
        with torch.inference_mode():
            expected = other(torch.tensor([text]), use_cache=False).logits[0]
        assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize(("served", "set_of"), [(32, "short"), (33, "long"), (256, "long")])
def test_which_set_it_is_is_said(
    served: int, set_of: str, model_dir: ModelDir, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "quire"):
        load_model(model_dir("longrope"), max_model_len=served)
    assert f"longrope: the {set_of} factors turn all texts, since up to {served} tokens" in (
        caplog.text
    )


@pytest.mark.parametrize("family", [f for f in (*FAMILIES, *STEPPED) if f not in STRETCHING])
def test_facts(family: str, model_dir: ModelDir) -> None:
    model = load_model(model_dir(family))
    assert model.vocab_size == VOCAB_SIZE
    assert model.max_positions == 256
    assert model.eos_token_ids == (1,)
    assert model.dtype == torch.float32
    assert not model.kv_depends_on_prompt_length
    assert len(model.kv_shapes) == 2
    stored = (model_dir(family) / "model.safetensors").stat().st_size
    assert model.weight_bytes == pytest.approx(stored, rel=0.02)


@pytest.mark.parametrize(
    ("family", "sixteen"),
    [
        *((name, "bfloat16") for name in (*FAMILIES, *HYBRIDS, *RECORDS, *GEMMAS)),
        ("apertus", "float16"),
    ],
)
def test_sixteen_bits_change_little(family: str, sixteen: str, model_dir: ModelDir) -> None:
    """In most rows: in some of a mixture a router's near tie falls otherwise."""
    directory, texts = model_dir(family), random_prompts(19, 30)
    whole, rounded = (
        torch.cat(PagedHarness(load_model(directory, dtype=dtype)).prefill(texts, 64))
        for dtype in ("float32", sixteen)
    )
    errors = (rounded - whole).square().mean(1).sqrt() / whole.std()
    assert rounded.isfinite().all() and errors.median() < 0.1


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt-350m", "gemma2"])
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [("bfloat16", torch.bfloat16, 0.1), ("float16", torch.float16, 0.01)],
)
def test_half_precision(
    family: str, name: str, dtype: torch.dtype, tolerance: float, model_dir: ModelDir
) -> None:
    """As far from the float32 model as ``transformers`` is itself, give or take a half."""
    directory, texts = model_dir(family), random_prompts(5, 30)
    model = load_model(directory, dtype=name)
    assert model.dtype == dtype
    found = torch.cat(PagedHarness(model).prefill(texts, CHUNK))
    assert found.dtype == torch.float32
    expected = torch.cat([hf_logits(directory, text) for text in texts])
    with torch.inference_mode():
        other = hf_model(directory, dtype)
        theirs = torch.cat([other(torch.tensor([text])).logits[0].float() for text in texts])
    scale = expected.std()
    error, their_error = ((x - expected).square().mean().sqrt() / scale for x in (found, theirs))
    assert error < min(tolerance, 1.5 * their_error)


@pytest.mark.parametrize(
    "family", ["apertus", "hunyuan", "llama4", "phimoe", "afmoe", "exaone_moe", "granite_swa"]
)
def test_bits_do_not_depend_on_how_a_text_is_cut(family: str, model_dir: ModelDir) -> None:
    model, texts = load_model(model_dir(family), dtype="bfloat16"), random_prompts(5, 19, 30)
    several = PagedHarness(model).prefill(texts, CHUNK)
    for text, beside_others in zip(texts, several, strict=True):
        for chunk in (1, 64):
            (alone,) = PagedHarness(model).prefill([text], chunk)
            assert torch.equal(alone, beside_others)


def test_phimoe_has_factors_of_its_own_for_short_and_for_long(tmp_path: Path) -> None:
    """The frequencies are the same for both, since transformers never takes the long ones."""
    factors = {"short_factor": [1.0 + i / 8 for i in range(8)], "short_mscale": 1.3}
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 32,
        "long_factor": factors["short_factor"],
        "long_mscale": 0.8,
        **factors,
    }
    directory = make_model("phimoe", tmp_path, rope_parameters=scaling)
    for served, length in ((32, 30), (256, 40)):
        texts = random_prompts(length)
        found = PagedHarness(load_model(directory, max_model_len=served)).prefill(texts, CHUNK)
        assert max_difference(found, [hf_logits(directory, text) for text in texts]) < 1e-4


def test_a_head_that_is_stored_is_used_though_the_config_says_tied(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    def add_head(name: str, tensor: Tensor) -> Tensors:
        added = {"lm_head.weight": tensor.flip(0)} if name.endswith("embed_tokens.weight") else {}
        return {name: tensor, **added}

    directory, texts = rewritten(model_dir("smollm"), tmp_path / "head", add_head), [[3, 5, 8]]
    found = PagedHarness(load_model(directory)).prefill(texts, CHUNK)
    assert max_difference(found, [hf_logits(directory, text) for text in texts]) < 1e-4
