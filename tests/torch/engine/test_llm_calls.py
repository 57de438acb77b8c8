"""``LLM`` as scripts written for vLLM call it: threads, forks, what fails, names and defaults."""

from __future__ import annotations

import math
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, BeamSearchParams, LoRARequest, PoolingParams, SamplingParams
from quire.core.errors import ConfigError, EngineError, RequestError
from quire.models.demo import DEMO_MODEL
from support.lora import save_adapter

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPTS = ["A list is", "To open a file", "A dictionary", "Use print to"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(kv_cache_memory_bytes="16MiB")


def texts(llm: LLM, prompts: Any, params: Any = GREEDY, **options: Any) -> list[str]:
    return [o.outputs[0].text for o in llm.generate(prompts, params, use_tqdm=False, **options)]


@pytest.mark.parametrize("count", [2, 4])
def test_threads_get_what_as_many_calls_get(llm: LLM, count: int) -> None:
    prompts = [[f"{prompt} {i}" for prompt in PROMPTS] for i in range(count)]
    expected = [texts(llm, some) for some in prompts]
    found: dict[int, list[list[str]]] = {}
    together = threading.Barrier(count)

    def ask(number: int) -> None:
        together.wait()
        found[number] = [texts(llm, prompts[number]) for _ in range(3)]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert found == {i: [expected[i]] * 3 for i in range(count)}


def test_a_stream_and_a_session_go_on_while_others_generate(llm: LLM) -> None:
    (expected,) = texts(llm, PROMPTS[0])
    deltas = llm.stream(PROMPTS[0], GREEDY)
    text = next(deltas).text
    with llm.open_session() as session:
        session.append(PROMPTS[0])
        done: list[str] = []
        thread = threading.Thread(target=lambda: done.extend(texts(llm, PROMPTS)))
        thread.start()
        assert session.generate(GREEDY).outputs[0].text == expected
        thread.join(120)
    assert text + "".join(delta.text for delta in deltas) == expected == done[0]


def _in_child(llm: LLM, told: Any) -> None:
    for act in (lambda: texts(llm, "x"), lambda: llm.open_session(), lambda: llm.get_metrics()):
        try:
            act()
        except EngineError as error:
            told.send(str(error))
    llm.close()
    told.close()


def test_a_forked_process_is_told_so(llm: LLM) -> None:
    texts(llm, PROMPTS)  # its threads are there
    context = multiprocessing.get_context("fork")
    heard, told = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(llm, told))
    child.start()
    told.close()
    for _ in range(3):
        assert heard.poll(60)
        assert "this process was forked" in heard.recv()
    child.join(60)
    assert child.exitcode == 0
    assert texts(llm, PROMPTS[0])


def test_with_closes_it() -> None:
    with LLM(kv_cache_memory_bytes="4MiB") as llm:
        assert texts(llm, PROMPTS[0])
        deltas = llm.stream(PROMPTS[0], GREEDY)
        next(deltas)
    llm.close()  # again
    for act in (lambda: texts(llm, PROMPTS[0]), lambda: llm.reset_prefix_cache()):
        with pytest.raises(EngineError, match="has been closed"):
            act()


@pytest.mark.parametrize(("act", "message"), [
    (lambda llm: llm.generate(["a", "b", [10**6]], GREEDY), r"prompts\[2\]: .*vocabulary"),
    (lambda llm: llm.generate(["a", ""], GREEDY), r"prompts\[1\]: prompt must not be empty"),
    (lambda llm: llm.generate(["a", {"text": "b"}], GREEDY), r"prompts\[1\]: .*given as a dict"),
    (lambda llm: llm.generate(["a", "b"], [GREEDY, SamplingParams(stop_token_ids=[10**7])]),
     r"sampling_params\[1\]: stop_token_ids"),
    (lambda llm: llm.generate(["a", "b"], [GREEDY, SamplingParams(n=200)]), r"prompts\[1\]: n, "),
    (lambda llm: llm.generate(["a", [5] * 2999], GREEDY), r"prompts\[1\]: This model.s maximum"),
    (lambda llm: llm.embed(["a", ""]), r"prompts\[1\]: "),
    (lambda llm: llm.chat([[{"role": "user", "content": "a"}], []]), r"messages\[1\]: "),
    (lambda llm: llm.generate([""], GREEDY), r"^prompt must not be empty"),
])  # fmt: skip
def test_a_bad_one_among_many_is_named(llm: LLM, act: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        act(llm)
    assert not llm.engine.has_work


def test_one_that_fails_while_it_runs_costs_no_other_its_answer(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, logits = texts(llm, PROMPTS), llm.engine.executor.worker.model.logits
    broken = {"left": 1}

    def with_nan(states: torch.Tensor) -> torch.Tensor:
        found = logits(states)
        if broken["left"] and len(found) == len(PROMPTS):
            broken["left"] -= 1
            found[2] = math.nan
        return found

    monkeypatch.setattr(llm.engine.executor.worker.model, "logits", with_nan)
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=1)
    done = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [o.outputs[0].finish_reason == "error" for o in done] == [False, False, True, False]
    assert [o.outputs[0].text for o in done if not o.error] == [*expected[:2], expected[3]]
    assert done[2].error and "1 of 4 requests failed" in caplog.text


def test_vectors_that_failed_are_not_given_as_empty_ones(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.embed(PROMPTS, use_tqdm=False)
    engine, update = llm.engine, llm.engine._update

    def lose_one(step: Any, result: Any) -> Any:
        first = step.chunks[0].seq_id
        result.outcomes[first] = result.outcomes[first]._replace(failure="not numbers", vector=None)
        monkeypatch.setattr(engine, "_update", update)
        return update(step, result)

    monkeypatch.setattr(engine, "_update", lose_one)
    found = llm.embed(PROMPTS, use_tqdm=False)
    failed = [one for one in found if one.error]
    assert len(failed) == 1
    with pytest.raises(EngineError, match="not numbers"):
        failed[0].outputs  # noqa: B018
    for one, other in zip(found, expected, strict=True):
        assert one.error or one.outputs == other.outputs


def test_where_all_fail_the_error_is_raised(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise ValueError

    monkeypatch.setattr(llm.engine.executor.worker, "compute", fail)
    with pytest.raises(EngineError):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    monkeypatch.undo()
    assert texts(llm, PROMPTS[0])


def test_more_tokens_than_there_is_room_for_are_fewer(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    small = LLM(kv_cache_memory_bytes="4MiB", max_model_len=32)
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    done = small.generate(["A list is", [5] * 20], params, use_tqdm=False)
    assert [len(o.prompt_token_ids) + len(o.outputs[0].token_ids) for o in done] == [32, 32]
    assert {o.outputs[0].finish_reason for o in done} == {"length"}
    assert "after 2 of 2 prompts, and lowered there: from 100 to" in caplog.text
    caplog.clear()
    texts(small, PROMPTS)
    assert "lowered" not in caplog.text


def test_outputs_without_a_limit_are_what_the_pool_can_hold() -> None:
    llm = LLM(kv_cache_memory_bytes="64KiB", block_size=4)
    limits = llm.capacity.limits
    for n in (2, 3, 4):
        params = SamplingParams(n=n, max_tokens=None, ignore_eos=True)
        (done,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        lengths = {len(output.token_ids) for output in done.outputs}
        assert len(lengths) == 1
        length = lengths.pop()
        with pytest.raises(RequestError, match="can never fit"):
            llm.generate([[5, 6, 7]], SamplingParams(n=n, max_tokens=length + 4), use_tqdm=False)
        assert 1 <= length < limits.max_model_len
    with pytest.raises(RequestError, match="can never fit"):
        llm.generate([[5, 6, 7]], SamplingParams(n=60, max_tokens=None), use_tqdm=False)


# -- what scripts written for vLLM carry -------------------------------------------------------


def test_every_default_of_vllm_is_accepted() -> None:
    llm = LLM(
        kv_cache_memory_bytes="4MiB",
        **dict.fromkeys(("block_size", "max_num_seqs", "quantization", "hf_overrides")),
        **dict.fromkeys(("seed", "compilation_config", "mm_processor_kwargs", "hf_token")),
        **dict.fromkeys(("trust_remote_code", "enforce_eager", "skip_tokenizer_init"), False),
        **dict.fromkeys(("load_format", "tokenizer_mode", "runner", "convert", "dtype"), "auto"),
        enable_chunked_prefill=True,
        max_model_len=-1,
        cpu_offload_gb=0,
        pipeline_parallel_size=1,
        disable_log_stats=True,
        limit_mm_per_prompt={"image": 0},
        max_logprobs=20,
        allowed_local_media_path="",
    )
    assert llm.config.block_size == 16
    params = SamplingParams(
        **dict.fromkeys(("stop", "stop_token_ids", "bad_words", "logits_processors")),
        **dict.fromkeys(("seed", "logit_bias", "allowed_token_ids", "extra_args")),
        **dict.fromkeys(("truncate_prompt_tokens", "structured_outputs", "logprobs")),
        spaces_between_special_tokens=True,
    )
    assert params == SamplingParams() == params.clone()
    message = [{"role": "user", "content": "Hi"}]
    nothing = {"tokenization_kwargs": None, "mm_processor_kwargs": None}
    llm.generate(PROMPTS[0], None, use_tqdm=False, lora_request=None, priority=None, **nothing)
    llm.chat(message, None, False, None, chat_template=None, tools=None,
             chat_template_kwargs=None, chat_template_content_format="auto", **nothing)  # fmt: skip


@pytest.mark.parametrize(("options", "message"), [
    ({"enable_chunked_prefill": False}, "enable_chunked_prefill may only be True"),
    ({"load_format": "dummy"}, "load_format may only be auto or safetensors or gguf"),
    ({"pipeline_parallel_size": 2}, "pipeline_parallel_size may only be 1"),
    ({"skip_tokenizer_init": True}, "skip_tokenizer_init may only be False"),
    ({"limit_mm_per_prompt": {"image": 2}}, "models read text only"),
    ({"cpu_offload_gb": 4}, "cpu_offload_gb may only be 0"),
    ({"logits_processors": ["x"]}, "logits_processors may only be left out"),
    ({"max_model_length": 5}, "did you mean max_model_len"),
])  # fmt: skip
def test_what_would_do_something_is_refused_and_told_why(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(**options)


def test_the_methods_of_vllm(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    (done,) = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    assert tokenizer.encode(PROMPTS[0]) == tokenizer(PROMPTS[0])["input_ids"]
    assert tokenizer.encode(PROMPTS[0]) == done.prompt_token_ids
    assert tokenizer.decode(done.outputs[0].token_ids) == done.outputs[0].text
    message = [{"role": "user", "content": "Hi"}]
    (chat,) = llm.chat(message, GREEDY, use_tqdm=False)
    rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(rendered, add_special_tokens=False) == chat.prompt_token_ids
    assert llm.get_default_sampling_params() == llm.default_sampling_params()
    long = "A list is " * 20
    assert llm.reset_prefix_cache() is True
    first, second = (llm.generate(long, GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert first.num_cached_tokens == 0 < second.num_cached_tokens
    assert llm.reset_prefix_cache()
    assert llm.generate(long, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
    metrics = {one.name: one for one in llm.get_metrics()}
    assert metrics["quire:prefix_cache_hits"].value >= second.num_cached_tokens
    assert metrics["quire:num_requests_running"].value == 0


def test_beam_search_is_vllm_s(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=6)
    (found,) = llm.beam_search([{"prompt": PROMPTS[0]}], params)
    (same,) = llm.generate(PROMPTS[0], params.as_sampling(), use_tqdm=False)
    assert [one.tokens for one in found.sequences] == [
        [*same.prompt_token_ids, *output.token_ids] for output in same.outputs
    ]
    assert found.sequences[0].text == PROMPTS[0] + same.outputs[0].text
    assert found.sequences[0].cum_logprob >= found.sequences[1].cum_logprob


def test_encode_gives_the_vectors_of_embed(llm: LLM) -> None:
    one, other = llm.encode(PROMPTS, use_tqdm=False), llm.embed(PROMPTS, use_tqdm=False)
    for mine, theirs in zip(one, other, strict=True):
        assert mine.outputs.data.tolist() == pytest.approx(theirs.outputs.embedding)
    with pytest.raises(ConfigError, match="pooling_task may be embed or classify"):
        llm.encode(PROMPTS, pooling_task="token_embed", use_tqdm=False)
    with pytest.raises(RequestError, match="no head that classifies"):
        llm.classify(PROMPTS, use_tqdm=False)
    params = [PoolingParams(normalize=flag) for flag in (True, False)]
    normal, raw = llm.embed(PROMPTS[:2], params, use_tqdm=False)
    assert math.hypot(*normal.outputs.embedding) == pytest.approx(1.0, abs=1e-3)
    assert math.hypot(*raw.outputs.embedding) != pytest.approx(1.0, abs=1e-3)


def test_name_id_path_and_content_of_an_adapter(tmp_path: Path) -> None:
    paths = [save_adapter(tmp_path / name, DEMO_MODEL, seed) for seed, name in enumerate("abc", 1)]
    first, second, third = map(str, paths)
    options = {"enable_lora": True, "max_loras": 2, "kv_cache_memory_bytes": "8MiB"}
    alone = {}
    for path in (first, second, third):
        with LLM(**options) as llm:
            alone[path] = texts(llm, PROMPTS, lora_request=LoRARequest("alone", 1, path))
    assert len({tuple(found) for found in alone.values()}) == 3
    with LLM(**options) as llm:

        def policy(version: int, path: str, **more: Any) -> list[str]:
            return texts(llm, PROMPTS, lora_request=LoRARequest("policy", version, path, **more))

        assert policy(1, first) == alone[first]
        assert policy(2, second) == alone[second], "another id, another path"
        assert policy(2, first) == alone[first], "another path"
        assert policy(2, str(tmp_path / "b" / ".." / "a")) == alone[first], "the same one"
        for file in paths[2].iterdir():
            (paths[0] / file.name).write_bytes(file.read_bytes())
        assert policy(2, first) == alone[first], "what is in memory is known by name, id and path"
        assert policy(3, first) == alone[third], "another id: what is there by now"
        for file in paths[1].iterdir():
            (paths[0] / file.name).write_bytes(file.read_bytes())
        assert policy(3, first, load_inplace=True) == alone[second]
        with llm.open_session(lora_request=LoRARequest("policy", 4, third)) as session:
            session.append(PROMPTS[0])
            assert session.generate(GREEDY).outputs[0].text == alone[third][0]
