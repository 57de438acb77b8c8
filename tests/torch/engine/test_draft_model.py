"""A draft model: no text depends on it, and its keys and values are those of the text.

The sharp test is a draft model that is its target: of its drafts, all must be right, always. They
are chosen by the same numbers and, by the law of bits, from the same logits; unless a key is not
where it should be, or not its text's.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, ModelError
from quire.core.protocol import TO_DRAFT
from quire.engine.assembly import draft as assembly
from quire.http.live.state import EngineReader
from quire.models.demo import DEMO_DRAFT
from support.draft_lives import CACHED, CHUNKS, GREEDY, RECOMPUTE, SWAP, check_drafts, drafted
from support.drafting import Verified
from support.engine_lives import save_models
from support.hf_reference import random_prompts
from support.small_models import SMALL_LLAMA, save_model

ModelDir = Callable[[str], Path]

CASES: list[tuple[str, int, dict[str, Any], tuple[str, ...]]] = [  # a seed, what happens by it
    ("float32", 1, {**SWAP, **CACHED, **CHUNKS}, ("swap", "found", "chunks", "forks")),
    ("bfloat16", 1, {**RECOMPUTE, **CACHED}, ("recompute", "found", "forks")),
    ("int8 cache", 1, SWAP, ("swap", "forks")),
    ("int4 cache", 1, {**RECOMPUTE, **CACHED}, ("recompute", "found", "forks")),
    ("int4", 0, CACHED, ("found", "forks")),
    ("window", 1, {**SWAP, **CACHED, **CHUNKS}, ("swap", "found", "chunks", "forks")),
    ("sinks", 9, RECOMPUTE, ("recompute", "forks")),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return list(save_models(tmp_path_factory.mktemp("models")).values())


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft models may be as large as their target."""
    monkeypatch.setattr(assembly, "check_draft", lambda *_: None)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(("form", "seed", "events", "signs"), CASES)
def test_it_changes_no_bit_and_is_right_if_it_is_the_target(
    form: str, seed: int, events: dict[str, Any], signs: tuple[str, ...], models: list[Path]
) -> None:
    check_drafts(models, form, seed, events, signs, least=20)


class Faulty:
    """A draft model that fails, or gives what are no numbers."""

    def __init__(self, llm: LLM, fault: str) -> None:
        self.calls = self.went_on = 0
        self._fault, self._rng = fault, random.Random(2)
        worker: Any = llm.engine.executor._draft_model._worker  # type: ignore[attr-defined]
        self._compute, self._logits, self._go_on = worker.compute, worker.logits, worker.go_on
        worker.compute, worker.logits, worker.go_on = self.compute, self.logits, self.go_on

    def compute(self, *given: Any) -> Any:
        self.calls += 1
        if self.calls >= 12 and self._fault != "nan":
            raise MemoryError if self._fault == "memory" else RuntimeError("it is a model")
        return self._compute(*given)

    def go_on(self, *given: Any) -> torch.Tensor:
        tokens: torch.Tensor = self._go_on(*given)
        self.went_on += 1
        if self._fault == "nan":
            tokens[torch.tensor([[self._rng.random() < 0.2 for _ in row] for row in tokens])] = -1
        return tokens

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._logits(states)
        if self._fault == "nan":
            logits[[self._rng.random() < 0.3 for _ in logits]] = torch.nan
        return logits


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("fault", ["memory", "error", "nan"])
def test_its_failure_costs_drafts_and_nothing_else(
    fault: str, model_dir: ModelDir, caplog: pytest.LogCaptureFixture
) -> None:
    directory, prompts = model_dir("llama"), random_prompts(9, 30, 17)
    params = [GREEDY, SamplingParams(n=2, seed=1, max_tokens=20), GREEDY]
    expected = LLM(directory).generate(prompts, params, use_tqdm=False)
    llm = LLM(directory, **drafted(directory))
    verified = Verified(llm)
    faulty = Faulty(llm, fault)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert texts(outputs) == texts(expected)
    assert verified.right == verified.drafts > 0, "what could not be drafted is left out"
    assert faulty.went_on > 1, "greedy texts go on in one call"
    if fault == "nan":
        assert not caplog.records
    else:
        assert faulty.calls == 12, "it is not asked again"
        assert [one.message for one in caplog.records] == [
            "the draft model failed and is not asked again: texts go on without drafts of it"
        ]


@pytest.mark.usefixtures("any_size")
def test_what_are_no_numbers_drafts_nothing(model_dir: ModelDir, tmp_path: Path) -> None:
    """Where the kernels go on by themselves: from some tokens there is nothing to see."""
    directory, prompts = model_dir("llama"), random_prompts(9, 30, 17)
    expected = LLM(directory).generate(prompts, GREEDY, use_tqdm=False)
    shutil.copytree(directory, tmp_path / "draft")
    file = tmp_path / "draft" / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][texts(expected)[1][0][8]] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    llm = LLM(directory, enable_prefix_caching=False, **drafted(tmp_path / "draft"))
    verified = Verified(llm)
    assert texts(llm.generate(prompts[1:2], GREEDY, use_tqdm=False)) == texts(expected)[1:2]
    assert verified.right == verified.drafts > 0
    assert verified.asked > verified.drafts, "after that token there are none"


def texts(outputs: Any) -> list[Any]:
    return [[one.token_ids for one in output.outputs] for output in outputs]


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"kv_cache_dtype": "int8", "window": 32, "attention_sinks": 4}, True),
        ({"dtype": "bfloat16", "quantization": "int8"}, False),
    ],
)
def test_it_works_with(settings: dict[str, Any], same: bool, model_dir: ModelDir) -> None:
    """And with drafts of others before its own."""
    directory, prompts = model_dir("llama"), random_prompts(9, 30, 17)
    common = {"block_size": 16, "max_model_len": 96, **settings}
    common["max_model_len"] = None if "window" in settings else 96
    expected = LLM(directory, **common).generate(prompts, GREEDY, use_tqdm=False)
    truth = {str(i): output.outputs[0].token_ids for i, output in enumerate(expected)}
    llm = LLM(directory, **common, **drafted(directory))

    def two_and_two(request: Any, branch: Any) -> list[int]:
        known = branch.num_output_tokens
        return [*truth[request.request_id][known : known + 2], TO_DRAFT, TO_DRAFT]

    verified = Verified(llm, drafts=two_and_two)
    assert texts(llm.generate(prompts, GREEDY, use_tqdm=False)) == texts(expected)
    assert verified.drafts > 20
    if same:
        assert verified.right == verified.drafts


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("size", [290, 320])
def test_embeddings_may_be_padded_differently(
    size: int, model_dir: ModelDir, tmp_path: Path
) -> None:
    draft = save_model(llama(vocab_size=size), tmp_path)
    if size < 300:  # for texts of its tokenizer, which the target's may leave
        (tmp_path / "tokenizer.json").unlink()
    directory, prompts = model_dir("llama"), random_prompts(9, 30, 17)
    params = SamplingParams(temperature=3.0, seed=1, max_tokens=40, ignore_eos=True)
    expected = LLM(directory).generate(prompts, params, use_tqdm=False)
    assert max(token for one in texts(expected) for token in one[0]) > 290
    llm = LLM(directory, **drafted(draft))
    verified = Verified(llm)
    assert texts(llm.generate(prompts, params, use_tqdm=False)) == texts(expected)
    assert 0 < verified.right < verified.drafts

    prompts, worker, given = random_prompts(*range(3, 15)), verified.draft_model._worker, []
    go_on = worker.go_on

    def noted(batch: Any, vocab_size: int) -> Any:
        first = 3 * len(batch.counts)
        given.extend(batch.numbers[first : first + batch.num_given].tolist())
        return go_on(batch, vocab_size)

    worker.go_on = noted
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert max(token for one in texts(outputs) for token in one[0]) > 290
    assert 288 < max(given) < size, "as it has vectors for"


def llama(**fields: Any) -> Any:
    import transformers

    return transformers.LlamaConfig(**{**SMALL_LLAMA, "num_hidden_layers": 1, **fields})


def test_the_pool_has_room_for_both(model_dir: ModelDir, tmp_path: Path) -> None:
    directory, draft = model_dir("llama"), save_model(llama(), tmp_path)
    alone = LLM(directory).capacity
    capacity = LLM(directory, **drafted(draft)).capacity
    of_draft = 4 * 2 * 2 * 16  # one layer, keys and values of two heads of 16
    assert capacity.kv_bytes_per_token == alone.kv_bytes_per_token + of_draft
    assert capacity.pool_bytes > alone.pool_bytes
    assert capacity.weight_bytes == alone.weight_bytes
    (kv_group,) = capacity.kv_groups
    assert capacity.kv_layers == [(2, 1)] and alone.kv_layers == [(2, 0)]
    assert kv_group.layers == (0, 1, 2)
    assert f"by {tmp_path} in float32: " in capacity.describe()
    assert "256 bytes of that KV cache" in capacity.describe()


def test_layers_with_windows_of_its_own_are_a_kv_group(model_dir: ModelDir, tmp_path: Path) -> None:
    import transformers

    sizes = {**SMALL_LLAMA, "num_hidden_layers": 1, "sliding_window": 12}
    draft = save_model(transformers.MistralConfig(**sizes), tmp_path)
    directory, prompts = model_dir("llama"), random_prompts(9, 30, 17)
    llm = LLM(directory, block_size=4, **drafted(draft))
    assert [kv_group.layers for kv_group in llm.capacity.kv_groups] == [(0, 1), (2,)]
    pool = EngineReader(llm.engine, "m", llm.capacity.kv_layers).moment(0).pool
    assert [(one.layers, one.draft_layers) for one in pool.kv_groups] == [(2, 0), (0, 1)]
    verified = Verified(llm)
    expected = LLM(directory).generate(prompts, GREEDY, use_tqdm=False)
    assert texts(llm.generate(prompts, GREEDY, use_tqdm=False)) == texts(expected)
    assert verified.drafts > 20


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("cache", [None, "int8"])
def test_both_have_blocks_on_pages_of_one_memory(
    cache: str | None, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Of which there are so few that texts swap, and pages go from one KV group to another."""
    import transformers

    larger = {**SMALL_LLAMA, "num_hidden_layers": 3, "head_dim": 48, "sliding_window": 20}
    other = save_model(transformers.Gemma2Config(**larger), tmp_path)
    directory, prompts = model_dir("gemma2"), random_prompts(9, 12, 15, 8, 17)
    greedy = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    settings = {"block_size": 4, "kv_cache_dtype": cache or "auto"}
    expected = texts(LLM(directory, **settings).generate(prompts, greedy, use_tqdm=False))
    tight = {**settings, "swap_space": 0.01, "preemption_mode": "swap"}
    for draft, spans, units in ((directory, (1, 1), 60), (other, (3, 1, 4), 16 * 12)):
        room = units * LLM(directory, **settings, **drafted(draft)).capacity.mean_block_bytes
        llm = LLM(directory, **tight, kv_cache_memory_bytes=room, **drafted(draft))
        assert tuple(one.share and one.share.span for one in llm.capacity.kv_groups) == spans
        verified, swaps = Verified(llm), 0
        for _ in range(2):  # the second time with what the prefix cache has left
            outputs = llm.generate(prompts, greedy, use_tqdm=False)
            assert texts(outputs) == expected
            swaps += sum(output.metrics.num_swaps for output in outputs)
        assert swaps > 0
        assert verified.drafts > 20 and (verified.right == verified.drafts) == (draft == directory)
        usage = llm.engine.scheduler.allocator.usage()
        assert usage.used == usage.reserved == 0 and usage.capacity == llm.capacity.num_blocks * 4


@pytest.mark.usefixtures("any_size")
def test_what_it_looks_at_is_in_its_window(model_dir: ModelDir) -> None:
    """Its last draft is computed one step late, when the window may have left a block behind."""
    directory, prompts = model_dir("mistral"), random_prompts(9, 30, 17)
    llm = LLM(directory, block_size=4, **drafted(directory))
    verified = Verified(llm)
    compute = verified.draft_model._compute

    def looked(chunks: Any, asked: Any = ()) -> Any:
        for chunk in chunks:
            (table,) = chunk.table.kv_groups
            assert table.num_dropped * 4 <= max(0, chunk.start - 12 + 1)
        return compute(chunks, asked)

    verified.draft_model._compute = looked
    fill = verified.draft_model.fill

    def filled(chunks: Any, *given: Any) -> Any:
        made = fill(chunks, *given)
        assert [len(one.token_ids) for one in made] == [len(one.token_ids) for one in chunks]
        return made

    verified.draft_model.fill = filled
    llm.generate(prompts, GREEDY, use_tqdm=False)
    assert verified.right == verified.drafts > 20


@pytest.mark.usefixtures("any_size")
def test_what_is_behind_is_there_for_forks(model_dir: ModelDir) -> None:
    """A prompt is found but for its last token, and forks copy the block of that one."""
    directory, prompts = model_dir("llama"), random_prompts(13)
    llm = LLM(directory, block_size=4, **drafted(directory))
    verified = Verified(llm)
    llm.generate(prompts, GREEDY, use_tqdm=False)
    sampled = SamplingParams(n=4, seed=1, max_tokens=24, ignore_eos=True)
    (output,) = llm.generate(prompts, sampled, use_tqdm=False)
    assert output.metrics.cached_tokens == 12 and output.metrics.copied_blocks > 0
    assert verified.right == verified.drafts > 40


@pytest.mark.usefixtures("any_size")
def test_what_is_behind_is_not_taken_for_what_comes_after_a_cut(model_dir: ModelDir) -> None:
    directory, prompts = model_dir("llama"), random_prompts(13, 9, 5)
    llm = LLM(directory, block_size=4, **drafted(directory))
    verified = Verified(llm)
    with llm.open_session() as session:
        for prompt in prompts:
            session.append(prompt)
            session.generate(GREEDY)
            session.recompute(6)
    assert verified.right == verified.drafts > 20


def test_keys_that_depend_on_the_prompt_are_not_cached(model_dir: ModelDir, tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 8.0}
    draft = save_model(llama(max_position_embeddings=32, rope_parameters=rope), tmp_path)
    llm = LLM(model_dir("llama"), **drafted(draft))
    assert llm.engine.scheduler.prefix_cache is None
    with pytest.raises(Exception, match="no sessions"):
        llm.open_session()


def other_words(directory: Path) -> None:
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    ids = content["model"]["vocab"]
    ids["et"], ids["te"] = ids["te"], ids["et"]
    file.write_text(json.dumps(content), encoding="utf-8")


def no_words(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


def no_head(directory: Path) -> None:
    file = directory / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, "architectures": ["LlamaModel"]}), encoding="utf-8")


REFUSALS: list[tuple[dict[str, Any], Callable[[Path], object] | None, dict[str, Any], str]] = [
    (
        {"num_hidden_layers": 2, "num_key_value_heads": 4},
        None,
        {},
        "those of the model it drafts for",
    ),
    ({"vocab_size": 310}, no_words, {}, "310 tokens where the model that it drafts for has 300"),
    ({"vocab_size": 290}, None, {}, "its tokenizer has 300 tokens, the model only 290"),
    ({}, no_head, {}, "has no head for tokens"),
    ({}, None, {"hf_overrides": {"architectures": ["LlamaModel"]}}, "nothing to draft"),
    ({}, other_words, {}, "another vocabulary: 'et' is token 2.., and token 2"),
    ({"max_position_embeddings": 64}, None, {}, "max_model_len is 256; this model allows 1 to 64"),
    ({}, None, {"kv_cache_memory_bytes": "8KiB", "max_model_len": 99}, "256 bytes of the 1.25 KiB"),
    ({}, None, {"speculative_config": {"method": "draft"}}, 'method "draft" needs a model'),
    ({}, None, {"speculative_config": {"method": "draft", "model": "/no"}}, "/no is not a dir"),
    ({}, None, {"speculative_config": {"method": "draft", "model": 3}}, "model must be a text"),
    ({}, None, {"speculative_config": {"method": "ngram", "model": "m"}}, 'nothing with method "n'),
    ({}, None, {"speculative_config": {"method": "auto", "revision": "m"}}, "revision needs a mod"),
    ({}, None, {"speculative_config": {"model": "m", "quantization": "x"}}, "int8, int4, w8a8"),
    ({}, None, {"device": "cuda"}, "computes on CPUs only"),
]


@pytest.mark.parametrize(("fields", "change", "options", "message"), REFUSALS)
def test_what_cannot_draft_is_refused_by_name(
    fields: dict[str, Any],
    change: Callable[[Path], object] | None,
    options: dict[str, Any],
    message: str,
    model_dir: ModelDir,
    tmp_path: Path,
) -> None:
    draft = save_model(llama(**fields), tmp_path)
    if change is not None:
        change(draft)
    with pytest.raises((ConfigError, ModelError), match=message) as refused:
        LLM(model_dir("llama"), **{**drafted(draft), **options})
    assert "speculative_config" in str(refused.value)


def test_the_demonstration_model_brings_one() -> None:
    assert (DEMO_DRAFT / "model.safetensors").stat().st_size < 1_000_000
    asked = "Explain the with statement.", SamplingParams(temperature=0.0, max_tokens=64)
    expected = LLM().generate(*asked, use_tqdm=False)
    llm = LLM(speculative_config={"method": "draft"})
    assert "by quire-demo's draft in bfloat16: 97" in llm.capacity.describe()
    verified = Verified(llm, drafts=lambda *_: [TO_DRAFT])
    assert texts(llm.generate(*asked, use_tqdm=False)) == texts(expected)
    assert verified.right > 0.3 * verified.drafts > 0
