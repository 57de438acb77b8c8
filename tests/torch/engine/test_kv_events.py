"""A subscriber knows what the engine's prefix cache holds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, LoRARequest, SamplingParams
from quire.blocks.events.wire import short
from quire.core.errors import ConfigError
from quire.core.memory import hash_blocks
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


def test_who_listens_knows_how_far_a_state_is_there(tmp_path: Path) -> None:
    """Blocks alone say too much: a prompt goes on from where a snapshot is, too."""
    model = make_model("qwen3_5", tmp_path / "model")
    telling_all = telling(tmp_path)
    llm = LLM(model, **SIZES, **telling_all, max_num_seqs=2, kv_cache_memory_bytes="128KiB")
    one = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    rng, parts = random.Random(5), [list(range(20 * i + 5, 20 * i + 69)) for i in range(4)]
    short_of_blocks, evicted = 0, set[int | bytes]()
    for turn in range(24):
        prompt = rng.choice(parts)[: rng.choice((24, 40, 64))] + [turn] * rng.randint(1, 20)
        names = [short(name) for name in hash_blocks(b"", prompt[:-1], 8)]
        blocks, states = found_by_kind(tmp_path, evicted, llm)
        ends = [n for n in range(1, len(names) + 1) if blocks.issuperset(names[:n])]
        usable = max([n for n in ends if names[n - 1] in states], default=0)
        (output,) = llm.generate([prompt], one, use_tqdm=False)
        assert output.metrics.cached_tokens == usable * 8
        short_of_blocks += len(ends) > usable
    assert short_of_blocks and evicted, "else blocks would have said as much"
    llm.engine.close()


def found_by_kind(
    at: Path, evicted: set[int | bytes], llm: LLM
) -> tuple[set[int | bytes], set[int | bytes]]:
    """The names of blocks and of states that can be found, by all that has been told."""
    pools = [group.device for group in llm.engine.scheduler.allocator.kv_groups]
    while True:
        found: dict[str | None, set[int | bytes]] = {"full_attention": set(), "mamba": set()}
        kinds: dict[int | None, str | None] = {}
        for _, batch in replay(f"ipc://{at}/replay"):
            for event in batch.events:
                if isinstance(event, BlockStored):
                    kinds[event.group_idx] = event.kv_cache_spec_kind
                    assert len(event.token_ids) == 8 * len(event.block_hashes)
                    found[event.kv_cache_spec_kind].update(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    found[kinds[event.group_idx]].difference_update(event.block_hashes)
                    evicted.update(event.block_hashes)
        if sum(map(len, found.values())) == sum(len(pool._block_of) for pool in pools):
            return found["full_attention"], found["mamba"]  # else it is sent soon


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
