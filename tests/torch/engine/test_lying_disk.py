"""A swap file that gives back what was not written: whoever relied on it is computed again."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.memory import MoveKind
from quire.http.metrics import ServerMetrics
from support.hf_reference import random_prompts

ModelDir = Callable[[str], Path]

BLOCK_SIZE = 4
FAMILIES = {  # of swapping, by KV groups and types of the cache: model, options, blocks of the pool
    "float32": ("llama", {}, 50),
    "bfloat16": ("llama", {"kv_cache_dtype": "bfloat16"}, 50),
    "int8": ("llama", {"kv_cache_dtype": "int8"}, 50),
    "int4": ("llama", {"kv_cache_dtype": "int4"}, 50),
    "kv_groups": ("qwen2_window", {"max_num_batched_tokens": 16}, 50),
}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    SamplingParams(n=4, seed=5, max_tokens=24, ignore_eos=True),
    SamplingParams(use_beam_search=True, n=3, max_tokens=20, ignore_eos=True),
]


def swap_files(directory: Path) -> list[int]:
    """This process's open files that were in ``directory``, as anybody can find them."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the directory's own, gone by now
            continue
        if target.startswith(f"{directory}/quire-swap-"):
            found.append(int(entry.name))
    return found


class Disk:
    """Does to the swap files what no disk should do."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.files = swap_files(directory)
        # Of the first blocks, which are the ones in use.
        self.sizes = {file: os.fstat(file).st_size // 8 for file in self.files}
        self._rng = random.Random(seed)
        self._earlier = {file: os.pread(file, size, 0) for file, size in self.sizes.items()}

    def flip_bits(self) -> None:
        for file, size in self.sizes.items():
            for place in self._rng.sample(range(size), 40):
                (byte,) = os.pread(file, 1, place) or (0,)
                os.pwrite(file, bytes([byte ^ 1 << self._rng.randrange(8)]), place)

    def write_no_numbers(self) -> None:
        """All bits set is NaN in every type of float."""
        for file, size in self.sizes.items():
            for place in self._rng.sample(range(size), 4):
                os.pwrite(file, b"\xff" * 512, place)

    def lose_writes(self) -> None:
        """What the file held some time ago is what it holds."""
        for file, size in self.sizes.items():
            if self._rng.random() < 0.3:
                self._earlier[file] = os.pread(file, size, 0)
            else:
                os.pwrite(file, self._earlier[file], 0)

    def cut(self) -> None:
        for file, size in self.sizes.items():
            os.ftruncate(file, self._rng.randrange(size))


def serve(llm: LLM, prompts: list[list[int]], before_step: Callable[[], None]) -> dict[str, Any]:
    """Every prompt under every one of PARAMS; the outputs by request."""
    engine, outputs = llm.engine, {}
    for number, params in enumerate(PARAMS):
        for place, prompt in enumerate(prompts):
            engine.add_request(f"{number}-{place}", prompt, params)
    while engine.has_work:
        before_step()
        for delta in engine.step():
            if delta.final is not None:
                assert delta.finish_reason == "length", delta.stop_reason
                choices = delta.final.outputs
                outputs[delta.request_id] = [choice.token_ids for choice in choices]
    return outputs


def make_llm(directory: Path, pool: int, options: Mapping[str, Any], **more: Any) -> LLM:
    settings = {"block_size": BLOCK_SIZE, "max_model_len": 128, "max_num_seqs": 64, **options}
    bytes_per_token = LLM(directory, **settings).capacity.kv_bytes_per_token
    return LLM(
        directory, kv_cache_memory_bytes=pool * BLOCK_SIZE * bytes_per_token, **settings, **more
    )


@pytest.mark.parametrize("fault", ["flip_bits", "write_no_numbers", "lose_writes", "cut"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_that_comes_back_different_is_computed_again(
    family: str,
    fault: str,
    model_dir: ModelDir,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, options, pool = FAMILIES[family]
    directory, prompts = model_dir(name), random_prompts(33, 41, 37)
    wanted = serve(make_llm(directory, 1000, options), prompts, lambda: None)
    swapping = {"preemption_mode": "swap", "swap_space": 0.001, "swap_path": str(tmp_path)}
    llm = make_llm(directory, pool, options, **swapping)
    disk = Disk(tmp_path, seed=7)
    assert len(disk.files) == len(llm.capacity.kv_groups)
    with caplog.at_level(logging.WARNING):
        got = serve(llm, prompts, getattr(disk, fault))
    assert got == wanted
    failed = llm.engine.stats.num_failed_swaps
    assert failed > 0
    exposed = ServerMetrics(llm.engine, "m").exposition().decode()
    assert f'quire:swap_blocks_failed_total{{model_name="m"}} {float(failed)}' in exposed
    logged = [record for record in caplog.records if "computed again" in record.message]
    assert 0 < len(logged) <= failed
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    again = serve(llm, prompts, lambda: None)  # what is left in the prefix cache is as it should be
    assert again == wanted


def test_log_probabilities_of_prompts_are_not_those_of_zeros(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """Prompts that are preempted before they are computed to their ends."""
    directory, prompts = model_dir("llama"), random_prompts(40, 44, 48, 52)
    params = SamplingParams(temperature=0.0, max_tokens=44, prompt_logprobs=0, ignore_eos=True)

    def logprobs(llm: LLM, before_step: Callable[[], None]) -> list[list[float]]:
        found: dict[str, list[float]] = {}
        for number, prompt in enumerate(prompts):
            llm.engine.add_request(str(number), prompt, params)
        while llm.engine.has_work:
            before_step()
            for delta in llm.engine.step():
                if delta.final is not None:
                    tables = delta.final.prompt_logprobs or []
                    found[delta.request_id] = [
                        one.logprob for table in tables if table for one in table.values()
                    ]
        return [found[str(number)] for number in range(len(prompts))]

    options = {"max_num_batched_tokens": 4, "enable_prefix_caching": False, "max_model_len": 96}
    wanted = logprobs(make_llm(directory, 1000, options), lambda: None)
    swapping = {"preemption_mode": "swap", "swap_space": 0.001, "swap_path": str(tmp_path)}
    llm = make_llm(directory, 24, options, **swapping)
    got = logprobs(llm, Disk(tmp_path, seed=3).write_no_numbers)
    assert llm.engine.stats.num_failed_swaps > 0
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)


def test_an_honest_disk_is_believed(model_dir: ModelDir, tmp_path: Path) -> None:
    swapping = {"preemption_mode": "swap", "swap_space": 0.001, "swap_path": str(tmp_path)}
    llm = make_llm(model_dir("llama"), 50, {}, **swapping)
    moved = 0
    submit = llm.engine.executor.submit

    def watched(step: Any) -> Any:
        nonlocal moved
        moved += sum(move.kind is MoveKind.SWAP_IN for move in step.moves)
        return submit(step)

    llm.engine.executor.submit = watched  # type: ignore[method-assign]
    serve(llm, random_prompts(33, 41, 37), lambda: None)
    assert moved > 0 and llm.engine.stats.num_failed_swaps == 0
