"""Draft models beside layers that keep states, of the model or of both: no text depends on them.

A draft model that is its target is always right, which it could not be if one of its states had
seen a draft that was wrong, or not seen one that was right, or had been another text's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.core.protocol import TO_DRAFT
from quire.engine.assembly import draft as assembly
from quire.http.live.state import EngineReader
from support.draft_lives import CACHED, CHUNKS, GREEDY, RECOMPUTE, SWAP, check_drafts, drafted
from support.drafting import Verified
from support.engine_lives import save_hybrid, save_models
from support.hf_reference import random_prompts

ModelDir = Callable[[str], Path]

CASES: list[tuple[str, int, dict[str, Any], tuple[str, ...]]] = [
    ("float32", 49, {**SWAP, **CACHED, **CHUNKS}, ("swap", "found", "chunks", "forks")),
    ("bfloat16", 4, {**RECOMPUTE, **CACHED, **CHUNKS}, ("found", "forks")),
    ("int8 cache", 6, {**SWAP, **CACHED, **CHUNKS}, ("found", "forks")),
    ("int4", 4, {**CACHED, **CHUNKS}, ("found", "forks")),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One that keeps states, and those that may draft for it: itself first."""
    folder = tmp_path_factory.mktemp("models")
    (hybrid,) = save_hybrid(folder / "hybrid").values()
    plain, *_ = save_models(folder / "plain").values()
    return [hybrid, plain]


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft models may be as large as their target."""
    monkeypatch.setattr(assembly, "check_draft", lambda *_: None)


@pytest.mark.parametrize(("form", "seed", "events", "signs"), CASES)
def test_no_bit_changes_and_it_is_right_if_it_is_the_target(
    form: str,
    seed: int,
    events: dict[str, Any],
    signs: tuple[str, ...],
    models: list[Path],
) -> None:
    check_drafts(models, form, seed, events, signs, least=12)


@pytest.mark.parametrize("family", ["lfm2", "mamba2", "kimi_linear"])
def test_states_of_each_kind_come_back(family: str, model_dir: ModelDir) -> None:
    """With drafts of others before its own, some of them wrong; and with those of others alone."""
    directory, prompts = model_dir(family), random_prompts(9, 30, 17)
    common = {"block_size": 4, "kv_cache_memory_bytes": 2**22}
    expected = LLM(directory, **common).generate(prompts, GREEDY, use_tqdm=False)
    truth = {str(i): output.outputs[0].token_ids for i, output in enumerate(expected)}
    llm, rng = LLM(directory, **common, **drafted(directory)), random.Random(0)
    wrong = list[int]()

    def some(request: Any, branch: Any) -> list[int]:
        known = branch.num_output_tokens
        told = [*truth[request.request_id][known : known + rng.randrange(3)]]
        if told and rng.random() < 0.3:
            told[-1] = (told[-1] + 1) % 200
            wrong.append(told[-1])
            return told
        return told + [TO_DRAFT] * rng.choice((0, 2))

    verified = Verified(llm, drafts=some)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [one.outputs[0].token_ids for one in outputs] == [*truth.values()]
    assert 40 < verified.right < verified.drafts <= verified.right + len(wrong)


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2", "mamba2", "kimi_linear"])
def test_greedy_texts_go_on_in_one_call(family: str, model_dir: ModelDir) -> None:
    """Of several lengths, after drafts of others that were right or wrong."""
    directory, prompts = model_dir(family), random_prompts(9, 30, 17)
    common = {"block_size": 4, "kv_cache_memory_bytes": 2**22}
    expected = LLM(directory, **common).generate(prompts, GREEDY, use_tqdm=False)
    truth = {str(i): output.outputs[0].token_ids for i, output in enumerate(expected)}
    llm, rng = LLM(directory, **common, **drafted(directory)), random.Random(1)

    def some(request: Any, branch: Any) -> list[int]:
        known = branch.num_output_tokens
        told = [*truth[request.request_id][known : known + rng.randrange(2)]]
        return told + [TO_DRAFT] * rng.randint(1, 4)

    verified = Verified(llm, drafts=some)
    worker: Any = verified.draft_model._worker
    go_on, shapes = worker.go_on, list[tuple[int, ...]]()

    def noted(*given: Any) -> Any:
        tokens = go_on(*given)
        shapes.append(tuple(tokens.shape))
        return tokens

    worker.go_on = noted
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [one.outputs[0].token_ids for one in outputs] == [*truth.values()]
    assert verified.right == verified.drafts > 40
    assert max(passes for passes, _ in shapes) == 4 and max(texts for _, texts in shapes) == 3


def test_a_plain_model_drafts_for_one_with_states(model_dir: ModelDir) -> None:
    directory, draft = model_dir("qwen3_5"), model_dir("llama")
    prompts = random_prompts(9, 30, 17)
    expected = LLM(directory).generate(prompts, GREEDY, use_tqdm=False)
    llm = LLM(directory, block_size=4, **drafted(draft))
    assert [one.layers for one in llm.capacity.kv_groups] == [(1, 2, 3), (0,)]
    pool = EngineReader(llm.engine, "m", llm.capacity.kv_layers).moment(0).pool
    assert [(one.layers, one.draft_layers) for one in pool.kv_groups] == [(1, 2), (1, 0)]
    verified = Verified(llm)
    truth = [one.outputs[0].token_ids for one in expected]
    for cached in (0, 0, 0), (8, 28, 16):
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [one.outputs[0].token_ids for one in outputs] == truth
        assert tuple(one.metrics.cached_tokens for one in outputs) == cached
    assert verified.drafts > 20


def test_a_turn_that_ends_within_its_drafts_leaves_the_states_at_its_end(
    model_dir: ModelDir,
) -> None:
    """Drafts that are right, but lie beyond the end, are in no text, and must be in no state."""
    directory, prompt = model_dir("qwen3_5"), random_prompts(17)[0]
    common = {"block_size": 4, "kv_cache_memory_bytes": 2**22, "max_num_seqs": 2}
    plain = LLM(directory, **common)
    (truth,) = plain.generate([prompt], GREEDY, use_tqdm=False)
    told = [*truth.outputs[0].token_ids]
    stops = [i for i in range(4, 20) if told.index(told[i]) == i]
    llm = LLM(directory, **common, **drafted(directory))
    verified = Verified(llm, drafts=lambda *_: [TO_DRAFT] * 5)
    for stop in stops[:5]:
        turn = SamplingParams(
            temperature=0.0, max_tokens=24, stop_token_ids=[told[stop]], ignore_eos=True
        )
        answers = []
        for one in plain, llm:
            with one.open_session() as session:
                for piece in prompt, [7, 9], [11]:
                    session.append(piece)
                    answers.append(session.generate(turn).outputs[0].token_ids)
        assert answers[:3] == answers[3:]
        assert [*answers[0]] == told[: stop + 1]
    assert len(stops) > 4 and verified.drafts > 60
    assert verified.right == verified.drafts


def test_its_states_keep_no_room_for_drafts(model_dir: ModelDir) -> None:
    directory = model_dir("qwen3_5")
    each = LLM(directory).capacity.state_bytes
    room = LLM(directory, speculative_config={"method": "ngram"}).capacity.state_bytes - each
    both = LLM(directory, **drafted(directory)).capacity
    assert both.state_bytes == 2 * each + room
    assert both.kv_layers == [(1, 1), (1, 1)]


def test_one_that_keeps_states_drafts_for_none_that_keeps_none(model_dir: ModelDir) -> None:
    with pytest.raises(ConfigError, match=r"config: model .*: its layers keep a state"):
        LLM(model_dir("llama"), **drafted(model_dir("qwen3_5")))
