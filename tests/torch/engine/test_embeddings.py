"""Vectors and scores of prompts by real models, against transformers' hidden states and bit by bit.

As sentence-transformers has it: the last token's state, the mean of all, or the first one's.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, PoolingParams, SamplingParams
from quire.core.errors import ConfigError, EngineError, ModelError, RequestError
from quire.execution.forward import DirectForward, Hidden
from quire.text.encoder import PromptForm
from quire.text.params import Pooling
from support.engine_lives import Squeeze
from support.small_models import EOS_TOKEN_ID, VOCAB_SIZE, make_model

RNG = random.Random(5)
SHARED = [RNG.randrange(3, VOCAB_SIZE) for _ in range(40)]
PROMPTS = [SHARED[:n] + [RNG.randrange(3, VOCAB_SIZE) for _ in range(k)] for n, k in
           ((0, 1), (0, 5), (0, 70), (40, 3), (40, 30), (36, 9))]  # fmt: skip
KINDS = tuple(Pooling)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("qwen3", tmp_path_factory.mktemp("qwen3"))


def load(directory: Path, **options: Any) -> LLM:
    return LLM(directory, **{"kv_cache_memory_bytes": "4MiB", "threads": 1, **options})


def embed(llm: LLM, prompts: Any, **params: Any) -> list[bytes]:
    outputs = llm.embed(prompts, PoolingParams(**params), use_tqdm=False)
    return [torch.tensor(one.outputs.embedding).numpy().tobytes() for one in outputs]


@torch.no_grad()
def expected(directory: Path, kind: Pooling) -> list[torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).model.eval()
    states = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in PROMPTS]
    pooled = {
        Pooling.LAST: [one[-1] for one in states],
        Pooling.MEAN: [one.mean(0) for one in states],
        Pooling.CLS: [one[0] for one in states],
        Pooling.MAX: [one.amax(0) for one in states],
    }[kind]
    return [one / one.norm() for one in pooled]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_transformers_states_pooled(kind: Pooling, directory: Path) -> None:
    truth = expected(directory, kind)
    for budget in (7, 2048):
        llm = load(directory, max_num_batched_tokens=budget)
        for output, vector in zip(llm.embed(PROMPTS, PoolingParams(kind), use_tqdm=False), truth,
                                  strict=True):  # fmt: skip
            difference = torch.tensor(output.outputs.embedding) - vector
            assert difference.abs().max() < 1e-4
            assert output.metrics.cached_tokens == 0 or kind is Pooling.LAST


@pytest.mark.parametrize(
    "settings",
    [{}, {"window": 24, "attention_sinks": 4}, {"swap_space": 0.01, "preemption_mode": "swap"}],
)
def test_no_bit_depends_on_chunks_company_memory_or_what_is_found(
    settings: dict[str, Any], directory: Path
) -> None:
    alone = {
        kind: [
            embed(load(directory, block_size=8, **settings), [prompt], pooling=kind)[0]
            for prompt in PROMPTS
        ]
        for kind in KINDS
    }
    found = preempted = 0
    for budget, blocks in ((7, "96KiB"), (31, "4MiB")):
        llm = load(directory, block_size=8, max_num_batched_tokens=budget,
                   kv_cache_memory_bytes=blocks, **settings)  # fmt: skip
        engine, rng = llm.engine, random.Random(budget)
        squeeze = Squeeze(engine.scheduler.allocator, rng)
        wanted: dict[str, bytes] = {}
        vectors: dict[str, bytes] = {}
        for kind in KINDS:
            for number, prompt in enumerate(PROMPTS):
                name = f"{kind}{number}"
                engine.add_request(name, prompt, PoolingParams(kind))
                engine.add_request(
                    f"text{name}", prompt, SamplingParams(max_tokens=8, n=1 + number % 2)
                )
                wanted[name] = alone[kind][number]
        while engine.has_work:
            squeeze.turn()
            for delta in engine.step():
                if delta.final is not None and delta.final.vector is not None:
                    vectors[delta.request_id] = bytes(memoryview(delta.final.vector))  # type: ignore[arg-type]
                    found += delta.final.metrics.cached_tokens
                    preempted += delta.final.metrics.num_preemptions
        squeeze.end()
        assert vectors == wanted
    assert found and preempted


def test_scores_of_prompts_have_the_same_bits_found_or_computed(directory: Path) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=2)

    def bits(llm: LLM, prompts: Any) -> list[Any]:
        return [
            [table and {i: (one.logprob.hex(), one.rank) for i, one in table.items()}
             for table in output.prompt_logprobs or ()]
            for output in llm.generate(prompts, params, use_tqdm=False)
        ]  # fmt: skip

    whole = load(directory, enable_prefix_caching=False)
    alone = [bits(whole, [prompt])[0] for prompt in PROMPTS]
    computed = sum(map(len, PROMPTS))
    for budget in (2048, 7):
        llm = load(directory, max_num_batched_tokens=budget)
        assert bits(llm, PROMPTS) == alone
        first = llm.engine.stats.num_tokens
        assert bits(llm, PROMPTS) == alone
        assert llm.engine.stats.num_tokens - first < first < computed


def test_a_model_says_yes_or_no(directory: Path) -> None:
    overrides = {"classifier_from_token": ["<s>", "</s>"]}
    llm = load(directory, hf_overrides={**overrides,
               "architectures": ["Qwen3ForSequenceClassification"]})  # fmt: skip
    (output,) = llm.score("a bird", " that swims", use_tqdm=False)
    text = "a bird that swims"
    tables = llm.generate([text], SamplingParams(max_tokens=1, logprobs=100), use_tqdm=False)
    embedded = llm.embed([text], PoolingParams(token_ids=(0, 1)), use_tqdm=False)
    no, yes = embedded[0].outputs.embedding
    assert output.outputs.score == pytest.approx(1 / (1 + torch.tensor(no - yes).exp().item()))
    assert tables[0].outputs[0].token_ids
    with pytest.raises(ModelError, match="two tokens, for no and for yes"):
        load(directory, hf_overrides={"classifier_from_token": ["yes", "no"]})


def test_states_that_are_no_numbers_end_their_request_alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = DirectForward.__call__

    def planted(self: Any, batch: Any, sampled: Any) -> Hidden:
        hidden = forward(self, batch, sampled)
        hidden.states[: batch.query_starts[1]] = torch.nan
        return hidden

    llm = load(directory)
    right = embed(llm, PROMPTS[1:2])
    monkeypatch.setattr(DirectForward, "__call__", planted)
    for params in (PoolingParams("MEAN"), SamplingParams(max_tokens=0, prompt_logprobs=0)):
        llm.engine.add_request("a", PROMPTS[2], params)
        llm.engine.add_request("b", PROMPTS[1], PoolingParams())
        ends = {delta.request_id: delta for delta in llm.engine.step()}
        assert isinstance(ends["a"].failure, EngineError) and "NaN" in str(ends["a"].failure)
        final = ends["b"].final
        assert final is not None and [bytes(memoryview(final.vector))] == right  # type: ignore[arg-type]


def test_a_decoder_saved_alone_embeds_and_refuses_to_generate(
    directory: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(directory).model.save_pretrained(tmp_path)
    for file in directory.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen3Model"]
    llm = load(tmp_path)
    assert embed(llm, PROMPTS) == embed(load(directory), PROMPTS)
    with pytest.raises(RequestError, match="has no head for tokens"):
        llm.generate(PROMPTS[:1], use_tqdm=False)


@pytest.mark.parametrize("family", ["opt", "gpt_neox", "gptj", "falcon"])
def test_so_does_one_whose_tensors_are_called_otherwise(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    whole = make_model(family, tmp_path / "whole")
    AutoModelForCausalLM.from_pretrained(whole).base_model.save_pretrained(tmp_path / "alone")
    for file in whole.glob("tokenizer*"):
        (tmp_path / "alone" / file.name).write_bytes(file.read_bytes())
    assert embed(load(tmp_path / "alone"), PROMPTS) == embed(load(whole), PROMPTS)


MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
           {"idx": 1, "name": "1", "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling"},
           {"idx": 2, "name": "2", "path": "2_Normalize",
            "type": "sentence_transformers.models.Normalize"}]  # fmt: skip


@pytest.mark.parametrize(
    ("modules", "modes", "expected"),
    [
        (MODULES, {"pooling_mode_mean_tokens": True}, (Pooling.MEAN, True)),
        (MODULES[:2], {"pooling_mode_lasttoken": True}, (Pooling.LAST, False)),
        (MODULES[:2], {"pooling_mode": "cls"}, (Pooling.CLS, False)),
        (MODULES, {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        (MODULES, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "and"),
        ([*MODULES, {"type": "sentence_transformers.models.LSTM"}],
         {"pooling_mode_mean_tokens": True}, "LSTM"),
        ([*MODULES, {"type": "sentence_transformers.models.Dense", "path": "3_Dense"}],
         {"pooling_mode_mean_tokens": True}, "'Dense' after Normalize"),
        ([{"type": "sentence_transformers.models.Dense", "path": "/tmp"}], {}, ModelError),
        ([{**MODULES[1], "path": "../x"}], {}, ModelError),
        ({}, {}, ModelError),
    ],
)  # fmt: skip
def test_it_pools_as_its_files_say(
    modules: Any, modes: dict[str, Any], expected: Any, directory: Path, tmp_path: Path
) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    if expected is ModelError:
        with pytest.raises(ModelError, match=r"modules\.json"):
            load(tmp_path)
        return
    llm = load(tmp_path)
    if isinstance(expected, str):
        with pytest.raises(RequestError, match=f"no embeddings: .*{expected}"):
            embed(llm, PROMPTS)
        return
    kind, normalize = expected
    assert embed(llm, PROMPTS[:2]) == embed(llm, PROMPTS[:2], pooling=kind, normalize=normalize)
    given = load(tmp_path, pooler_config={"pooling_type": "LAST", "normalize": True})
    assert embed(given, PROMPTS[:2]) == embed(llm, PROMPTS[:2], pooling="LAST", normalize=True)


def test_texts_end_as_their_tokenizer_s_settings_ask(directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).symlink_to(file)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_eos_token": True}))
    llm, plain = load(tmp_path), load(directory)
    ids = plain.engine.input_processor.tokenize("a bird")
    ended = plain.embed([[*ids, EOS_TOKEN_ID]], use_tqdm=False)
    assert llm.embed("a bird", use_tqdm=False)[0].outputs == ended[0].outputs
    cut = llm.engine.input_processor.text_prompt("a bird", PromptForm(most=3, keep_special=True))
    assert cut == [*ids[-2:], EOS_TOKEN_ID]
    text = llm.generate("a bird", SamplingParams(max_tokens=1), use_tqdm=False)
    assert text[0].prompt_token_ids == ids


def test_vectors_are_shortened_where_the_model_allows(directory: Path) -> None:
    with pytest.raises(RequestError, match="is_matryoshka"):
        embed(load(directory), PROMPTS[:1], dimensions=8)
    with pytest.raises(ConfigError, match="pooler_config: dimensions must be one of 16, 64"):
        load(directory, hf_overrides={"matryoshka_dimensions": [16]},
             pooler_config={"dimensions": 8})  # fmt: skip
    llm = load(directory, hf_overrides={"is_matryoshka": True}, pooler_config={"dimensions": 16})
    (whole,) = llm.embed(PROMPTS[:1], PoolingParams(dimensions=64), use_tqdm=False)
    (short,) = llm.embed(PROMPTS[:1], use_tqdm=False)
    cut = torch.tensor(whole.outputs.embedding)[:16]
    torch.testing.assert_close(torch.tensor(short.outputs.embedding), cut / cut.norm())
