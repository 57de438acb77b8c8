"""Adapters in a real engine: the texts of merged weights, and nobody else's any different."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from quire import LLM, LoRARequest, SamplingParams
from quire.core.errors import ConfigError, ModelError, UnknownAdapterError
from quire.engine.outputs import RequestOutput
from support.gguf_files import add_tokenizer, write_gguf
from support.lora import ATTENTION, merge, save_adapter
from support.small_models import SMALL_LLAMA, make_model, save_model

GREEDY = SamplingParams(max_tokens=10, temperature=0, logprobs=1)
PROMPTS = [[*range(20, 40), 7, 8, 9], [*range(20, 36), 50, 60]]  # they begin alike
FLOATS: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": "4MiB", "block_size": 8}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    model = make_model("llama", root / "model")
    config = {**SMALL_LLAMA, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    save_model(LlamaConfig(**config), root / "draft")
    save_adapter(root / "a", model, seed=1, rank=4)
    patterns = {"rank_pattern": {"q_proj": 16}, "alpha_pattern": {"q_proj": 6, "down_proj": 3}}
    save_adapter(
        root / "b", model, seed=2, rank=3, targets=("q_proj", "v_proj", "down_proj"),
        use_rslora=True, **patterns,
    )  # fmt: skip
    save_adapter(root / "d", model, seed=3, rank=5, use_dora=True)
    for name in "abd":
        merge(model, root / name, root / f"merged-{name}")
    return root


def served(files: Path, **options: Any) -> LLM:
    adapters = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32, **options}
    return LLM(files / "model", **{**FLOATS, **adapters})


def named(files: Path, names: str) -> list[LoRARequest | None]:
    return [None if name == "-" else LoRARequest(name, 0, str(files / name)) for name in names]


def logprobs(output: RequestOutput) -> list[list[tuple[int, float]]]:
    return [
        [
            (token, table[token].logprob)
            for token, table in zip(o.token_ids, o.logprobs or [], strict=True)
        ]
        for o in output.outputs
    ]


def ask(llm: LLM, files: Path, names: str, params: SamplingParams = GREEDY) -> list[RequestOutput]:
    prompts: Sequence[list[int]] = [PROMPTS[number % 2] for number in range(len(names))]
    return llm.generate(prompts, params, use_tqdm=False, lora_request=named(files, names))


def test_texts_are_those_of_merged_weights_mixed_with_the_bases(files: Path) -> None:
    """Through chunks of seven, prefix hits and drafts; all beside each other."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    llm = served(files, max_num_batched_tokens=7, speculative_config=drafts)
    found = ask(llm, files, "aabb--dd") and ask(llm, files, "aabb--dd")
    assert sum(one.metrics.cached_tokens for one in found) > 0
    for place, directory in ((0, "merged-a"), (2, "merged-b"), (4, "model"), (6, "merged-d")):
        alone = LLM(files / directory, **FLOATS).generate(PROMPTS, GREEDY, use_tqdm=False)
        for one, expected in zip(found[place:], alone, strict=False):
            assert one.outputs[0].token_ids == expected.outputs[0].token_ids
            for (_, mine), (_, theirs) in zip(logprobs(one)[0], logprobs(expected)[0], strict=True):
                assert abs(mine - theirs) < 1e-4


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"quantization": "int8"},
        {"swap_space": 0.01},
        {"speculative_config": {"method": "draft"}},
    ],
)
def test_a_row_has_the_bits_that_it_has_alone(files: Path, form: dict[str, Any]) -> None:
    """A base's those of an engine without adapters: in tight pools, with forks, in any form."""
    params = SamplingParams(max_tokens=12, n=2, temperature=0.8, seed=3, logprobs=0)
    if "speculative_config" in form:  # by a model that knows nothing of adapters
        guesses = {"model": str(files / "draft"), "num_speculative_tokens": 3}
        form = {"speculative_config": {**form["speculative_config"], **guesses}}
    floats = {**form, "dtype": "bfloat16", "max_num_batched_tokens": 9}
    mode = {"preemption_mode": "swap"} if "swap_space" in form else {}
    tight = {**floats, **mode, "kv_cache_memory_bytes": "44KiB", "max_model_len": 40}
    crowded = served(files, **tight)
    beside = ask(crowded, files, "ad-bd-", params)
    assert crowded.engine.scheduler.stats.num_preemptions > 0
    for place, name in enumerate("ad-bd-"):
        alone = LLM(files / "model", **{**FLOATS, **floats, "enable_lora": name != "-"})
        adapters = None if name == "-" else named(files, name)
        (expected,) = alone.generate(
            PROMPTS[place % 2], params, use_tqdm=False, lora_request=adapters
        )
        assert logprobs(beside[place]) == logprobs(expected)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", ["gptj", "gpt_neox", "olmoe", "llama.gguf"])
def test_models_of_other_orders_and_forms_have_those_of_merged_weights(
    family: str, dora: bool, tmp_path: Path
) -> None:
    """Rows that are reordered, attention before experts, blocks of a GGUF file."""
    model = make_model(family.removesuffix(".gguf"), tmp_path / "model")
    served = model
    if family.endswith(".gguf"):
        served = tmp_path / family
        rounded = write_gguf(model, served, lambda _: Kind.Q4_0, lambda w: add_tokenizer(w, model))
        save_file(rounded, model / "model.safetensors", metadata={"format": "pt"})
    targets = (*ATTENTION, "query_key_value", "attention.dense", "out_proj", "fc_in", "fc_out")
    save_adapter(tmp_path / "a", model, targets=targets, strength=1.0, use_dora=dora)
    merged = LLM(merge(model, tmp_path / "a", tmp_path / "merged"), **FLOATS)
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    llm = LLM(
        served, **FLOATS, enable_lora=True, max_num_batched_tokens=7, speculative_config=drafts
    )
    asked = named(tmp_path, "a")[0]
    expected = merged.generate(PROMPTS, GREEDY, use_tqdm=False)
    for _ in range(2):
        found = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=asked)
        for one, other in zip(found, expected, strict=True):
            assert one.outputs[0].token_ids == other.outputs[0].token_ids
            for (_, mine), (_, theirs) in zip(logprobs(one)[0], logprobs(other)[0], strict=True):
                assert abs(mine - theirs) < 1e-4
    vectors = llm.embed(PROMPTS, use_tqdm=False, lora_request=asked)
    for vector, other_vector in zip(vectors, merged.embed(PROMPTS, use_tqdm=False), strict=True):
        assert vector.outputs.embedding == pytest.approx(other_vector.outputs.embedding, abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "smollm", "phi"])  # tied; a head with a bias
def test_embeddings_and_heads_of_their_own(family: str, tmp_path: Path) -> None:
    """As in models of these, beside others of another head or none; who has none has its bits."""
    model = make_model(family, tmp_path / "model")
    for seed, (name, saved) in enumerate(
        {"a": ["lm_head"], "b": ["embed_tokens", "lm_head"], "c": ["embed_tokens"], "d": []}.items()
    ):
        save_adapter(tmp_path / name, model, seed=seed, modules_to_save=saved)
        expected = merge(model, tmp_path / name, tmp_path / f"merged-{name}")
        replace_tables(model, tmp_path / name, expected, seed)
    options = {**FLOATS, "enable_lora": True, "max_loras": 4, "max_num_batched_tokens": 9}
    named_at_start = [f"b={tmp_path / 'b'}"]
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    llm = LLM(model, **options, lora_modules=named_at_start, speculative_config=drafts)
    params = SamplingParams(max_tokens=10, temperature=0, logprobs=1, prompt_logprobs=0)
    found = ask(llm, tmp_path, "aabbccdd--", params)
    for place, name in enumerate("abcd"):
        alone = LLM(tmp_path / f"merged-{name}", **FLOATS).generate(PROMPTS, params, use_tqdm=False)
        for one, expected_one in zip(found[2 * place :], alone, strict=False):
            assert one.outputs[0].token_ids == expected_one.outputs[0].token_ids
            for (_, mine), (_, other) in zip(
                logprobs(one)[0], logprobs(expected_one)[0], strict=True
            ):
                assert abs(mine - other) < 1e-4
            assert prompt_logprobs(one) == pytest.approx(prompt_logprobs(expected_one), abs=1e-4)
    plain = LLM(model, **FLOATS, max_num_batched_tokens=9).generate(PROMPTS, params, use_tqdm=False)
    for one, expected_one in zip(found[8:], plain, strict=True):
        assert logprobs(one) == logprobs(expected_one)
        assert prompt_logprobs(one) == prompt_logprobs(expected_one)


def prompt_logprobs(output: RequestOutput) -> list[float]:
    tables = [table for table in output.prompt_logprobs or [] if table is not None]
    tokens = output.prompt_token_ids[1:]
    return [table[token].logprob for token, table in zip(tokens, tables, strict=True)]


def replace_tables(model: Path, adapter: Path, merged: Path, seed: int) -> None:
    """Give an adapter those that its config names, and a model of that the same, untied."""
    generator = torch.Generator().manual_seed(seed)
    path = adapter / "adapter_model.safetensors"
    tensors, weights = load_file(path), load_file(merged / "model.safetensors")
    saved = json.loads((adapter / "adapter_config.json").read_text())["modules_to_save"]
    table = weights["model.embed_tokens.weight"]
    weights.setdefault("lm_head.weight", table.clone())
    for name in saved:
        own = {"lm_head": "lm_head", "embed_tokens": "model.embed_tokens"}[name] + ".weight"
        weights[own] = 0.2 * torch.randn(table.shape, generator=generator)
        tensors[f"base_model.model.{own}"] = weights[own]
        bias = own.replace("weight", "bias")
        if bias in weights:
            weights[bias] = torch.randn(table.shape[:1], generator=generator)
            tensors[f"base_model.model.{bias}"] = weights[bias]
    save_file(tensors, path)
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((merged / "config.json").read_text())
    (merged / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))


def test_tables_larger_than_those_at_the_start_are_refused(files: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path / "a", files / "model", modules_to_save=["lm_head"])
    shutil.copytree(files / "model", tmp_path / "merged")
    replace_tables(files / "model", tmp_path / "a", tmp_path / "merged", 0)
    with pytest.raises(
        ModelError, match=r"modules_to_save take 76,800 bytes.*for 0;.*lora-modules"
    ):
        ask(served(files), tmp_path, "a")


def test_more_adapters_than_there_is_room_for_are_paged_in_and_out(files: Path) -> None:
    llm = served(files, max_loras=1)
    adapters = llm.engine.capabilities.adapters
    assert adapters is not None and adapters.weights == {}
    both = [ask(llm, files, "abab"), ask(llm, files, "ba-b")]
    assert len(adapters.weights) == 1, "no more than max_cpu_loras"
    texts = [[one.outputs[0].token_ids for one in some] for some in both]
    assert texts[0][0] != texts[0][1] and texts[1][3] == texts[0][1]
    assert llm.engine.scheduler.adapters.in_use == []


def test_a_file_that_is_gone_ends_the_requests_that_need_it_and_no_other(
    files: Path, tmp_path: Path
) -> None:
    shutil.copytree(files / "a", tmp_path / "a")
    llm = served(files, max_loras=1)
    known = ask(llm, files, "b-")
    gone = LoRARequest("gone", 0, str(tmp_path / "a"))
    llm._adapters.load(gone)
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(b"something else")
    prompts = {"gone": {"adapter": "gone"}, "base": {}, "b": {"adapter": "b"}}
    for name, more in prompts.items():
        prompt = {"prompt_token_ids": PROMPTS[name == "base"], **more}
        llm.engine.add_request(name, prompt, GREEDY)
    finals, failures = {}, {}
    while llm.engine.has_work:
        for delta in llm.engine.step():
            if delta.failure is not None:
                failures[delta.request_id] = delta.failure
            elif delta.final is not None:
                finals[delta.request_id] = delta.final
    assert "has changed since it was loaded" in str(failures.pop("gone")) and not failures
    assert finals["b"].outputs[0].token_ids == known[0].outputs[0].token_ids
    assert finals["base"].outputs[0].token_ids == known[1].outputs[0].token_ids


def test_one_that_is_let_go_serves_who_has_it_and_nobody_new(files: Path) -> None:
    llm = served(files)
    adapters, engine = llm.engine.capabilities.adapters, llm.engine
    assert adapters is not None
    expected, whole = ask(llm, files, "ab")
    session = llm.open_session(lora_request=named(files, "b")[0])
    prompt = {"prompt_token_ids": PROMPTS[0], "adapter": "a"}
    engine.add_request("one", prompt, GREEDY)
    engine.step()
    adapters.remove("a")
    adapters.remove("b")
    for name in "ab":
        with pytest.raises(UnknownAdapterError, match=f"{name} is not loaded"):
            engine.add_request("two", {**prompt, "adapter": name}, GREEDY)
    while engine.has_work:
        deltas = engine.step()
    assert deltas[-1].final is not None
    assert deltas[-1].final.outputs[0].token_ids == expected.outputs[0].token_ids
    assert [adapter.name for adapter in adapters.weights] == ["b"], "nobody has the other any more"
    session.append(PROMPTS[1])
    assert session.generate(GREEDY).outputs[0].token_ids == whole.outputs[0].token_ids
    with pytest.raises(UnknownAdapterError, match="b is not loaded"):
        engine.add_request("three", {**prompt, "adapter": "b"}, GREEDY)
    session.close()
    assert adapters.weights == {}, "nor this one"


def test_sessions_keep_their_adapter_from_turn_to_turn(files: Path) -> None:
    llm = served(files)
    (whole,) = ask(llm, files, "a", SamplingParams(max_tokens=8, temperature=0))
    with llm.open_session(lora_request=named(files, "a")[0]) as session:
        session.append(PROMPTS[0])
        first = session.generate(SamplingParams(max_tokens=4, temperature=0))
        session.append(whole.outputs[0].token_ids[4:5])
        then = session.generate(SamplingParams(max_tokens=3, temperature=0))
    told = [*first.outputs[0].token_ids, whole.outputs[0].token_ids[4]]
    assert [*told, *then.outputs[0].token_ids] == whole.outputs[0].token_ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_loras": 2}, "max_loras does nothing without enable_lora"),
        ({"enable_lora": True, "max_loras": 3, "max_cpu_loras": 2}, "from 3 to"),
        ({"enable_lora": True, "lora_modules": ["a"]}, "NAME=DIRECTORY"),
        (
            {"enable_lora": True, "lora_modules": ["a=x", "a=y"]},
            "have the same name: a, a",
        ),
        ({"enable_lora": True, "lora_modules": ['{"name": "a", "path": 1}']}, "path must be"),
        ({"enable_lora": True, "device": "cuda"}, "CPUs only"),
        ({"enable_lora": True, "max_lora_rank": 512, "max_cpu_loras": 4096}, "may take"),
    ],
)
def test_settings_that_cannot_hold_are_refused(
    files: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.execution.device_runtime.free_memory", lambda: 2**30)
    with pytest.raises(ConfigError, match=message):
        LLM(files / "model", **options)


def test_an_error_names_the_setting_that_adapters_need(files: Path) -> None:
    with pytest.raises(ConfigError, match="needs enable_lora"):
        ask(LLM(files / "model", **FLOATS), files, "a")
