"""POST /v1/chat/completions, through OpenAI's own client and by hand."""

from __future__ import annotations

from typing import Any

from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer, events

MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tell me a story"},
]


def test_a_stream_says_what_the_whole_answer_says(shared: LiveServer) -> None:
    ask = {"model": MODEL, "messages": MESSAGES, "max_completion_tokens": 20, "seed": 7}
    whole = shared.openai.chat.completions.create(**ask)
    assert whole.object == "chat.completion" and whole.id.startswith("chatcmpl-")
    message = whole.choices[0].message
    assert message.role == "assistant" and message.content
    opening, *chunks = shared.openai.chat.completions.create(**ask, stream=True)
    assert opening.object == "chat.completion.chunk"
    assert (opening.choices[0].delta.role, opening.choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].delta.role is None for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == message.content
    assert len(chunks) == 20, "not a stream, or not of tokens"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 19 + ["length"]


def test_the_conversation_becomes_the_prompt_by_the_chat_template(shared: LiveServer) -> None:
    ids = shared.engine.input_processor.begin_chat(MESSAGES).token_ids
    chat = shared.chat(messages=MESSAGES, seed=4, max_tokens=8).json()
    plain = shared.complete(prompt=ids, seed=4, max_tokens=8).json()
    assert chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
    assert chat["usage"]["prompt_tokens"] == len(ids)


def test_parts_of_text_and_a_message_sent_back_as_it_came(shared: LiveServer) -> None:
    first = shared.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, seed=1
    )
    parts = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "more"}]
    reply = first.choices[0].message.model_dump()  # with all its null fields
    turns = [*MESSAGES, reply, {"role": "user", "content": parts}]
    flat = [
        *MESSAGES,
        {"role": "assistant", "content": reply["content"]},
        {"role": "user", "content": "Tell me\nmore"},
    ]
    answers = [shared.chat(messages=m, max_tokens=5, seed=1).json() for m in (turns, flat)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_n_choices_in_whole_and_in_stream(shared: LiveServer) -> None:
    ask = {"n": 3, "seed": 2, "max_tokens": 6}
    whole = shared.chat(**ask).json()["choices"]
    assert [choice["index"] for choice in whole] == [0, 1, 2]
    expected = [choice["message"]["content"] for choice in whole]
    assert len(set(expected)) == 3
    texts, roles = [""] * 3, [0] * 3
    for chunk in events(shared.chat(**ask, stream=True)):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"]["content"]
        roles[choice["index"]] += "role" in choice["delta"]
    assert texts == expected and roles == [1, 1, 1]


def test_logprobs(server: LiveServer) -> None:
    tokens = server.script("A short tale.")
    pieces = [server.tokenizer.decode([token]) for token in tokens]
    ask = {"max_tokens": len(tokens), "logprobs": True, "top_logprobs": 2}
    content = server.chat(**ask).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == pieces
    assert [bytes(entry["bytes"]).decode() for entry in content] == pieces
    assert {entry["logprob"] for entry in content} == {-3.0}
    for entry in content:
        assert [top["logprob"] for top in entry["top_logprobs"]] == [-1.0, -2.0]
    streamed = [
        entry
        for chunk in events(server.chat(**ask, stream=True))
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content
    without = server.chat(max_tokens=2, logprobs=True).json()["choices"][0]["logprobs"]
    assert [entry["top_logprobs"] for entry in without["content"]] == [[], []]
    third = server.chat(max_tokens=1, logprobs=True, top_logprobs=3).json()
    top = third["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert [entry["logprob"] for entry in top] == [-1.0, -2.0, -3.0]


def test_without_a_limit_the_model_s_length_is_the_limit(shared: LiveServer) -> None:
    reply = shared.chat(ignore_eos=True).json()
    assert reply["usage"]["total_tokens"] == MAX_MODEL_LEN
    assert reply["choices"][0]["finish_reason"] == "length"


def test_text_that_ends_inside_a_character_is_complete_in_the_stream(server: LiveServer) -> None:
    server.script("Grüße 🦊 und 漢字!")
    texts = [
        choice["delta"]["content"]
        for chunk in events(server.chat(stream=True))
        for choice in chunk["choices"]
    ]
    assert "".join(texts) == "Grüße 🦊 und 漢字!"
    assert "🦊" in texts and "" in texts[1:], "each byte of 🦊 is a token"


def test_usage_and_metrics_of_a_stream(shared: LiveServer) -> None:
    options = {"include_usage": True}
    *_, last = events(
        shared.chat(stream=True, stream_options=options, include_metrics=True, max_tokens=3)
    )
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3
    assert last["metrics"][0]["num_output_tokens"] == 3


def test_null_and_neutral_values_ask_for_nothing(shared: LiveServer) -> None:
    plain = shared.chat(seed=1, max_tokens=4).json()["choices"]
    padded = shared.chat(
        seed=1,
        max_tokens=4,
        temperature=None,
        tools=[],
        tool_choice="none",
        functions=None,
        response_format={"type": "text"},
        store=False,
        metadata=None,
        user="somebody",
    )
    assert padded.status_code == 200
    assert padded.json()["choices"] == plain


def test_sampling_fields_reach_the_engine(server: LiveServer) -> None:
    seen = []
    server.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    extras = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "allowed_token_ids": [7, 8],
        "bad_words": ["fox"],
    }
    server.openai.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.25,
        frequency_penalty=0.5,
        logit_bias={"7": 2, "8": -100},
        max_tokens=3,
        extra_body=extras,
    )
    params = seen[0]
    assert {name: getattr(params, name) for name in extras} == {
        **extras,
        "allowed_token_ids": (7, 8),
        "bad_words": ("fox",),
    }
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 3)
    assert (params.presence_penalty, params.frequency_penalty) == (0.25, 0.5)
    assert params.logit_bias == {7: 2.0, 8: -100.0}
    seen.clear()
    server.chat(max_tokens=1)
    assert (seen[0].temperature, seen[0].top_p, seen[0].n) == (1.0, 1.0, 1)
