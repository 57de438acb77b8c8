"""Prompts of vectors: what transformers computes of ``inputs_embeds``, and the bits of ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire import LLM, SamplingParams
from quire.blocks.events.events import BlockEvents, BlocksRemoved, BlocksStored
from quire.capabilities.speculation.plan import Guess
from quire.capabilities.speculation.speculation import Speculation
from quire.core.errors import RequestError
from quire.core.protocol import RecoveryCosts, Request
from quire.core.scheduling.sequence import Sequence
from quire.engine.outputs import RequestOutput
from quire.engine.recorder import RequestRecorder
from support.draft_lives import drafted
from support.hf_reference import hf_model, random_prompts
from support.small_models import make_model

ModelDir = Callable[[str], Path]
Told = list[tuple[int, float]]

SETTINGS: dict[str, Any] = {"block_size": 4, "max_model_len": 128, "threads": 1}
ASK = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
SAMPLE = SamplingParams(temperature=1.0, seed=7, n=3, max_tokens=12, ignore_eos=True, logprobs=1)


def told(output: RequestOutput) -> list[Told]:
    """Tokens and log-probabilities of each output."""
    assert output.error is None
    return [
        [(token, of[token].logprob) for token, of in zip(one.token_ids, one.logprobs, strict=True)]
        for one in output.outputs
        if one.logprobs is not None
    ]


def generate(llm: LLM, prompts: list[Any], params: Any = ASK) -> list[list[Told]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    return [told(output) for output in outputs]


def embeds(*vectors: Tensor) -> list[dict[str, Tensor]]:
    return [{"prompt_embeds": one} for one in vectors]


def rows(directory: Path, prompt: list[int]) -> Tensor:
    """What transformers takes for the prompt's ``inputs_embeds``."""
    with torch.inference_mode():
        table = hf_model(directory).get_input_embeddings()
        found: Tensor = table(torch.tensor(prompt))
    return found.clone()


def noise(length: int, seed: int = 0, scale: float = 0.2) -> Tensor:
    return torch.randn(length, 64, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("family", ["llama", "gemma", "gemma3", "qwen3", "granite", "opt"])
def test_it_computes_what_transformers_does(family: str, model_dir: ModelDir) -> None:
    """Of vectors that are no token's, on whichever side of an embedding's scale they come in."""
    directory = model_dir(family)
    own = rows(directory, random_prompts(19)[0])
    given = own + noise(*own.shape[:1], scale=float(own.std()))[:, : own.shape[1]]
    more = {"max_num_batched_tokens": 7, "enable_prompt_embeds": True}  # as vLLM has it
    llm = LLM(directory, dtype="float32", **SETTINGS, **more)
    [[found]] = generate(llm, embeds(given))
    model, expected, known = hf_model(directory), [], given
    with torch.inference_mode():
        for token, _ in found:
            logits = model(inputs_embeds=known[None], use_cache=False).logits[0, -1]
            expected.append((int(logits.argmax()), float(logits.log_softmax(-1)[token])))
            row = model.get_input_embeddings()(torch.tensor([token]))
            known = torch.cat((known, row))
    assert [token for token, _ in found] == [token for token, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=2e-4)


def test_repetition_is_of_what_was_written_as_in_transformers(model_dir: ModelDir) -> None:
    """Not of the id 0, which stands where the vectors are."""
    given = noise(9, seed=2)
    params = replace(ASK, repetition_penalty=3.0)
    [[found]] = generate(
        LLM(model_dir("llama"), dtype="float32", **SETTINGS), embeds(given), params
    )
    model, known, written = hf_model(model_dir("llama")), given, list[int]()
    with torch.inference_mode():
        for _ in found:
            logits = model(inputs_embeds=known[None], use_cache=False).logits[0, -1]
            for token in set(written):
                logits[token] *= 3.0 if logits[token] < 0 else 1 / 3.0
            written.append(int(logits.argmax()))
            known = torch.cat((known, model.get_input_embeddings()(torch.tensor(written[-1:]))))
    assert [token for token, _ in found] == written


def test_none_is_nothing_given(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), **SETTINGS)
    ids = random_prompts(5)[0]
    both = [{"prompt_token_ids": ids, "prompt_embeds": None}, {"prompt_token_ids": ids}]
    found, expected = generate(llm, both)
    assert found == expected


@pytest.mark.parametrize("family", ["llama", "gemma", "granite"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_the_table_give_the_bits_of_ids(
    family: str, dtype: str, model_dir: ModelDir
) -> None:
    directory, prompts = model_dir(family), random_prompts(1, 9, 20, 41)
    table = hf_model(directory, getattr(torch, dtype)).get_input_embeddings()
    with torch.inference_mode():
        given = [table(torch.tensor(prompt)).clone() for prompt in prompts]
    llm = LLM(directory, dtype=dtype, **SETTINGS)
    for params in (
        ASK,
        SAMPLE,
        SamplingParams(temperature=0, max_tokens=8, logprobs=1, presence_penalty=0.7),
    ):
        assert generate(llm, embeds(*given), params) == generate(llm, [*prompts], params)


def test_bits_depend_on_no_memory(model_dir: ModelDir) -> None:
    """Chunks, prefix hits, company of ids, and preemption by both ways, in the midst of outputs."""
    directory = model_dir("llama")
    mixed = [*embeds(noise(33), noise(21, 1), noise(30, 2)), *random_prompts(17, 25)]
    roomy = LLM(directory, **SETTINGS)
    for params in (replace(ASK, max_tokens=22), SAMPLE):
        expected = [generate(LLM(directory, **SETTINGS), [one], params)[0] for one in mixed]
        assert generate(roomy, mixed, params) == expected
        assert generate(roomy, mixed, params) == expected, "found again"
        chunked = LLM(directory, **SETTINGS, max_num_batched_tokens=5)
        assert generate(chunked, mixed, params) == expected, "in chunks"
        for mode in ("recompute", "swap"):
            tight = LLM(
                directory,
                **{**SETTINGS, "max_model_len": 64},
                kv_cache_memory_bytes=76 * roomy.capacity.kv_bytes_per_token,
                swap_space=0.01 if mode == "swap" else 0,
                preemption_mode=mode,
            )
            outputs = tight.generate(mixed, params, use_tqdm=False)
            assert [told(output) for output in outputs] == expected, mode
            assert sum(output.metrics.num_preemptions for output in outputs) > 0


def test_what_is_found_is_what_was_given(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), **SETTINGS)

    def cached(prompt: Any) -> int:
        (output,) = llm.generate([prompt], ASK, use_tqdm=False)
        return output.metrics.cached_tokens

    given = noise(22)
    assert cached({"prompt_embeds": given}) == 0
    assert cached({"prompt_embeds": given.clone()}) == 20
    assert cached([0] * 22) == 0, "ids in the places of vectors"
    late = given.clone()
    late[13, 5] = torch.nextafter(late[13, 5], torch.tensor(torch.inf))  # one bit
    assert cached({"prompt_embeds": late}) == 12
    assert cached({"prompt_embeds": noise(22, 1)}) == 0, "of the same length"
    assert cached({"prompt_embeds": given, "cache_salt": "other"}) == 0
    assert cached({"prompt_embeds": given.to(torch.float64)}) == 20, "once it is cast"


def test_beams_are_those_of_ids(model_dir: ModelDir) -> None:
    directory, prompts = model_dir("llama"), random_prompts(9, 14)
    llm = LLM(directory, dtype="float32", **SETTINGS)
    params = SamplingParams(use_beam_search=True, n=3, best_of=3, temperature=0, max_tokens=8)
    given = embeds(*(rows(directory, prompt) for prompt in prompts))

    def beams(found: list[Any]) -> Any:
        outputs = llm.generate(found, params, use_tqdm=False)
        return [[one.token_ids for one in output.outputs] for output in outputs]

    assert beams(given) == beams([*prompts])


def test_the_caller_may_change_its_tensor(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), **SETTINGS)
    given = noise(9).requires_grad_()
    [expected] = generate(llm, embeds(given))
    inputs = llm.engine.input_processor
    prepared = inputs.prepare("1", embeds(given)[0], inputs.prepare_params(ASK), 0.0)
    with torch.no_grad():
        given.zero_()
    (span,) = prepared.request.spans
    assert isinstance(span.vectors, Tensor) and span.vectors.any(1).all()
    assert generate(llm, embeds(noise(9))) == [expected]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([[0.0] * 64], "must be a torch.Tensor, got list"),
        (torch.zeros(3, 63), r"must have the shape \[tokens, 64\].*got \[3, 63\]"),
        (torch.zeros(1, 3, 64), r"got \[1, 3, 64\]"),
        (torch.zeros(64), r"got \[64\]"),
        (torch.zeros(0, 64), "at least one token"),
        (torch.zeros(3, 64, dtype=torch.int64), "floating point, got torch.int64"),
        (torch.zeros(3, 64).to_sparse(), "must be a dense tensor"),
        (torch.zeros(3, 64, device="meta"), "must be a dense tensor"),
        (torch.full((3, 64), torch.nan), "finite"),
        (torch.full((3, 64), 1e300, dtype=torch.float64), "finite"),
        (torch.zeros(200, 64), "200 tokens"),
    ],
)
def test_what_is_no_prompt_is_refused(given: Any, why: str, model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), **SETTINGS)
    with pytest.raises(RequestError, match=why) as refused:
        llm.generate([{"prompt_embeds": given}], ASK, use_tqdm=False)
    assert refused.value.field == "prompt_embeds"


@pytest.mark.parametrize(
    ("field", "options", "params"),
    [
        ("prompt_logprobs", {}, {"prompt_logprobs": 1}),
        ("bad_words", {}, {"bad_words": ["a"]}),
        ("prediction", {}, {"prediction": "a b"}),
        ("remote_prefill", {"remote_prefill": ("127.0.0.1", 1)}, {}),
        ("prompt", {"prompt": "a"}, {}),
    ],
)
def test_what_reads_tokens_is_refused(
    field: str, options: dict[str, Any], params: dict[str, Any], model_dir: ModelDir
) -> None:
    llm = LLM(model_dir("llama"), **SETTINGS)
    prompt = {"prompt_embeds": noise(3), **options}
    with pytest.raises(RequestError) as refused:
        llm.generate([prompt], SamplingParams(max_tokens=3, **params), use_tqdm=False)
    assert refused.value.field == field


def test_no_vector_is_made_of_vectors(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), **SETTINGS)
    with pytest.raises(RequestError, match="prompt_embeds have no tokens"):
        llm.embed([{"prompt_embeds": noise(3)}], use_tqdm=False)
    with pytest.raises(RequestError):
        llm.open_session().append({"prompt_embeds": noise(3)})  # type: ignore[arg-type]


def test_models_whose_layers_read_ids_take_none(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("gemma3n"), **SETTINGS)
    with pytest.raises(RequestError, match="takes no prompt_embeds"):
        llm.generate(embeds(noise(3)), ASK, use_tqdm=False)


def test_a_draft_model_would_read_ids(model_dir: ModelDir, tmp_path: Path) -> None:
    small = make_model("llama", tmp_path / "small", num_hidden_layers=1)
    llm = LLM(model_dir("llama"), **SETTINGS, **drafted(small))
    with pytest.raises(RequestError, match="no draft model"):
        llm.generate(embeds(noise(3)), ASK, use_tqdm=False)


def test_nobody_drafts_from_what_has_no_tokens(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, guess = list[Request](), Speculation._guess

    def watched(self: Speculation, request: Request, sequence: Sequence) -> Guess | None:
        asked.append(request)
        return guess(self, request, sequence)

    monkeypatch.setattr(Speculation, "_guess", watched)
    directory, params = model_dir("llama"), replace(ASK, max_tokens=60)
    prompts = [*embeds(noise(30)), random_prompts(30)[0]]
    plain = generate(LLM(directory, **SETTINGS), prompts, params)
    llm = LLM(directory, **SETTINGS, speculative_config={"method": "ngram"})
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [told(output) for output in outputs] == plain
    assert asked and not any(request.spans for request in asked)
    assert outputs[0].prompt_token_ids == [] and outputs[0].metrics.num_prompt_tokens == 30


def test_a_store_keeps_none(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecoveryCosts, "fetching_pays", lambda *_: True)
    directory, given = model_dir("llama"), embeds(noise(30))
    settings = {**SETTINGS, "kv_store": str(tmp_path), "kv_store_size": 0.01}
    with LLM(directory, **settings) as llm:
        expected = generate(llm, given)
        assert generate(llm, given) == expected
    with LLM(directory, **settings) as llm:
        (output,) = llm.generate(given, ASK, use_tqdm=False)
        assert output.metrics.cached_tokens == 0
        assert [told(output)] == expected


def test_subscribers_are_not_told(model_dir: ModelDir) -> None:
    """Of blocks whose tokens are none: neither that they are there, nor that they have gone."""
    llm = LLM(
        model_dir("llama"), **{**SETTINGS, "max_model_len": 64}, kv_cache_memory_bytes=1 << 16
    )
    events = BlockEvents.of(llm.engine.scheduler)
    assert events is not None
    found, gone = set[bytes](), set[bytes]()
    for seed in range(8):
        generate(llm, [*embeds(noise(22, seed)), [seed + 3] * 22])
        for event in events.take():
            if isinstance(event, BlocksStored):
                assert 0 not in event.token_ids
                found.update(event.names)
            elif isinstance(event, BlocksRemoved):
                gone.update(event.names)
    assert gone and gone <= found


def test_a_trace_tells_vectors_apart(model_dir: ModelDir, tmp_path: Path) -> None:
    recorder = RequestRecorder(tmp_path / "trace", 4, 0.0)
    llm = LLM(model_dir("llama"), **SETTINGS)
    llm.engine.events.add(recorder)
    for one in (*embeds(noise(22), noise(22), noise(22, 1)), [0] * 22):
        llm.generate([one], ASK, use_tqdm=False)
    recorder.close()
    lines = (tmp_path / "trace").read_text(encoding="utf-8").splitlines()
    names = [json.loads(line)["hash_ids"][:5] for line in lines if "hash_ids" in line]
    assert names[0] == names[1] and len({*map(tuple, names)}) == 3
    assert not {*names[0]} & {*names[2], *names[3]}


def test_a_miss_says_nothing(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), **SETTINGS)
    for seed in range(2):
        (output,) = llm.generate(embeds(noise(22, seed)), ASK, use_tqdm=False)
        assert output.metrics.miss is None
