"""A model of attention and of a state: whatever happens to a request, it has its own bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import RequestError
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
    assert fork.metrics.cached_tokens == 0, "nobody has left a state there"
    stats = llm.engine.scheduler.stats
    assert stats.prefix_stateless == 48
    exposed = ServerMetrics(llm.engine, "m").exposition().decode()
    assert 'prefix_cache_stateless_total{model_name="m"} 48.0' in exposed
    assert 'state_slots{model_name="m",state="live"} 0.0' in exposed
    pool = pool_figures(llm.engine.scheduler, 2048, llm.capacity.kv_layers)
    assert [one.keeps_states for one in pool.kv_groups] == [False, True]
    assert prefix_cache(llm.engine.scheduler).stateless_tokens == 48
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
