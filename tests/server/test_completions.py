"""POST /v1/completions, through OpenAI's own client and by hand."""

from __future__ import annotations

import asyncio

import pytest
from openai import AsyncOpenAI

from support.live_server import MODEL, LiveServer, events

PROMPT = "The town by the river"


def test_a_stream_says_what_the_whole_answer_says(shared: LiveServer) -> None:
    ask = {"model": MODEL, "prompt": PROMPT, "max_tokens": 20, "seed": 7}
    whole = shared.openai.completions.create(**ask)
    chunks = list(shared.openai.completions.create(**ask, stream=True))
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")
    assert whole.choices[0].text and whole.choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert len(chunks) == 20, "not a stream, or not of tokens"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 19 + ["length"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage(shared: LiveServer) -> None:
    usage = shared.complete(prompt=[5, 6, 7], max_tokens=4).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 4, 7)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    prompt = list(range(100, 141))
    shared.complete(prompt=prompt, max_tokens=1)
    again = shared.complete(prompt=prompt, max_tokens=1).json()["usage"]
    assert again["prompt_tokens_details"] == {"cached_tokens": 40}  # 10 blocks of 4


def test_a_stream_reports_usage_in_one_last_chunk(shared: LiveServer) -> None:
    options = {"include_usage": True}
    stream = shared.complete(prompt=[5, 6], max_tokens=3, stream=True, stream_options=options)
    *chunks, last = events(stream)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert [chunk["usage"] for chunk in chunks] == [None] * 3
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 5
    plain = shared.complete(prompt=[5, 6], max_tokens=3, stream=True)
    assert all("usage" not in chunk for chunk in events(plain))


def test_max_tokens_is_16_unless_given(shared: LiveServer) -> None:
    assert shared.complete(prompt="Once").json()["usage"]["completion_tokens"] == 16


def test_prompts_of_every_form_mean_the_same(shared: LiveServer) -> None:
    ids = shared.tokenizer.encode(PROMPT)
    forms = [PROMPT, ids, [PROMPT], [ids]]
    answers = [shared.complete(prompt=form, seed=3).json()["choices"][0] for form in forms]
    assert all(answer == answers[0] for answer in answers)


def test_choices_are_numbered_over_prompts_and_samples(shared: LiveServer) -> None:
    prompts = [PROMPT, "Another day", "A third one"]
    ask = {"n": 2, "seed": 1, "max_tokens": 6}
    alone = [shared.complete(prompt=prompt, **ask).json()["choices"] for prompt in prompts]
    expected = [choice["text"] for choices in alone for choice in choices]
    assert len(set(expected)) == 6, "the fake model should tell these apart"
    together = shared.complete(prompt=prompts, **ask).json()
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in together["choices"]] == expected
    assert together["usage"]["completion_tokens"] == 36
    texts = [""] * 6
    for chunk in events(shared.complete(prompt=prompts, stream=True, **ask)):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == expected


def test_concurrent_clients_get_what_they_get_alone(shared: LiveServer) -> None:
    prompts = [f"{PROMPT} number {number}" for number in range(12)]

    async def ask_all() -> list[str]:
        async with AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    async def ask(client: AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=15, seed=5, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    alone = [
        shared.complete(prompt=prompt, max_tokens=15, seed=5).json()["choices"][0]["text"]
        for prompt in prompts
    ]
    assert asyncio.run(ask_all()) == alone
    assert len(set(alone)) == len(prompts)


def test_a_stop_string_across_tokens_is_never_shown(server: LiveServer) -> None:
    server.script("One day the fox said hello, and then it went home.")
    for stop in ("x sa", ["zzz", "x sa"]):
        whole = server.complete(prompt=PROMPT, max_tokens=50, stop=stop).json()["choices"][0]
        assert whole["text"] == "One day the fo"
        assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", "x sa")
        stream = events(server.complete(prompt=PROMPT, max_tokens=50, stop=stop, stream=True))
        assert "".join(chunk["choices"][0]["text"] for chunk in stream) == "One day the fo"
        assert stream[-1]["choices"][0]["finish_reason"] == "stop"
    kept = server.complete(
        prompt=PROMPT, max_tokens=50, stop="x sa", include_stop_str_in_output=True
    )
    assert kept.json()["choices"][0]["text"] == "One day the fox sa"


def test_end_of_sequence_and_stop_tokens(server: LiveServer) -> None:
    text = "A short tale."
    tokens = server.script(text)
    ended = server.complete(prompt=PROMPT, max_tokens=50).json()
    assert ended["choices"][0]["text"] == text
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] == len(tokens) + 1
    stopped = server.complete(prompt=PROMPT, stop_token_ids=[tokens[1]]).json()["choices"][0]
    assert stopped["stop_reason"] == tokens[1]


def test_logprobs(server: LiveServer) -> None:
    tokens = server.script("A short tale about logs.")
    pieces = [server.tokenizer.decode([token]) for token in tokens]
    ask = {"prompt": PROMPT, "max_tokens": len(tokens), "logprobs": 2}
    choice = server.complete(**ask).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == pieces
    assert logprobs["token_logprobs"] == [-3.0] * len(tokens)
    for piece, top in zip(pieces, logprobs["top_logprobs"], strict=True):
        assert sorted(top.values()) == [-3.0, -2.0, -1.0] and top[piece] == -3.0
    for piece, offset in zip(pieces, logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(piece)
    streamed: dict[str, list[object]] = {name: [] for name in logprobs}
    for chunk in events(server.complete(**ask, stream=True)):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[name] += values
    assert streamed == logprobs
    assert server.complete(prompt=PROMPT).json()["choices"][0]["logprobs"] is None


def test_prompt_logprobs(shared: LiveServer) -> None:
    ids = shared.tokenizer.encode(PROMPT)
    reply = shared.complete(prompt=PROMPT, prompt_logprobs=1, max_tokens=1).json()
    first, *others = reply["choices"][0]["prompt_logprobs"]
    assert first is None and len(others) == len(ids) - 1
    for token_id, table in zip(ids[1:], others, strict=True):
        decoded = shared.tokenizer.decode([token_id])
        assert table[str(token_id)] == {"logprob": -3.0, "rank": 3, "decoded_token": decoded}
        assert len(table) == 2


def test_echo(shared: LiveServer) -> None:
    ask = {"prompt": PROMPT, "seed": 2, "max_tokens": 4}
    plain = shared.complete(**ask).json()["choices"][0]["text"]
    echoed = shared.complete(**ask, echo=True).json()["choices"][0]
    assert echoed["text"] == PROMPT + plain
    stream = events(shared.complete(**ask, echo=True, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) == PROMPT + plain
    ids = shared.tokenizer.encode(PROMPT)
    by_ids = shared.complete(**{**ask, "prompt": ids}, echo=True).json()["choices"][0]
    assert by_ids["text"] == PROMPT + plain


def test_echo_with_logprobs_scores_the_prompt(shared: LiveServer) -> None:
    choice = shared.complete(prompt=PROMPT, echo=True, logprobs=1, max_tokens=2).json()["choices"][
        0
    ]
    logprobs, ids = choice["logprobs"], shared.tokenizer.encode(PROMPT)
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"] == [None, *[-3.0] * (len(ids) + 1)]
    assert logprobs["top_logprobs"][0] is None
    assert [len(top) for top in logprobs["top_logprobs"][1:]] == [2] * (len(ids) + 1)
    assert logprobs["text_offset"][-1] == len("".join(logprobs["tokens"][:-1]))
    assert choice["prompt_logprobs"] is None


def test_metrics_of_a_request(shared: LiveServer) -> None:
    ask = {"prompt": [[5] * 9, [6] * 3], "max_tokens": 4, "include_metrics": True}
    long, short = shared.complete(**ask).json()["metrics"]
    assert (long["peak_blocks"], short["peak_blocks"]) == (3, 2)  # 12 and 6 tokens, blocks of 4
    assert (long["num_prompt_tokens"], long["num_output_tokens"]) == (9, 4)
    assert (long["num_preemptions"], long["cached_tokens"]) == (0, 0)
    assert 0 < long["ttft"] <= long["e2e_latency"] and long["block_seconds"] > 0
    streamed = shared.complete(**ask, stream=True, stream_options={"include_usage": True})
    assert [story["peak_blocks"] for story in events(streamed)[-1]["metrics"]] == [3, 2]
    assert shared.complete(prompt=[5]).json()["metrics"] is None


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (100, 1)])
def test_memory_is_given_back_after_a_large_answer(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, count: int, expected: int
) -> None:
    asked: list[None] = []
    service = server.server.config.app.state.service  # type: ignore[union-attr]
    monkeypatch.setattr(service.engine, "give_memory_back", lambda: asked.append(None))
    response = server.complete(prompt=[5] * 200, max_tokens=1, prompt_logprobs=count)
    assert response.status_code == 200
    assert len(asked) == expected
