"""What answers tell of tokens is letter by letter the text, at every door and however it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import normalizers

from quire.http.answers.logprobs import completion_logprobs
from quire.text.chat_template import ChatTemplate
from quire.text.text_tokens import echo_of
from quire.text.tokenizer import JsonTokenizer
from support.live_server import MODEL, LiveServer, events, live_server
from support.small_tokenizers import byte_level, with_byte_fallback

SAID = " ab👍🏽 a👩‍👩‍👧b é a"
TEMPLATE = "<s>{% for m in messages %}{{ m.content }}{% endfor %}</s>"
SCORED: Any = {"top_logprobs": 1, "include": ["message.output_text.logprobs"]}


def byte_fallback() -> JsonTokenizer:
    template = ChatTemplate(TEMPLATE, {})
    return JsonTokenizer(with_byte_fallback(("<s>", "</s>")), template)


@pytest.fixture(scope="module", params=["byte level", "byte fallback"])
def _letters(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    own = {"tokenizer": byte_fallback()} if request.param == "byte fallback" else {}
    with live_server(own) as server:
        yield server


@pytest.fixture
def letters(_letters: LiveServer) -> LiveServer:
    """A server whose model says SAID."""
    _letters.script(SAID)
    # Behind another word, where no space is put before it.
    encode = _letters.tokenizer.encode
    both = encode("b" + SAID, add_special_tokens=False)
    _letters.executor.script = [*both[len(encode("b", add_special_tokens=False)) :], *both]
    return _letters


def count(server: LiveServer) -> int:
    """Tokens of SAID."""
    assert server.executor.script is not None
    own = server.tokenizer.own_texts.bytes
    total, text = 0, b""
    while text != SAID.encode():
        text += own[server.executor.script[total]]
        total += 1
    return total


def told(content: list[dict[str, Any]]) -> tuple[str, bytes]:
    """Texts and bytes of tokens, joined."""
    return "".join(one["token"] for one in content), b"".join(
        bytes(one["bytes"]) for one in content
    )


HELD_BACK = pytest.mark.parametrize("stop", [[], ["é x", "👍🏽 b"]])  # for a while


@HELD_BACK
def test_chats(letters: LiveServer, stop: list[str]) -> None:
    ask = {"max_tokens": count(letters), "logprobs": True, "top_logprobs": 1, "stop": stop}
    choice = letters.chat(**ask).json()["choices"][0]
    assert choice["message"]["content"] == SAID
    assert told(choice["logprobs"]["content"]) == (SAID, SAID.encode())
    streamed = [
        entry
        for chunk in events(letters.chat(**ask, stream=True))
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == choice["logprobs"]["content"]


@HELD_BACK
def test_completions(letters: LiveServer, stop: list[str]) -> None:
    ask = {"prompt": "b", "max_tokens": count(letters), "logprobs": 1, "stop": stop}
    choice = letters.complete(**ask).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == SAID == "".join(logprobs["tokens"])
    ends = [*logprobs["text_offset"][1:], len(SAID)]
    pieces = [SAID[at:end] for at, end in zip(logprobs["text_offset"], ends, strict=True)]
    assert pieces == logprobs["tokens"]
    streamed: dict[str, list[Any]] = {name: [] for name in logprobs}
    for chunk in events(letters.complete(**ask, stream=True)):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[name] += values
    assert streamed == logprobs


@pytest.mark.parametrize("given", ["text", "tokens", "marked tokens"])
def test_an_echo(letters: LiveServer, given: str) -> None:
    text = "ab a👍b"
    ids = letters.tokenizer.encode(text, add_special_tokens=given == "marked tokens")
    if given == "marked tokens":
        ids = [min(letters.tokenizer.special_ids), *ids, max(letters.tokenizer.special_ids)]
    prompt: Any = text if given == "text" else ids
    ask = {"prompt": prompt, "echo": True, "max_tokens": count(letters)}
    choice = letters.complete(**ask, logprobs=1).json()["choices"][0]
    logprobs, whole = choice["logprobs"], choice["text"]
    asked = letters.tokenizer.decode(ids, skip_special_tokens=False)
    assert whole == (text if given == "text" else asked) + SAID
    ends = [*logprobs["text_offset"][1:], len(whole)]
    pieces = [whole[at:end] for at, end in zip(logprobs["text_offset"], ends, strict=True)]
    first = given == "text" and logprobs["tokens"][0] == "<s>"  # which the text has not
    assert pieces[first:] == logprobs["tokens"][first:] and "".join(pieces) == whole
    stream = events(letters.complete(**ask, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) == whole


def test_an_echo_of_what_is_left_of_a_text(letters: LiveServer) -> None:
    ask = {"prompt": "ab b b", "truncate_prompt_tokens": 2, "echo": True, "max_tokens": 1}
    text = letters.complete(**ask).json()["choices"][0]["text"]
    stream = events(letters.complete(**ask, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) == text
    assert "<s>" not in text and text.strip().startswith("b")


@pytest.mark.parametrize("fewer", [0, 3, 4, 5])
def test_responses_tell_every_token_once(letters: LiveServer, fewer: int) -> None:
    """What waits for the rest of a character included, and what is left of one at the end."""
    most = count(letters) - fewer
    ask = {"model": MODEL, "input": "b", "max_output_tokens": most, **SCORED}
    whole = letters.http.post("/v1/responses", json=ask).json()
    (part,) = whole["output"][0]["content"]
    spoken, data = told(part["logprobs"])
    assert len(part["logprobs"]) == whole["usage"]["output_tokens"] == most
    assert spoken == part["text"] and SAID.encode().startswith(data)
    answer = letters.http.post("/v1/responses", json={**ask, "stream": True})
    data_lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    values = [json.loads(line.removeprefix("data: ")) for line in data_lines]
    deltas = [one for one in values if one["type"] == "response.output_text.delta"]
    assert [entry for one in deltas for entry in one["logprobs"]] == part["logprobs"]
    (done,) = [one for one in values if one["type"] == "response.output_text.done"]
    assert done["logprobs"] == part["logprobs"] and done["text"] == part["text"]


def test_llama_cpp_and_ollama(letters: LiveServer) -> None:
    ask = {"prompt": "b", "n_predict": count(letters), "n_probs": 1}
    found = letters.http.post("/completion", json=ask).json()["completion_probabilities"]
    assert told(found) == (SAID, SAID.encode())
    assert {type(one["id"]) for entry in found for one in entry["top_logprobs"]} == {int}
    options = {"num_predict": count(letters)}
    body = {"model": MODEL, "prompt": "b", "raw": True, "options": options, "logprobs": True}
    whole = letters.http.post("/api/generate", json={**body, "stream": False}).json()
    assert told(whole["logprobs"]) == (SAID, SAID.encode())


def test_the_token_that_ends_a_text_adds_nothing_to_it_there(letters: LiveServer) -> None:
    """llama.cpp's server tells it without a text, Ollama not at all."""
    letters.script("a")
    assert letters.executor.script is not None
    end = letters.executor.script[-1]
    number = len(letters.executor.script) - 1
    found = letters.http.post("/completion", json={"prompt": "b", "n_probs": 1}).json()
    *_, last = found["completion_probabilities"]
    assert found["stop_type"] == "eos" and (last["id"], last["token"], last["bytes"]) == (
        end,
        "",
        [],
    )
    assert told(found["completion_probabilities"])[0] == found["content"]
    body = {"model": MODEL, "prompt": "b", "raw": True, "logprobs": True, "top_logprobs": 1}
    whole = letters.http.post("/api/generate", json={**body, "stream": False}).json()
    assert whole["done_reason"] == "stop" and len(whole["logprobs"]) == number
    lines = letters.http.post("/api/generate", json=body).text.splitlines()
    streamed = [one for line in lines for one in json.loads(line).get("logprobs", [])]
    assert streamed == whole["logprobs"]


def test_pieces_can_be_joined(letters: LiveServer) -> None:
    body = {"content": SAID, "with_pieces": True}
    pieces = [one["piece"] for one in letters.http.post("/tokenize", json=body).json()["tokens"]]
    joined = b"".join(one.encode() if isinstance(one, str) else bytes(one) for one in pieces)
    # llama.cpp too has the space that such a tokenizer puts before a text.
    assert joined.decode() in (SAID, " " + SAID) and [240] in pieces
    tokens = letters.tokenizer.encode(SAID, add_special_tokens=False)
    assert letters.http.post("/detokenize", json={"tokens": tokens}).json()["content"] == SAID
    names = letters.http.post("/tokenize", json={"prompt": SAID, "return_token_strs": True}).json()
    assert "bytes:\\xf0" in names["token_strs"]


def test_a_cut_character_is_told_as_such(letters: LiveServer) -> None:
    assert letters.executor.script is not None
    first = letters.tokenizer.own_texts.bytes
    cut = next(n for n, one in enumerate(letters.executor.script) if first[one] == b"\xf0")
    choice = letters.complete(prompt="b", max_tokens=cut + 1, logprobs=1).json()["choices"][0]
    assert choice["text"] == " ab\ufffd" == "".join(choice["logprobs"]["tokens"])
    chat = letters.chat(max_tokens=cut + 1, logprobs=True).json()["choices"][0]
    assert chat["logprobs"]["content"][-1]["bytes"] == [0xF0]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("least", range(1, 12))
def test_a_stop_string_that_is_complete_at_min_tokens_ends_the_text(
    letters: LiveServer, least: int, include: bool
) -> None:
    """And one that is complete before them is text, wherever it began."""
    ask = {"prompt": "b", "max_tokens": count(letters), "include_stop_str_in_output": include}
    pieces = letters.complete(**ask, logprobs=0).json()["choices"][0]["logprobs"]["tokens"]
    texts = ["".join(pieces[: n + 1]) for n in range(len(pieces))]
    for stop in ("b👍", "👍🏽 a", " a"):
        answer = letters.complete(**ask, stop=stop, min_tokens=least).json()
        end = next(
            (
                text.rindex(stop) + len(stop) * include
                for number, text in enumerate(texts, 1)
                if number >= least
                and text.rfind(stop) >= 0
                and text.rindex(stop) + len(stop) > len(texts[number - 2] if number > 1 else "")
            ),
            len(SAID),
        )
        choice = answer["choices"][0]
        assert choice["text"] == SAID[:end]
        assert answer["usage"]["completion_tokens"] >= least
        stream = events(letters.complete(**ask, stop=stop, min_tokens=least, stream=True))
        assert "".join(chunk["choices"][0]["text"] for chunk in stream) == SAID[:end]


def test_white_space_as_a_bad_word_forbids_itself_alone(letters: LiveServer) -> None:
    seen: list[Any] = []
    letters.executor.fail = lambda step: seen.extend(one.request for one in step.opened)
    letters.complete(prompt="b", bad_words=["\n"], max_tokens=1)
    letters.executor.fail = lambda step: None
    own = letters.tokenizer.own_texts.bytes
    ((ids,),) = [request.bad_word_ids for request in seen]
    assert [own[token_id] for token_id in ids] == [b"\n"]


def test_a_token_that_is_no_part_of_the_text_has_its_name_and_no_length(
    letters: LiveServer,
) -> None:
    name = "<|user|>" if letters.tokenizer.token_id("<s>") is None else "</s>"
    mark = letters.tokenizer.token_id(name)
    word = letters.tokenizer.encode("ab", add_special_tokens=False)[-1:]
    letters.executor.script = [*word, mark, *word]
    ask = {"prompt": "b", "max_tokens": 3, "logprobs": 0}
    skipped = letters.complete(**ask).json()["choices"][0]
    kept = letters.complete(**ask, skip_special_tokens=False).json()["choices"][0]
    ended = letters.complete(**ask, stop_token_ids=[mark]).json()["choices"][0]
    for choice, length in ((skipped, 0), (kept, len(name)), (ended, 0)):
        first, *_ = tokens = choice["logprobs"]["tokens"]
        assert tokens == [first, name, first][: len(tokens)]
        offsets = [0, len(first), len(first) + length]
        assert choice["logprobs"]["text_offset"] == offsets[: len(tokens)]
    assert kept["text"] == "".join(kept["logprobs"]["tokens"])
    assert skipped["text"] == kept["text"].replace(name, "") and len(ended["text"]) == len(first)


def test_offsets_stay_in_a_prompt_that_its_tokens_spell_otherwise() -> None:
    tokenizer = JsonTokenizer(byte_level(normalizers.NFKC()), None)
    text = "\ufb03 a"  # one letter, of which three are made
    ids = tokenizer.encode(text)
    told = completion_logprobs(
        [], 0, echo=echo_of(tokenizer, ids, text), scores=[None] * len(ids)
    )  # fmt: skip
    assert "".join(told.tokens) == "ffi a" and told.text_offset == [0, 1, 2, 3, 3]
