"""Models in which an index chooses the tokens that one attends to: memory, forms, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, ModelError
from quire.engine.assembly.loading import cache_shape
from quire.models.decoder import DecoderModel
from quire.models.latent_attention import LatentAttention
from quire.models.loader import load_model
from quire.models.shape import read_shape
from quire.models.streaming import Streaming
from support.hf_reference import hf_greedy, hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import rewritten
from support.small_models import INDEXED, make_model

ModelDir = Callable[[str], Path]

with_families = pytest.mark.parametrize("family", INDEXED)
CACHES = {"int8": torch.int8, "int4": torch.int4}


def attention(directory: Path) -> list[LatentAttention]:
    model = load_model(directory)
    assert isinstance(model, DecoderModel)
    return [one for layer in model.decoder.layers for one in layer.mixers]  # type: ignore[misc]


def edited(source: Path, target: Path, **fields: object) -> Path:
    directory = rewritten(source, target, lambda name, tensor: {name: tensor})
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return directory


@with_families
@pytest.mark.parametrize("kept", ["float32", "int8", "int4"])
def test_a_plan_has_the_bytes_that_the_engine_takes(
    family: str, kept: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Latents of 128 numbers, for 4 bits, and keys of 24; of scaled ones 4 bytes more."""
    directory = make_model(family, tmp_path, kv_lora_rank=120)
    dtype = CACHES.get(kept, torch.float32)
    shape = replace(read_shape(directory), kv_dtype=None if kept == "float32" else kept)
    planned, taken = shape.cache(), cache_shape(load_model(directory), dtype)
    for name in ("token_bytes", "scale_bytes", "rows"):
        assert getattr(planned, name) == getattr(taken, name), name
    row, key = {"float32": (512, 96), "int8": (132, 28), "int4": (68, 28)}[kept]
    own = (True, True, True) if family == "deepseek_v32" else (True, False, False, True)
    assert taken.token_bytes == tuple(row + key * has for has in own)


def test_the_pool_is_of_these_bytes_and_swaps_them(model_dir: ModelDir) -> None:
    """Whatever is swapped comes back with its keys: so texts are those that run alone."""
    directory, prompts = model_dir("glm_moe_dsa"), random_prompts(41, 37, 33)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    expected = [hf_greedy(directory, prompt, 24) for prompt in prompts]
    llm = LLM(
        directory,
        block_size=4,
        max_model_len=128,
        kv_cache_memory_bytes=40 * 4 * read_shape(directory).kv_bytes_per_token,
        preemption_mode="swap",
        swap_space=0.001,
    )
    assert llm.capacity.num_blocks == 40
    assert llm.capacity.kv_bytes_per_token == read_shape(directory).kv_bytes_per_token
    found = llm.generate(prompts, params, use_tqdm=False)
    assert [one.outputs[0].token_ids for one in found] == expected
    assert sum(one.metrics.num_preemptions for one in found) > 0


@pytest.mark.parametrize(("kept", "most"), [("int8", 0.15), ("int4", 1.5)])
def test_rounded_caches_do_not_depend_on_steps(kept: str, most: float, tmp_path: Path) -> None:
    """In blocks of 16, whose keys would lie side by side if no token were chosen."""
    directory = make_model("glm_moe_dsa", tmp_path, kv_lora_rank=120, index_topk=24)
    params = SamplingParams(temperature=0.0, max_tokens=8, prompt_logprobs=0, ignore_eos=True)
    found = []
    for dtype, tokens in (("auto", 256), (kept, 256), (kept, 7)):
        llm = LLM(
            directory,
            max_model_len=128,
            kv_cache_memory_bytes="1MiB",
            kv_cache_dtype=dtype,
            max_num_batched_tokens=tokens,
            enable_prefix_caching=False,
        )
        (one,) = llm.generate(random_prompts(60), params, use_tqdm=False)
        assert one.prompt_logprobs is not None
        tables = (table for table in one.prompt_logprobs if table)
        found.append([next(iter(table.values())).logprob for table in tables])
    plain, whole, cut = found
    assert whole == cut
    assert 0 < sum(abs(a - b) for a, b in zip(plain, whole, strict=True)) / len(plain) < most


@with_families
@pytest.mark.parametrize(("form", "tolerance"), [("int8", 0.25), ("int4", 0.9)])
def test_rounded(family: str, form: str, tolerance: float, model_dir: ModelDir) -> None:
    directory, texts = model_dir(family), random_prompts(20)
    found = PagedHarness(load_model(directory, quantization=form)).prefill(texts, 7)[0]
    expected = hf_logits(directory, texts[0])
    assert (found - expected).square().mean().sqrt() < tolerance * expected.std()


@pytest.mark.parametrize("interleaved", [True, False])
@with_families
def test_a_field_says_which_numbers_turn_together(
    family: str, interleaved: bool, model_dir: ModelDir, tmp_path: Path
) -> None:
    """transformers has one way for each family, whatever the field says."""
    usual = family == "glm_moe_dsa"
    directory = edited(model_dir(family), tmp_path / "x", indexer_rope_interleave=interleaved)
    text = random_prompts(30)
    found = PagedHarness(load_model(directory)).prefill(text, 7)[0]
    error = (found - hf_logits(model_dir(family), text[0])).abs().max()
    assert (error < 1e-4) == (interleaved == usual)


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ({"index_topk_freq": 2}, (True, True, False, True)),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, (True, False, False, True)),
        ({"index_topk_pattern": "FSFF"}, (True, False, True, True)),
        ({"index_topk_pattern": ["full", "full", "shared", "full"]}, (True, True, False, True)),
    ],
)
def test_which_layers_have_an_index(
    fields: dict[str, object], own: tuple[bool, ...], tmp_path: Path
) -> None:
    """As transformers takes these fields, which older files have."""
    directory = make_model("glm_moe_dsa", tmp_path, indexer_types=None, **fields)
    path, text = directory / "config.json", random_prompts(30)
    values = {**json.loads(path.read_text()), **fields}
    values.pop("indexer_types")
    path.write_text(json.dumps(values))
    assert tuple(one.indexer is not None for one in attention(directory)) == own
    found = PagedHarness(load_model(directory)).prefill(text, 7)[0]
    assert (found - hf_logits(directory, text[0])).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"index_topk": 0}, "index_topk must be at least 1, but is 0"),
        ({"index_topk": None}, "index_topk is missing"),
        ({"index_n_heads": 1 << 20}, "index_n_heads must be of at most 4,194,304 numbers"),
        ({"index_head_dim": 6}, "index_head_dim must be at least qk_rope_head_dim"),
        ({"q_lora_rank": None}, "q_lora_rank must be given where there is an index"),
        ({"indexer_types": ["shared", "full", "full", "full"]}, "full in the first layer"),
        ({"indexer_types": ["full"]}, "full or shared for each of 4 layers"),
        ({"indexer_types": None, "index_topk_pattern": 7}, "must be letters or a list"),
        ({"indexer_types": None, "index_topk_pattern": "FXFF"}, "full or shared for each of 4"),
    ],
)
def test_what_is_wrong_is_named(
    fields: dict[str, object], named: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    directory = edited(model_dir("glm_moe_dsa"), tmp_path / "x", **fields)
    for read in (load_model, read_shape):
        with pytest.raises(ModelError, match=named):
            read(directory)


def test_windows_and_soft_cuts_are_refused(model_dir: ModelDir) -> None:
    with pytest.raises(ConfigError, match="window: an index chooses what"):
        load_model(model_dir("deepseek_v32"), streaming=Streaming(16, 4))
    llm = LLM(model_dir("deepseek_v32"), max_model_len=64, kv_cache_memory_bytes="1MiB")
    why = llm.engine.capabilities.sessions.rules.why_no_soft_cuts
    assert why is not None and "an index chooses" in why
