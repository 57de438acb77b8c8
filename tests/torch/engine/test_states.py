"""A model of attention and of a state: whatever happens to a request, it has its own bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import RequestError
from quire.core.protocol import Step
from quire.engine.dashboard.pool import pool_figures, prefix_cache
from quire.http.metrics import ServerMetrics
from support.decaying import serve_decaying
from support.engine_lives import save_models
from support.law_of_bits import tallies
from support.small_models import make_model

FORM = {"dtype": "float32"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def decaying(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_decaying(monkeypatch)


@pytest.mark.usefixtures("decaying")
@pytest.mark.parametrize("kind", ["cached", "chunks", "swap", "everything"])
def test_a_request_has_the_bits_that_it_has_alone(kind: str, models: dict[str, Path]) -> None:
    drafted = {**FORM, "speculative_config": {"method": "ngram"}}
    found = tallies(drafted, models, (kind,), 12, at_once=6)
    tally = found[kind]
    assert tally.first is None, f"{tally.bits} of {tally.requests}; {tally.first}"
    sign = {"cached": "found", "swap": "swap", "everything": "drafts"}.get(kind)
    assert sign is None or tally.happened[sign]


@pytest.mark.parametrize("family", ["qwen3_5", "falcon_h1", "mamba2"])
def test_so_it_has_in_models_of_some_states_of_both_and_of_nothing_else(
    family: str, tmp_path: Path
) -> None:
    model = make_model(family, tmp_path, max_position_embeddings=2048)
    drafted = {"dtype": "bfloat16", "speculative_config": {"num_speculative_tokens": 8}}
    found = tallies(drafted, {family: model}, ("cached", "drafts", "everything"), 8, at_once=8)
    for kind, tally in found.items():
        assert tally.first is None, f"{kind}: {tally.bits} of {tally.requests}; {tally.first}"
    assert found["cached"].happened["found"] and found["drafts"].happened["drafts"] > 20


@pytest.mark.usefixtures("decaying")
def test_what_it_is_and_what_it_holds_is_said(models: dict[str, Path]) -> None:
    llm = LLM(models["6 heads on 2 of 32"], **FORM, max_num_seqs=3, kv_cache_memory_bytes="1MiB")
    said = llm.capacity.describe()
    slots = llm.capacity.kv_groups[-1].num_blocks
    assert f"{slots:,} states of a sequence, of 320 bytes, for 1 of 3 layers" in said
    prompt = list(range(5, 105))
    first = llm.generate([prompt], GREEDY)[0]
    second = llm.generate([prompt + [7] * 30], GREEDY)[0]
    assert first.metrics.cached_tokens == 0
    assert second.metrics.cached_tokens == 96, "the last block's end before the prompt's"
    fork = llm.generate([prompt[:50] + [9] * 30], GREEDY)[0]
    assert fork.metrics.cached_tokens == 32, "the deepest that the first has left before"
    stats = llm.engine.scheduler.stats
    assert stats.prefix_stateless == 16
    exposed = ServerMetrics(llm.engine, "m").exposition().decode()
    assert 'prefix_cache_stateless_total{model_name="m"} 16.0' in exposed
    assert 'state_slots{model_name="m",state="live"} 0.0' in exposed
    pool = pool_figures(llm.engine.scheduler, 2048, llm.capacity.kv_layers)
    assert [one.keeps_states for one in pool.kv_groups] == [False, True]
    assert prefix_cache(llm.engine.scheduler).stateless_tokens == 16
    again = llm.generate([prompt[:50] + [8] * 30], GREEDY)[0]
    assert again.metrics.cached_tokens == 48, "where the one before has left what was known"


@pytest.mark.usefixtures("decaying")
def test_a_session_cuts_hard_and_not_softly(models: dict[str, Path]) -> None:
    llm = LLM(models["6 heads on 2 of 32"], **FORM, max_num_seqs=3, kv_cache_memory_bytes="1MiB")
    with llm.open_session() as session:
        session.append([5, 6, 7])
        whole = session.generate(GREEDY)
        with pytest.raises(RequestError, match="keep a state of all the history"):
            session.soft_cut(-1.0, 4)
        session.hard_cut()
        session.append([5, 6, 7])
        assert session.generate(GREEDY).outputs[0].token_ids == whole.outputs[0].token_ids


@pytest.mark.usefixtures("decaying")
def test_after_a_cut_a_session_goes_on_from_a_snapshot(models: dict[str, Path]) -> None:
    """Whoever has left it: the session itself before the cut, or another text."""
    llm = LLM(models["6 heads on 2 of 32"], **FORM, max_num_seqs=3, kv_cache_memory_bytes="1MiB")
    head = list(range(5, 85))
    with llm.open_session() as session:
        session.append(head)
        first = session.generate(GREEDY)
        session.append([7, 8, 9])
        session.generate(GREEDY)
        session.hard_cut()
        session.append(head)
        again = session.generate(GREEDY)
        assert again.metrics.cached_tokens == 64, "the last block's end before the prompt's"
        assert again.outputs[0].token_ids == first.outputs[0].token_ids


@pytest.mark.parametrize("family", ["qwen3_5", "kimi_linear", "falcon_h1", "mamba2", "lfm2"])
def test_a_pass_leaves_states_on_its_way_and_they_are_to_the_bit(
    family: str, tmp_path: Path
) -> None:
    """Of a text that begins like none, after 16, 32, 64 and 128 tokens, and at its last block."""
    model = make_model(family, tmp_path, max_position_embeddings=2048)
    facts = {"dtype": "bfloat16", "kv_cache_memory_bytes": "16MiB", "max_num_seqs": 3}
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=2)
    plain = LLM(model, **facts, enable_prefix_caching=False, max_num_batched_tokens=7)
    llm = LLM(model, **facts)
    steps, schedule = list[Step](), llm.engine.scheduler.schedule

    def watched(*given: Any) -> Step:
        steps.append(schedule(*given))
        return steps[-1]

    llm.engine.scheduler.schedule = watched  # type: ignore[method-assign]
    head = [5 + 3 * n % 60 for n in range(200)]
    llm.generate([head], params)
    assert [len(chunk.token_ids) for chunk in steps[0].chunks] == [200], "one pass"
    assert sorted(place for place, _ in steps[0].chunks[0].left) == [16, 32, 64, 128, 192]
    for shared, cached in ((20, 16), (47, 32), (65, 64), (150, 128), (199, 192)):
        prompt = [*head[:shared], *(7 + n % 50 for n in range(shared, shared + 21))]
        found, expected = (one.generate([prompt], params)[0] for one in (llm, plain))
        assert found.metrics.cached_tokens == cached
        assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        assert found.outputs[0].logprobs == expected.outputs[0].logprobs
