"""Blocks that outlive their engine: a request has the bits of one that computes all of it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.blocks.store import DiskStore, Tiers
from quire.core.errors import ConfigError
from quire.core.memory import hash_blocks, root_hash
from quire.core.protocol import RecoveryCosts
from quire.engine.assembly import draft as assembly
from quire.engine.llm import LoRARequest
from quire.engine.outputs import RequestOutput
from quire.engine.thread import EngineThread, Turn
from quire.http.metrics import ServerMetrics
from support.hf_reference import random_prompts
from support.law_of_bits import facts
from support.lora import save_adapter
from support.stored_blocks import files

ModelDir = Callable[[str], Path]

SHARED, *ENDS = random_prompts(61, 3, 7, 12, 21)
PROMPTS = [SHARED + end for end in ENDS] + [SHARED[:40]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=1)
PARAMS = [
    GREEDY,
    SamplingParams(n=3, seed=5, max_tokens=12, logprobs=0, ignore_eos=True),
    SamplingParams(use_beam_search=True, n=2, max_tokens=8, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1, ignore_eos=True),
]
SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 4 << 20}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("llama", {}),
    "int8 cache": ("llama", {"kv_cache_dtype": "int8", "dtype": "bfloat16"}),
    "int4 cache": ("llama", {"kv_cache_dtype": "int4", "dtype": "bfloat16"}),
    "kv_groups": ("qwen2_window", {"max_num_batched_tokens": 24}),
    "longrope": ("longrope", {}),
    "a draft model": ("llama", {"speculative_config": {"method": "draft"}}),
}


@pytest.fixture(autouse=True)
def it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """On models of this size, that is a matter of luck."""
    monkeypatch.setattr(RecoveryCosts, "fetching_pays", lambda *_: True)


def make_llm(directory: Path, store: Path | None = None, **options: Any) -> LLM:
    more = {} if store is None else {"kv_store": str(store), "kv_store_size": 0.01}
    settings = {"block_size": 4, "max_model_len": 128, "kv_cache_memory_bytes": 1 << 20, **options}
    return LLM(directory, **settings, **more)


def serve(llm: LLM, before: Callable[[], None] = lambda: None) -> list[RequestOutput]:
    """Every prompt under all of PARAMS, one after the other: each finds what others have left."""
    outputs = []
    for params in PARAMS:
        before()
        outputs += llm.generate(PROMPTS, params, use_tqdm=False)
        usage = llm.engine.scheduler.allocator.usage()
        assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    return outputs


def bits(outputs: list[RequestOutput]) -> list[list[tuple[Any, ...]]]:
    return [list(facts(output)) for output in outputs]


def fetched(outputs: list[RequestOutput]) -> int:
    return sum(output.metrics.fetched_tokens for output in outputs)


@pytest.mark.parametrize("form", FORMS)
def test_a_restarted_engine_gives_the_same_bits(
    form: str, model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does one beside it, and one whose pool is so small that it fetches over and over."""
    name, options = FORMS[form]
    directory = model_dir(name)
    if "speculative_config" in options:
        monkeypatch.setattr(assembly, "check_draft", lambda *_: None)
        options = {"speculative_config": {"method": "draft", "model": str(directory)}}
    wanted = bits(serve(make_llm(directory, **options)))
    first = make_llm(directory, tmp_path, **options)
    beside = make_llm(directory, tmp_path, **options)
    cold = serve(first)
    assert bits(cold) == wanted
    first.engine.close()
    warm = serve(beside)
    assert bits(warm) == wanted
    assert fetched(warm[: len(PROMPTS)]) >= len(SHARED) // 4 * 4
    assert all(one.metrics.cached_tokens >= one.metrics.fetched_tokens for one in warm)
    small = 160 * first.capacity.kv_bytes_per_token
    options = {**options, "kv_cache_memory_bytes": small}
    kept = make_llm(directory, **options, kv_offloading_size=2.0**-10)
    found = serve(kept)
    assert bits(found) == wanted
    again = make_llm(directory, tmp_path, **options)
    squeezed = serve(again)
    assert bits(squeezed) == wanted
    for llm, outputs, least, told in (
        (kept, found, 0, "1 MiB of blocks are kept in main memory"),
        (again, squeezed, fetched(warm), str(tmp_path)),
    ):
        assert fetched(outputs) > least
        exposed = ServerMetrics(llm.engine, "m").exposition().decode()
        assert f'quire:kv_store_hits_total{{model_name="m"}} {float(fetched(outputs))}' in exposed
        assert told in llm.capacity.describe()


def test_bits_that_have_turned_cost_a_recompute_and_nothing_else(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    directory, rng = model_dir("llama"), random.Random(3)
    wanted = bits(serve(make_llm(directory)))
    first = make_llm(directory, tmp_path)
    serve(first)
    first.engine.close()
    small = 160 * first.capacity.kv_bytes_per_token

    turns = iter((0, 1, 0, 1))

    def damage() -> None:
        """Every second time, of most blocks."""
        for path in files(tmp_path) * next(turns):
            record = bytearray(path.read_bytes())
            for start in range(0, len(record), 5000):
                record[rng.randrange(start, len(record))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.1:
                del record[rng.randrange(len(record)) :]
            path.write_bytes(record)

    llm = make_llm(directory, tmp_path, kv_cache_memory_bytes=small)
    assert bits(serve(llm, damage)) == wanted
    store = llm.engine.capabilities.store
    assert isinstance(store, DiskStore)
    assert store.counts.bad_blocks > 0 and store.counts.read_blocks > 0
    assert llm.engine.stats.num_failed_swaps == 0, "nothing was swapped"
    store.close()
    assert bits(serve(make_llm(directory, tmp_path))) == wanted, "what has been stored since"


OTHERS: dict[str, dict[str, Any]] = {
    "another type": {"dtype": "bfloat16"},
    "another cache": {"kv_cache_dtype": "int8"},
    "a smaller cache": {"kv_cache_dtype": "int4"},
    "rounded": {"quantization": "int8"},
    "other blocks": {"block_size": 8},
    "a window": {"window": 64},
    "other kernels": {"cpu_isa": "portable"},
    "other numbers in its config": {"hf_overrides": {"rms_norm_eps": 1e-3}},
    "an adapter": {"enable_lora": True},
    "a salt": {},
    "the same": {},
}


@pytest.mark.parametrize("other", OTHERS)
def test_blocks_of_another_model_are_not_found(
    other: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    directory, prompt = model_dir("llama"), {"prompt_token_ids": SHARED}
    first = make_llm(directory, tmp_path)
    first.generate([prompt], GREEDY, use_tqdm=False)
    first.engine.close()
    second, adapter = make_llm(directory, tmp_path, **OTHERS[other]), None
    if other == "an adapter":
        adapter = LoRARequest("a", 1, str(save_adapter(tmp_path / "adapter", directory)))
    if other == "a salt":
        prompt["cache_salt"] = "s"  # type: ignore[assignment]
    (output,) = second.generate([prompt], GREEDY, use_tqdm=False, lora_request=adapter)
    assert output.metrics.fetched_tokens == (60 if other == "the same" else 0)


def test_a_changed_weight_never_hits(model_dir: ModelDir, tmp_path: Path) -> None:
    """Though its file has the name, size and time of before."""
    directory = Path(shutil.copytree(model_dir("llama"), tmp_path / "model"))
    weights, store = directory / "model.safetensors", tmp_path / "store"
    for number in range(3):
        llm = make_llm(directory, store)
        (output,) = llm.generate([SHARED], GREEDY, use_tqdm=False)
        assert output.metrics.fetched_tokens == (60 if number == 1 else 0)
        llm.engine.close()
        if number == 1:
            times = weights.stat()
            content = bytearray(weights.read_bytes())
            content[-9] ^= 1
            weights.write_bytes(content)
            os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_what_the_last_step_has_computed_is_kept_too(model_dir: ModelDir, tmp_path: Path) -> None:
    """An engine's thread ends with the step that ends its last request."""
    llm = make_llm(model_dir("llama"), tmp_path)
    thread = EngineThread(llm.engine, lambda deltas: thread.put(None), lambda failure: None)
    one = SamplingParams(max_tokens=1, ignore_eos=True)
    thread.put(lambda: llm.engine.add_request("a", SHARED, one))
    assert [thread.turn(wait=True) for _ in range(2)] == [Turn.STEPPED, Turn.ENDED]
    llm.engine.close()
    assert isinstance(llm.engine.capabilities.store, DiskStore)
    assert llm.engine.capabilities.store.counts.written_blocks == len(SHARED) // 4


def test_a_store_that_does_not_pay_is_not_read(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecoveryCosts, "fetching_pays", lambda *_: False)
    for _ in range(2):
        llm = make_llm(model_dir("llama"), tmp_path)
        (output,) = llm.generate([SHARED], GREEDY, use_tqdm=False)
        assert output.metrics.cached_tokens == 0
        assert "so that none is fetched" in llm.capacity.describe()
        llm.engine.close()


def test_main_memory_keeps_what_is_found_in_the_pool(model_dir: ModelDir) -> None:
    """Or what is used most would be lost when it leaves the pool, since it was stored long ago."""
    llm = make_llm(model_dir("llama"), kv_cache_memory_bytes=1 << 17, kv_offloading_size=2.0**-10)
    tiers = llm.engine.capabilities.store
    assert isinstance(tiers, Tiers)
    tiers.shelf.most = 40  # blocks
    for other in random_prompts(*[41] * 8):
        for prompt in (SHARED, other):
            llm.generate([prompt], GREEDY, use_tqdm=False)
            assert tiers.shelf.num_bytes <= tiers.shelf.size
    names = hash_blocks(root_hash(""), SHARED, 4)
    assert len(names) == 15 and all(map(tiers.shelf.has, names))
    assert sum(map(tiers.shelf.has, hash_blocks(root_hash(""), other, 4))) == 10
    assert tiers.num_read == 0


def test_a_reset_reaches_main_memory_and_scores(model_dir: ModelDir, tmp_path: Path) -> None:
    """Whatever is in the memory of an engine or is about to be, and not what is on a disk."""
    options = {"kv_cache_memory_bytes": 1 << 17, "kv_offloading_size": 2.0**-10}
    llm = make_llm(model_dir("llama"), **options)
    asked = SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1)
    expected = llm.generate(PROMPTS, asked, use_tqdm=False)
    source, scheduler = llm.engine.capabilities.store, llm.engine.scheduler
    assert isinstance(source, Tiers) and source.shelf.num_bytes and scheduler._scored._kept
    for _ in range(3):
        llm.engine.reset_prefix_cache()
        assert not source.shelf.num_bytes and not scheduler._scored._kept
        assert scheduler.prefix_cache is not None and not scheduler.prefix_cache.has_work
        outputs = llm.generate(PROMPTS[:1], asked, use_tqdm=False)
        assert [one.metrics.cached_tokens for one in outputs] == [0]
        assert bits(outputs) == bits(expected[:1])
    on_disk = make_llm(model_dir("llama"), tmp_path / "store")
    serve(on_disk)
    store = on_disk.engine.capabilities.store
    assert isinstance(store, DiskStore)
    store.flush()
    on_disk.engine.reset_prefix_cache()
    assert fetched(serve(on_disk)) > 0


def test_a_turn_of_a_session_finds_what_another_engine_has_computed(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    answers = []
    for _ in range(2):
        llm = make_llm(model_dir("llama"), tmp_path)
        with llm.open_session() as session:
            session.append(SHARED)
            output = session.generate(GREEDY)
            answers.append(output.outputs[0].token_ids)
        llm.engine.close()
    assert answers[0] == answers[1]
    assert output.metrics.fetched_tokens == 60


def test_blocks_of_the_other_set_of_longrope_are_not_found(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    found = []
    for longest in (128, 128, 32):  # its original length
        llm = make_llm(model_dir("longrope"), tmp_path, max_model_len=longest)
        (output,) = llm.generate([SHARED[:20]], GREEDY, use_tqdm=False)
        found.append(output.metrics.fetched_tokens)
        llm.engine.close()
    assert found == [0, 19, 0]


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("dynamic", {"max_model_len": 64}, "kv_store: this model's rotary scaling depends on"),
        ("llama", {"kv_store": "/proc/quire"}, "kv_store: /proc/quire cannot hold blocks"),
        ("llama", {"kv_store_size": 2.0**-10, "block_size": 1024}, "kv_store_size: 1,048,576 by"),
        ("llama", {"kv_offloading_size": 2.0**-10}, "1 MiB hold no more than the KV pool, 4 MiB"),
        ("llama", {"kv_offloading_size": 2.0**16}, "kv_offloading_size: .* more than is free"),
    ],
)
def test_a_store_that_cannot_be_is_refused_by_name(
    family: str, options: dict[str, Any], message: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(model_dir(family), **{"kv_store": str(tmp_path), **SMALL, **options})
