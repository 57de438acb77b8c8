"""What an engine takes beside its weights is known before it is taken, and known to others."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from quire import LLM, SamplingParams
from quire.capabilities.adapters.reading import most_bytes
from quire.core.errors import ConfigError
from quire.engine.assembly import main_memory
from quire.engine.assembly.loading import load, locate
from quire.engine.assembly.main_memory import working_bytes
from quire.engine.capacity import adapter_share, limits_of
from quire.engine.config import EngineConfig
from quire.execution.promises import promises
from quire.models.shape import CacheShape
from quire_lab.simulation import MACHINES, Deployment, find_model

MIB = 2**20
SMALL = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "block_size": 16}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets so many bytes be free."""

    def be(num_bytes: int) -> None:
        monkeypatch.setattr("quire.execution.device_runtime.free_memory", lambda: num_bytes)

    return be


def needed(**settings: object) -> int:
    config = EngineConfig.create({**SMALL, **settings})
    directory = locate(config)
    model = load(config, directory, torch.device("cpu"), lambda num_bytes: None, "")
    cache = CacheShape(model.windows, (8,) * len(model.kv_shapes), model.max_positions, False)
    return working_bytes(limits_of(config, cache), model, directory, config)


def test_a_pool_up_to_the_last_free_byte_is_refused(free: Callable[[int], None]) -> None:
    free(256 * MIB)
    beside = needed()
    refusal = rf"268,435,456 bytes are free.*need {beside:,}; quire doctor says what"
    with pytest.raises(ConfigError, match=refusal):
        LLM(kv_cache_memory_bytes=256 * MIB - beside + 1, **SMALL)
    assert LLM(kv_cache_memory_bytes=16 * MIB, **SMALL).generate("a", SamplingParams(max_tokens=1))


def test_computing_needs_more_for_more_tokens_and_rows() -> None:
    least = needed()
    assert needed(max_num_batched_tokens=4096) > least + 4000 * 1000
    drafts = {"method": "ngram", "num_speculative_tokens": 7}
    assert needed(speculative_config=drafts) > needed(max_num_seqs=8) > least


def test_a_plan_leaves_as_much_as_an_engine_does() -> None:
    for settings in ({}, {"max_num_batched_tokens": 4096, "max_num_seqs": 100}):
        config = EngineConfig.create({**SMALL, **settings})
        plan = Deployment(find_model("quire-demo"), MACHINES["cpu"], config=config)
        assert plan.working_bytes == needed(**settings)


@pytest.mark.parametrize("rank", [16, 32])
def test_a_plan_counts_adapters_as_an_engine_does(rank: int) -> None:
    config = EngineConfig.create({"enable_lora": True, "max_loras": 3, "max_lora_rank": rank})
    model = load(config, locate(config), torch.device("cpu"), lambda num_bytes: None, "")
    share = adapter_share(find_model("quire-demo"), config, model.dtype.itemsize)
    assert share is not None and share.num_bytes == 4 * share.bytes_each
    assert share.bytes_each == pytest.approx(most_bytes(model, rank), rel=0.01)


def test_the_largest_step_takes_no_more_than_was_left_to_it() -> None:
    """Of 2,048 tokens; what it leaves behind counts as well."""
    llm = LLM(kv_cache_memory_bytes=64 * MIB, warm_up=True)
    prompts = [{"prompt_token_ids": [5 + i % 50 for i in range(200)]} for _ in range(11)]
    before = psutil.Process().memory_info().rss
    llm.generate(prompts, SamplingParams(max_tokens=1, temperature=1.0, top_p=0.99))
    assert psutil.Process().memory_info().rss - before < needed(max_num_batched_tokens=2048)


def test_a_pool_that_nobody_has_touched_is_promised_until_its_engine_has_gone() -> None:
    def left() -> int:
        gc.collect()
        return sum(one.left for one in promises() if one.process == psutil.Process().pid)

    before = left()
    llm = LLM(kv_cache_memory_bytes=300 * MIB, **SMALL)
    assert 250 * MIB < left() - before <= 301 * MIB
    llm.engine.executor.worker._kv_cache.touch()  # type: ignore[attr-defined]
    assert left() - before < 50 * MIB
    del llm
    assert left() <= before + MIB


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"swap_space": 1.0, "swap_path": "."}, "swap_space"),
        ({"kv_store": ".", "kv_store_size": 1.0}, "kv_store_size"),
    ],
)
def test_files_that_lie_in_memory_are_of_the_free_memory(
    settings: dict[str, object],
    name: str,
    tmp_path: Path,
    free: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    free(512 * MIB)
    monkeypatch.setattr(main_memory, "is_memory", lambda directory: True)
    with pytest.raises(ConfigError, match=rf"{name}: .*tmpfs.*1 GiB .*512 MiB"):
        LLM(kv_cache_memory_bytes=16 * MIB, **SMALL, **settings)
