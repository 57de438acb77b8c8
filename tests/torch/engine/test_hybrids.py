"""Models whose layers keep states, in an engine: ranks, the store, drafts, the law of bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.core.protocol import RecoveryCosts
from quire.engine.assembly import draft as assembly
from support.draft_lives import drafted
from support.drafting import Drafting, Verified, knowing
from support.engine_lives import save_hybrid
from support.hf_reference import hf_greedy, random_prompts
from support.law_of_bits import FORMS, tallies
from support.small_models import VOCAB_SIZE

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def test_two_ranks_give_the_texts_of_one(model_dir: Callable[[str], Path]) -> None:
    directory, texts = model_dir("qwen3_5"), random_prompts(3, 25, 40)
    expected = [hf_greedy(directory, text, 20) for text in texts]
    llm = LLM(
        directory,
        tensor_parallel_size=2,
        threads=1,
        kv_cache_memory_bytes=64 * 2**20,
        max_num_batched_tokens=16,
        block_size=4,
        speculative_config={"num_speculative_tokens": 4},
    )
    truth = {str(number): [text] for number, text in enumerate(expected * 2)}
    llm.engine.use(llm.engine.capabilities._replace(speculation=None))  # nobody else drafts
    drafting = Drafting(llm.engine.scheduler, knowing(truth, 0.5, VOCAB_SIZE))
    prompts = [{"prompt_token_ids": text} for text in texts]
    for found_before in (False, True):
        found = llm.generate(prompts, GREEDY)
        assert [list(one.outputs[0].token_ids) for one in found] == expected
        assert (found[2].num_cached_tokens > 30) == found_before
    assert drafting.num_drafts > 20


def test_a_draft_model_with_states_drafts_for_two_ranks(
    model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its states are rank 0's alone, in slots that both have. It is the target: always right."""
    monkeypatch.setattr(assembly, "check_draft", lambda *_: None)
    directory, texts = model_dir("qwen3_5"), random_prompts(3, 25, 40)
    common = {"threads": 1, "kv_cache_memory_bytes": 2**22, "block_size": 4}
    expected = LLM(directory, **common).generate(texts, GREEDY, use_tqdm=False)
    llm = LLM(directory, **common, **drafted(directory), tensor_parallel_size=2)
    verified = Verified(llm)
    for cached in (0, 0, 0), (0, 24, 36):
        found = llm.generate(texts, GREEDY, use_tqdm=False)
        assert [one.outputs[0].token_ids for one in found] == [
            one.outputs[0].token_ids for one in expected
        ]
        assert tuple(one.metrics.cached_tokens for one in found) == cached
    assert 40 < verified.drafts == verified.right
    llm.close()


@pytest.mark.parametrize(
    ("family", "settings"), [("qwen3_5", {}), ("mamba2", {"kv_offloading_size": 0.01})]
)
def test_a_restart_finds_prompts_in_the_store(
    family: str,
    settings: dict[str, float],
    model_dir: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answer has the bits of one that computes all; and what is damaged there is computed."""
    monkeypatch.setattr(RecoveryCosts, "fetching_pays", lambda *_: True)
    directory, text = model_dir(family), random_prompts(40)[0]
    expected = hf_greedy(directory, text, 20)
    scored = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=1)
    store, first = tmp_path / "store", []
    for number in range(3):
        llm = LLM(
            directory,
            kv_cache_memory_bytes=2**22,
            block_size=4,
            kv_store=str(store),
            kv_store_size=0.1,
            **settings,
        )
        (found,) = llm.generate([{"prompt_token_ids": text}], scored)
        (answer,) = found.outputs
        first.append(answer.logprobs)
        assert list(answer.token_ids) == expected
        assert answer.logprobs == first[0]
        assert found.num_cached_tokens == (36 if number == 1 else 0)
        llm.engine.close()
        if number == 1:
            for file in store.rglob("*.blocks"):
                file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("form", ["bfloat16", "int4", "adapters"])
def test_a_request_has_the_bits_that_it_has_alone(form: str, tmp_path: Path) -> None:
    found = tallies(FORMS[form], save_hybrid(tmp_path), ("everything",), 8, at_once=5)
    for kind, tally in found.items():
        assert tally.first is None, f"{kind}: {tally.bits} of {tally.requests}; {tally.first}"
