"""A subscriber knows what the engine's prefix cache holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire import LLM, LoRARequest, SamplingParams
from quire.blocks.events.wire import short
from quire.core.errors import ConfigError
from support.lora import save_adapter
from support.small_models import make_model
from support.vllm_events import AllBlocksCleared, BlockRemoved, BlockStored, replay

SIZES: dict[str, Any] = {"dtype": "float32", "block_size": 8, "max_model_len": 128}


def telling(at: Path, **more: Any) -> dict[str, Any]:
    addresses = {"endpoint": f"ipc://{at}/events", "replay_endpoint": f"ipc://{at}/replay"}
    return {"kv_events_config": {"enable_kv_cache_events": True, **addresses, **more}}


def test_a_replay_is_the_pool(tmp_path: Path) -> None:
    """Over several KV groups, with an adapter, evictions and a reset."""
    model = make_model("gemma3", tmp_path / "model")
    save_adapter(tmp_path / "poet", model, seed=1)
    llm = LLM(
        model, **SIZES, **telling(tmp_path), kv_cache_memory_bytes="160KiB", enable_lora=True,
    )  # fmt: skip
    poet = LoRARequest("poet", 1, str(tmp_path / "poet"))
    greedy = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
    pools = [group.device for group in llm.engine.scheduler.allocator.kv_groups]
    assert len(pools) == 2
    seen = {"BlockStored": 0, "BlockRemoved": 0, "AllBlocksCleared": 0, "poet": 0}
    for turn in range(14):
        prompts = [[*range(20, 44), turn + 9, *range(60 + turn)]]
        llm.generate(prompts, greedy, use_tqdm=False, lora_request=poet if turn % 3 else None)
        if turn == 5:
            llm.engine.reset_prefix_cache()
    found: list[set[int | bytes]] = [set(), set()]
    while sum(map(len, found)) != sum(len(pool._block_of) for pool in pools):  # it is sent soon
        found, seen = [set(), set()], dict.fromkeys(seen, 0)
        for _, batch in replay(f"ipc://{tmp_path}/replay"):
            for event in batch.events:
                seen[type(event).__name__] += 1
                if isinstance(event, BlockStored):
                    seen["poet"] += event.lora_name == "poet"
                    found[event.group_idx or 0].update(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    found[event.group_idx or 0].difference_update(event.block_hashes)
                else:
                    assert isinstance(event, AllBlocksCleared)
                    found = [set(), set()]
    assert found == [{short(name) for name in pool._block_of} for pool in pools]
    assert all(seen.values()), seen
    llm.engine.close()


def test_what_could_tell_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kv_events_config needs enable_prefix_caching"):
        LLM(**telling(tmp_path), enable_prefix_caching=False)
    for config, why in (
        ({"topics": ""}, "unknown option topics; did you mean topic?"),
        ({"endpoint": "localhost:5557"}, "endpoint must begin with tcp:// or ipc://"),
        ({"hwm": 0}, "hwm must be an integer from 1"),
        ({"publisher": "kafka"}, "publisher must be one of null, zmq"),
        ({"event_encoding": "json"}, "event_encoding must be one of map, array"),
    ):
        with pytest.raises(ConfigError, match=f"kv_events_config: {why}".replace("?", r"\?")):
            LLM(kv_events_config=config)
