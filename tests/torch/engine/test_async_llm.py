"""``AsyncLLM`` on the demonstration model: what it gives is what ``LLM`` gives."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, AsyncLLM, LoRARequest, PoolingParams, SamplingParams
from quire.core.errors import (
    ConfigError,
    EngineError,
    ModelError,
    QueueFullError,
    RequestAbortedError,
    RequestError,
)
from quire.engine.outputs import RequestOutput, RunningOutput
from quire.models.demo import DEMO_MODEL
from support.lora import save_adapter

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
PROMPTS = ["A list is", "To open a file", "A dictionary", "Use print to"]
MESSAGE = {"role": "user", "content": "What is a list?"}


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    llm = AsyncLLM(kv_cache_memory_bytes="16MiB")
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def sync() -> LLM:
    return LLM(kv_cache_memory_bytes="16MiB")


async def last(outputs: AsyncIterator[Any]) -> Any:
    *_, found = [output async for output in outputs]
    return found


async def idle(llm: AsyncLLM) -> None:
    for _ in range(2000):
        usage = llm.engine.scheduler.allocator.usage()
        if not llm.engine.has_work and usage.cached + usage.free == usage.capacity:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("its blocks are held on")


def facts(output: RequestOutput) -> list[Any]:
    """Of the outputs, with every bit of their log-probabilities."""
    return [
        (one.text, one.token_ids, one.finish_reason, one.cumulative_logprob,
         [table.as_dict() for table in one.logprobs or ()])
        for one in output.outputs
    ]  # fmt: skip


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=12, logprobs=2),
        SamplingParams(n=2, seed=7, max_tokens=12, logprobs=0, stop=["the"]),
        SamplingParams(best_of=3, n=1, seed=7, max_tokens=8),
        SamplingParams(use_beam_search=True, n=2, max_tokens=8),
    ],
    ids=["greedy", "two", "best", "beams"],
)
def test_many_at_once_give_bit_for_bit_what_llm_gives(
    llm: AsyncLLM, sync: LLM, params: SamplingParams
) -> None:
    async def main() -> list[RequestOutput]:
        return list(await asyncio.gather(*(last(llm.generate(one, params)) for one in PROMPTS)))

    expected = sync.generate(PROMPTS, params, use_tqdm=False)
    for _ in range(2):  # in two event loops
        found = asyncio.run(main())
        assert list(map(facts, found)) == list(map(facts, expected))
        assert [one.prompt for one in found] == PROMPTS and all(one.finished for one in found)


def test_outputs_grow_and_those_given_stay_as_they_were(llm: AsyncLLM) -> None:
    params = SamplingParams(n=2, seed=3, max_tokens=30, logprobs=0, ignore_eos=True)

    async def main() -> list[RunningOutput | RequestOutput]:
        return [output async for output in llm.generate("A list is", params, "mine")]

    *running, done = asyncio.run(main())
    assert running and done.finished and isinstance(done, RequestOutput)
    before = [0, 0]
    for output in running:
        assert not output.finished and output.request_id == "mine" and output.prompt == "A list is"
        for number, one in enumerate(output.outputs):
            whole = done.outputs[number]
            assert whole.text.startswith(one.text)
            assert len(one.token_ids) >= before[number]
            assert one.token_ids == whole.token_ids[: len(one.token_ids)]
            assert len(one.logprobs or ()) == len(one.token_ids)
            before[number] = len(one.token_ids)


def test_a_stream_gives_deltas_and_a_chat_its_answer(llm: AsyncLLM, sync: LLM) -> None:
    async def main() -> tuple[str, Any]:
        text, final = "", None
        async for delta in llm.stream("A list is", GREEDY):
            text, final = text + delta.text, delta.final
        assert final is not None and final.outputs[0].text == text
        return text, await last(llm.chat([MESSAGE], GREEDY))

    text, answer = asyncio.run(main())
    assert text == sync.generate("A list is", GREEDY, use_tqdm=False)[0].outputs[0].text
    expected = sync.chat([MESSAGE], GREEDY, use_tqdm=False)[0]
    assert answer.prompt_token_ids == expected.prompt_token_ids and facts(answer) == facts(expected)


def test_vectors_are_those_of_llm(llm: AsyncLLM, sync: LLM) -> None:
    found = asyncio.run(last(llm.encode("A list is")))
    (expected,) = sync.encode("A list is", use_tqdm=False)
    assert found.outputs.data.tolist() == expected.outputs.data.tolist()


def test_a_text_longer_than_there_is_room_is_cut_as_by_llm(llm: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=10**6, seed=1, stop=["."])
    assert asyncio.run(last(llm.generate("A list is", params))).outputs[0].token_ids


@pytest.mark.parametrize(
    ("call", "error", "field"),
    [
        (lambda llm: llm.generate([10**6]), RequestError, "prompt"),
        (lambda llm: llm.generate(""), RequestError, "prompt"),
        (lambda llm: llm.generate("x", SamplingParams(n=200)), RequestError, "n"),
        (lambda llm: llm.generate("x", priority=10**9), RequestError, "priority"),
        (lambda llm: llm.generate({"text": "x"}), RequestError, "prompt"),
        (lambda llm: llm.generate("x", SamplingParams(stop_token_ids=[10**6])), RequestError,
         "stop_token_ids"),
        (lambda llm: llm.chat([]), RequestError, "messages"),
        (lambda llm: llm.chat([MESSAGE], continue_final_message=True), RequestError,
         "continue_final_message"),
        (lambda llm: llm.encode("x", PoolingParams(classify=True)), RequestError, "model"),
        (lambda llm: llm.encode("x", pooling_task="token_embed"), ConfigError, None),
        (lambda llm: llm.generate("x", lora_request=LoRARequest("a", 1, "/x")), ConfigError, None),
        (lambda llm: llm.generate("x", trace_headers={"a": "b"}), ConfigError, None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_before_anything_runs(
    llm: AsyncLLM, call: Any, error: type[Exception], field: str | None
) -> None:
    async def main() -> None:
        with pytest.raises(error) as caught:
            await last(call(llm))
        assert getattr(caught.value, "field", None) == field
        await idle(llm)

    asyncio.run(main())
    assert llm.is_running


def test_a_request_that_is_left_or_aborted_frees_its_blocks(llm: AsyncLLM) -> None:
    long = SamplingParams(max_tokens=1500, ignore_eos=True, seed=1)

    async def main() -> None:
        outputs = llm.generate("A list is", long)
        async for _ in outputs:
            break
        del outputs, _
        gc.collect()
        await idle(llm)
        task = asyncio.create_task(last(llm.generate("A list is", long, "mine")))
        while not llm.engine.has_work:
            await asyncio.sleep(0.001)
        await llm.abort("mine")
        with pytest.raises(RequestAbortedError):
            await task
        await idle(llm)

    asyncio.run(main())


def test_what_a_failed_step_costs_is_raised_by_its_iterator(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("the device is gone")

    async def main() -> None:
        with monkeypatch.context() as broken:
            broken.setattr(llm.engine.executor.worker, "compute", fail)
            with pytest.raises(EngineError, match="the step that computed this request failed"):
                await last(llm.generate("A list is", GREEDY))
        assert (await last(llm.generate("A list is", GREEDY))).finished

    asyncio.run(main())


def test_figures_and_the_cache(llm: AsyncLLM) -> None:
    async def main() -> None:
        long = "A list is a sequence. " * 8
        await last(llm.generate(long, GREEDY))
        assert (await last(llm.generate(long, GREEDY))).num_cached_tokens > 0
        assert await llm.reset_prefix_cache()
        assert (await last(llm.generate(long, GREEDY))).num_cached_tokens == 0
        steps = next(m for m in await llm.get_metrics() if m.name == "quire:num_steps")
        assert getattr(steps, "value") > 3  # noqa: B009  # of a counter
        assert (await llm.get_tokenizer())("a").input_ids

    asyncio.run(main())


def test_requests_bring_their_adapters(tmp_path: Path) -> None:
    paths = [
        str(save_adapter(tmp_path / name, DEMO_MODEL, seed)) for seed, name in ((1, "a"), (2, "b"))
    ]
    adapters = [LoRARequest(Path(path).name, 1, path) for path in paths]
    options: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "kv_cache_memory_bytes": "8MiB"}
    with LLM(**options) as sync:
        expected = sync.generate(["A list is"] * 2, GREEDY, False, lora_request=adapters)

    async def main() -> list[RequestOutput]:
        async with AsyncLLM(**options) as llm:
            calls = (last(llm.generate("A list is", GREEDY, lora_request=one)) for one in adapters)
            found = list(await asyncio.gather(*calls))
            with pytest.raises(ModelError):
                await last(llm.generate("x", lora_request=LoRARequest("c", 1, str(tmp_path))))
            assert llm.is_running
        assert not llm.is_running
        return found

    found = asyncio.run(main())
    assert list(map(facts, found)) == list(map(facts, expected))
    assert facts(found[0]) != facts(found[1])


def test_any_number_may_wait_unless_a_limit_is_given(llm: AsyncLLM) -> None:
    async def main(llm: AsyncLLM) -> list[Any]:
        params = SamplingParams(max_tokens=4, ignore_eos=True, seed=1)
        calls = (last(llm.generate(f"{i} is", params)) for i in range(40))
        return await asyncio.gather(*calls, return_exceptions=True)

    room = llm.engine.waiting_room
    assert (room.limit, room.max_tokens) == (None, None)
    assert all(one.finished for one in asyncio.run(main(llm)))
    limited = AsyncLLM(kv_cache_memory_bytes="4MiB", max_num_waiting=2, max_num_seqs=1)
    ended = asyncio.run(main(limited))
    limited.close()
    assert {type(one) for one in ended} == {RequestOutput, QueueFullError}


def test_one_that_is_forgotten_ends() -> None:
    llm = AsyncLLM(kv_cache_memory_bytes="4MiB")
    assert asyncio.run(last(llm.generate("A list is", GREEDY))).finished
    loop = llm._loop
    del llm
    gc.collect()
    loop._thread.join(60)
    assert not loop._thread.is_alive() and not loop.engine.at_work


_PROGRAM = """
import asyncio
from quire import AsyncLLM, SamplingParams

async def main(llm):
    async for output in llm.generate("A list is", SamplingParams(max_tokens=200, seed=1)):
        print(len(output.outputs), flush=True)
        return

async def whole():
    async with AsyncLLM(kv_cache_memory_bytes="4MiB") as llm:
        await main(llm)

"""


@pytest.mark.parametrize(
    "run",
    [
        "asyncio.run(whole())",
        'llm = AsyncLLM(kv_cache_memory_bytes="4MiB"); asyncio.run(main(llm))',
    ],
    ids=["closed", "forgotten"],
)
def test_a_program_ends_whether_it_closes_it_or_not(run: str) -> None:
    program = _PROGRAM + run
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
