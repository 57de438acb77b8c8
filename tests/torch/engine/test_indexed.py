"""Models in which an index chooses what is attended to, wherever a request may go: its own bits.

Texts are several times as long as what is chosen, so that keys of an index which went astray, or
are not those of the text, change what is chosen, and with that the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quire import LLM, LoRARequest, SamplingParams
from quire.core.errors import ModelError
from quire.core.protocol import RecoveryCosts
from quire.engine.assembly import draft as assembly
from quire.engine.outputs import RequestOutput
from support.drafting import Verified
from support.handover import serving
from support.hf_reference import random_prompts
from support.law_of_bits import facts
from support.lora import merge, save_adapter
from support.small_models import INDEXED, make_model

LONG, OTHER = random_prompts(61, 47)
PROMPTS = [LONG, OTHER, [*LONG[:50], 7, 8, 9, *OTHER[:20]]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=1)
SAMPLES = SamplingParams(n=2, seed=5, max_tokens=12, ignore_eos=True, logprobs=1)
SIZES: dict[str, Any] = {
    "block_size": 4,
    "max_model_len": 160,
    "kv_cache_memory_bytes": "1MiB",
    "threads": 1,
}
FORMS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "int8 cache": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int4 cache": {"dtype": "bfloat16", "kv_cache_dtype": "int4"},
}
GUESSES = {"method": "ngram", "num_speculative_tokens": 3}
SWAP = {"preemption_mode": "swap", "swap_space": 0.001}


class Way(NamedTuple):
    """Where requests go: settings of an engine, and what must have happened in it."""

    options: dict[str, Any]
    tight: bool = False  # its pool has no room for all of them
    fetched: bool = False
    drafts: str | None = None  # the family of a draft model; "same": of the model itself


WAYS = {
    "chunks": Way({"max_num_batched_tokens": 7}),
    "recomputed": Way({}, tight=True),
    "swapped": Way(SWAP, tight=True),
    "main memory": Way({"kv_offloading_size": 2.0**-10}, tight=True, fetched=True),
    "store": Way({}, fetched=True),
    "n-grams": Way({"speculative_config": GUESSES}),
    "its own drafts": Way({"max_num_batched_tokens": 24}, drafts="same"),
    "another's drafts": Way({}, drafts="llama"),
    "threads": Way({"threads": 2}),
}


@pytest.fixture(scope="module", autouse=True)
def whatever_pays() -> Iterator[None]:
    """On models of this size, fetching pays by luck, and drafts come from no smaller one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecoveryCosts, "fetching_pays", lambda *_: True)
        patch.setattr(assembly, "check_draft", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Latents of 128 numbers, for 4 bits."""
    root = tmp_path_factory.mktemp("indexed")
    made = {family: make_model(family, root / family, kv_lora_rank=120) for family in INDEXED}
    return {**made, "llama": make_model("llama", root / "llama")}


def ask(llm: LLM, adapter: LoRARequest | None = None) -> list[RequestOutput]:
    found = []
    for params in (GREEDY, SAMPLES):
        found += llm.generate(PROMPTS, params, use_tqdm=False, lora_request=adapter)
        usage = llm.engine.scheduler.allocator.usage()
        assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    return found


def bits(found: list[RequestOutput]) -> list[Any]:
    return [list(facts(one)) for one in found]


def tokens(found: list[RequestOutput]) -> list[list[int]]:
    return [list(one.token_ids) for output in found for one in output.outputs]


@pytest.fixture(scope="module")
def alone(models: dict[str, Path]) -> dict[tuple[str, str], tuple[list[RequestOutput], int]]:
    """By family and form, what an engine gives in which nothing happens; bytes of a token."""
    made = {}
    for family in INDEXED:
        for form, options in FORMS.items():
            plain = LLM(models[family], **SIZES, **options, enable_prefix_caching=False)
            made[family, form] = ask(plain), plain.capacity.kv_bytes_per_token
    return made


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WAYS)
def test_a_request_has_its_bits_wherever_it_goes(
    name: str, form: str, models: dict[str, Path], alone: Any, tmp_path: Path
) -> None:
    way = WAYS[name]
    family = INDEXED[(list(WAYS).index(name) + list(FORMS).index(form)) % 2]
    expected, token_bytes = alone[family, form]
    options = {**SIZES, **FORMS[form], **way.options}
    if way.tight:
        options["kv_cache_memory_bytes"] = 40 * 4 * token_bytes
    if name == "store":
        options |= {"kv_store": str(tmp_path), "kv_store_size": 0.01}
        first = LLM(models[family], **options)
        assert bits(ask(first)) == bits(expected)
        first.engine.close()
    if way.drafts is not None:
        drafter = models[family if way.drafts == "same" else way.drafts]
        guesses = {"method": "draft", "model": str(drafter), "num_speculative_tokens": 3}
        options["speculative_config"] = guesses
    llm = LLM(models[family], **options)
    verified = None if way.drafts is None else Verified(llm)
    found = ask(llm)
    assert bits(found) == bits(expected)
    stats = llm.engine.scheduler.stats
    assert stats.prefix_hits > 0
    assert (stats.num_preemptions > 0) == way.tight
    assert (sum(one.metrics.fetched_tokens for one in found) > 0) == way.fetched
    if verified is not None:
        assert verified.drafts > 20
        assert (verified.right == verified.drafts) == (way.drafts == "same")


@pytest.mark.parametrize(("family", "kept"), [("deepseek_v32", "auto"), ("glm_moe_dsa", "int8")])
def test_two_ranks(family: str, kept: str, models: dict[str, Path]) -> None:
    """Each has the whole index; sums over ranks are others, in float32 the tokens are not."""
    options = {**SIZES, **FORMS["float32"], "kv_cache_dtype": kept}
    plain = LLM(models[family], **options)
    tight = {**options, **SWAP, "kv_cache_memory_bytes": 160 * plain.capacity.kv_bytes_per_token}
    llm = LLM(models[family], **tight, tensor_parallel_size=2, distributed_timeout_seconds=20.0)
    assert tokens(ask(llm)) == tokens(ask(plain))
    assert llm.engine.scheduler.stats.num_preemptions > 0
    llm.engine.close()


def scores(directory: Path, **options: Any) -> list[float]:
    """The log-probabilities of texts' tokens."""
    llm = LLM(directory, **{**SIZES, "enable_prefix_caching": False, **options})
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    found = []
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        assert output.prompt_logprobs is not None
        for token, place in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
            found += [] if place is None else [place[token].logprob]
    llm.engine.close()
    return found


@pytest.mark.parametrize(("family", "kept"), [("deepseek_v32", "int8"), ("glm_moe_dsa", "int4")])
def test_two_ranks_round_as_much_as_one(family: str, kept: str, models: dict[str, Path]) -> None:
    """In bfloat16 their sums are others, and where two tokens score nearly alike in an index, they
    choose the other one: so tokens part. What they lose of float32 is no more.
    """
    exact = scores(models[family], dtype="float32")
    options: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_dtype": kept}
    ranks = {"tensor_parallel_size": 2, "distributed_timeout_seconds": 20.0}
    alone, both = (
        sum((own - one) ** 2 for own, one in zip(found, exact, strict=True)) ** 0.5
        for found in (scores(models[family], **options, **more) for more in ({}, ranks))
    )
    assert 0 < both < 1.15 * alone


@pytest.mark.parametrize("form", FORMS)
def test_another_engine_goes_on(form: str, models: dict[str, Path]) -> None:
    """With the keys of the index that the first has computed."""
    directory = models[INDEXED[(list(FORMS).index(form) + 1) % 2]]
    options: dict[str, Any] = {**SIZES, **FORMS[form]}
    body = {"prompt": LONG, "temperature": 0, "logprobs": 2, "max_tokens": 20}
    port = {"kv_transfer_config": {"kv_port": 0}}
    with ExitStack() as stack:
        prefill = stack.enter_context(serving(directory, **options, **port, role="prefill"))
        decode = stack.enter_context(serving(directory, **options, role="decode"))
        told = prefill.prefill(**body)
        found = decode.complete(**body, kv_transfer_params=told)["choices"]
        assert decode.engine.scheduler.stats.prefix_fetched == len(LONG) // 4 * 4
        assert found == prefill.complete(**body)["choices"]


@pytest.mark.parametrize("family", INDEXED)
def test_adapters_change_what_is_chosen(
    family: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """Queries of the index are of what an adapter has changed; in chunks, with hits and drafts."""
    model, targets = models[family], ("q_a_proj", "kv_a_proj_with_mqa", "o_proj")
    save_adapter(tmp_path / "a", model, seed=1, targets=targets, strength=1.0)
    options = {**SIZES, **FORMS["float32"]}
    expected = tokens(ask(LLM(merge(model, tmp_path / "a", tmp_path / "merged"), **options)))
    options |= {"max_num_batched_tokens": 7, "speculative_config": GUESSES, "enable_lora": True}
    llm, adapter = LLM(model, **options), LoRARequest("a", 0, str(tmp_path / "a"))
    assert tokens(ask(llm)) != expected
    for _ in range(2):
        assert tokens(ask(llm, adapter)) == expected
    index = save_adapter(tmp_path / "index", model, targets=("wk",))
    with pytest.raises(ModelError, match=r"indexer\.wk is no projection of this model that"):
        ask(llm, LoRARequest("index", 0, str(index)))
