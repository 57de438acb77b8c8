"""What cannot fit is refused before much is spent on it, and nothing that fits is."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import Split

import quire
from quire.core.errors import ModelError, RequestError
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.text import encoder as encoder_module
from quire.text.encoder import MAX_CHARACTERS, MAX_TOKENS, Encoder, weight
from quire.text.params import SamplingParams
from quire.text.tokenizer import JsonTokenizer, load_tokenizer
from support.small_tokenizers import BOUNDED, UNBOUNDED, byte_level, unigram, word_piece

DEMO = Path(quire.__file__).parent / "models/demo"
TOKENIZER = load_tokenizer(DEMO)
LONGEST = 44  # characters, of a token of the demonstration model
PIECE = encoder_module._PIECE


class Watched:
    """A tokenizer that remembers how much text it was given, and renders chats as it is told."""

    def __init__(self, inner: JsonTokenizer, rendered: str = "") -> None:
        self.inner = inner
        self.longest_token = inner.longest_token
        self.own_texts, self.end_ids = inner.own_texts, inner.end_ids
        self.given: list[int] = []
        self.rendered = rendered

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.given.append(len(text))
        return self.inner.encode(text, add_special_tokens=add_special_tokens)

    to_json = staticmethod(lambda: None)

    def count(self, text: str) -> int:
        self.given.append(len(text))
        return self.inner.count(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.inner.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, messages: Sequence[Any], variables: Mapping[str, Any], max_characters: float = 0
    ) -> str:
        self.given.append(len(str(messages)))
        return self.rendered


def watched(backend: Backend | None = None, rendered: str = "") -> Watched:
    backend = backend or Backend.from_file(str(DEMO / "tokenizer.json"))
    return Watched(JsonTokenizer(backend, None), rendered)


def input_processor(tokenizer: Watched, max_model_len: int | None) -> InputProcessor:
    return InputProcessor(tokenizer, ModelOutputs(4096, [0]), max_model_len=max_model_len, seed=0)


new: Any = SimpleNamespace(history=())  # a session


def refusal(act: Any, *arguments: Any, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        act(*arguments, **options)
    assert len(str(caught.value)) < 300, "it echoes what was sent"
    return caught.value


def test_what_is_longer_than_its_tokens_can_be_is_not_tokenized() -> None:
    tokenizer = watched()
    here, text = input_processor(tokenizer, 100), "x" * (100 * LONGEST + 1)
    error = refusal(here.size, text)
    assert str(error) == (
        "This model's maximum context length is 100 tokens. However, prompt has 4401 characters; "
        "with max_model_len 100 it may have at most 4400"
    )
    assert error.field == "prompt"
    assert refusal(here.size, {"prompt": text}).field == "prompt"
    assert refusal(here.session_input, new, text).field == "input"
    chat = [{"role": "user", "content": text}]
    assert refusal(here.begin_chat, chat).field == "messages"
    assert refusal(here.begin_chat, [{"role": "user"}], {"tools": [text]}).field == "tools"
    assert refusal(here.begin_chat, [{"role": "user"}], {"x": [text]}).field == (
        "chat_template_kwargs"
    )
    assert tokenizer.given == []


def test_a_conversation_that_its_template_makes_too_long_is_not_tokenized() -> None:
    tokenizer = watched(rendered="x" * 5000)
    error = refusal(input_processor(tokenizer, 100).begin_chat, [{"role": "user", "content": "a"}])
    assert (error.field, len(tokenizer.given)) == ("messages", 1)


def test_token_ids_are_counted_before_they_are_looked_at() -> None:
    class Untouchable(list[int]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            raise AssertionError("looked at")

    here = input_processor(watched(), 100)
    error = refusal(here.size, Untouchable([1] * 100))
    assert str(error).endswith(
        "prompt has 100 tokens; with max_model_len 100 it may have at most 99"
    )
    assert refusal(here.session_input, new, Untouchable([1] * 100)).field == "input"
    assert here.size([1] * 99) == 99


def test_without_a_longest_sequence_there_is_a_limit_too() -> None:
    tokenizer = watched()
    here = input_processor(tokenizer, None)
    assert here.size("x" * MAX_CHARACTERS) == MAX_CHARACTERS
    error = refusal(here.size, "x" * (MAX_CHARACTERS + 1))
    assert str(error) == (
        "This model's maximum context length is 1048576 tokens. However, prompt has 4194305 "
        "characters; it may have at most 4194304"
    )
    assert here.size([1] * MAX_TOKENS) == MAX_TOKENS
    assert refusal(here.size, [1] * (MAX_TOKENS + 1)).field == "prompt"
    assert tokenizer.given == []


@pytest.mark.parametrize("max_model_len", [100, 2048, 131_072, 10**6, 10**7])
@pytest.mark.parametrize("backend", [None, word_piece()], ids=["bounded", "unbounded"])
def test_characters_are_limited_by_tokens_but_never_below_any_text_of_words(
    backend: Backend | None, max_model_len: int
) -> None:
    tokenizer = watched(backend)
    limit = Encoder(tokenizer, max_model_len).max_characters
    longest = tokenizer.longest_token
    assert limit >= max_model_len * 16
    if longest is None:
        assert limit >= MAX_CHARACTERS
    else:
        assert limit == min(max_model_len * longest, max(MAX_CHARACTERS, max_model_len * 16))


def test_a_long_text_is_counted_no_further_than_needed() -> None:
    tokenizer = watched()
    encoder, text = Encoder(tokenizer, 50_000), "ab" * 10**6
    error = refusal(encoder.encode, "prompt", text)
    assert "more than" in str(error) and "tokens; with max_model_len 50000" in str(error)
    assert sum(tokenizer.given) < len(text) / 2
    assert max(tokenizer.given) == PIECE


@pytest.mark.parametrize("backend", [word_piece(), unigram()], ids=["word piece", "unigram"])
def test_a_text_that_one_token_stands_for_fits(backend: Backend) -> None:
    encoder = Encoder(watched(backend), 8)
    assert 1 <= len(encoder.encode("prompt", "x" * 3 * PIECE)) < 8


@pytest.mark.parametrize("priority", [-1000, 1000])
def test_priorities_within_bounds_are_served(priority: int) -> None:
    here = input_processor(watched(), 100)
    ready = here.prepare_params(SamplingParams())
    prepared = here.prepare("r", {"prompt": "a", "priority": priority}, ready, 0.0)
    resting = SimpleNamespace(request=prepared.request)
    session: Any = SimpleNamespace(input_token_ids=(5,), resting=resting, client="")
    turn = here.prepare_turn("t", session, [5], ready, 0.0, priority)
    assert prepared.request.priority == turn.request.priority == priority
    with pytest.raises(RequestError, match="priority must be from -1000 to 1000"):
        here.prepare_turn("t", session, [5], ready, 0.0, priority + priority // 1000)


def test_logprobs_of_a_long_prompt_are_bounded() -> None:
    here, prompt = input_processor(watched(), 131_072), [5] * 100_000
    here.prepare("r", prompt, here.prepare_params(SamplingParams(prompt_logprobs=20)), 0.0)
    ready = here.prepare_params(SamplingParams(prompt_logprobs=21))
    assert "prompt_logprobs must be from 0 to 20" in str(
        refusal(here.prepare, "r", prompt, ready, 0.0)
    )


MADE = {name: make() for name, make in {**BOUNDED, **UNBOUNDED}.items()}


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=30)
@given(
    words=st.lists(st.sampled_from(["the town ", "a", "ab ", " " * 40, "日本語", "<end>", "\n"]))
)
def test_nothing_that_fits_is_refused(name: str, words: list[str]) -> None:
    text = "".join(words)
    inner = JsonTokenizer(MADE[name], None)
    ids = inner.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_module, "_PIECE", 160)
        assert Encoder(inner, max(1, len(ids))).encode("prompt", text) == ids


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_tokens_are_those_of_the_tokenizer_itself(text: str, special: bool) -> None:
    for backend in (*MADE.values(), Backend.from_file(str(DEMO / "tokenizer.json"))):
        expected = backend.encode(text, add_special_tokens=special).ids
        tokenizer = JsonTokenizer(backend, None)
        assert tokenizer.encode(text, add_special_tokens=special) == expected
        assert tokenizer.count(text) == len(backend.encode(text, add_special_tokens=False).ids)


def test_other_threads_run_while_a_text_is_tokenized() -> None:
    ticks, over = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.is_set():
            time.sleep(0.001)
            ticks += 1

    clock = threading.Thread(target=tick)
    clock.start()
    try:
        before = ticks
        TOKENIZER.encode("The town by the river " * 40_000)
        during = ticks - before
        before = ticks
        TOKENIZER.count("The town by the river " * 40_000)
        assert min(during, ticks - before) > 10
    finally:
        over.set()
        clock.join()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("abc", 3), ([], 0), (["ab", ["c", 1, None]], 8), ({"a": {"bc": "d"}}, 6), (5, 0)],
)
def test_weight_is_characters_and_items(value: object, expected: int) -> None:
    assert weight(value, 10**9) == expected


def test_weight_is_not_taken_further_than_asked() -> None:
    class Untouchable(list[object]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            raise AssertionError("looked at")

    assert weight([Untouchable([0] * 1000)], 100) > 100
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    assert weight(deep, 50) == 51


def test_what_a_tokenizer_gives_up_at_ends_one_request() -> None:
    """Searches of a model's file may take too long for its own library, which then panics."""
    backend = byte_level(before=[Split(Regex("(a+)+b"), "isolated")])
    encoder = Encoder(JsonTokenizer(backend, None), 5000)
    for give in (encoder.encode, partial(encoder.encode, to_be_cut=True)):
        with pytest.raises(RequestError, match="suffix: the model's tokenizer gave up: ") as raised:
            give("suffix", "a" * 40)
        assert raised.value.field == "suffix"
    for most in (None, 8):
        with pytest.raises(RequestError, match=r"documents\[0\]: .* gave up") as raised:
            encoder.encode_pair("documents[0]", "a" * 40, "b", most)
        assert raised.value.field == "documents[0]"
    with pytest.raises(RequestError, match="gave up"):
        encoder.encode("prompt", "a" * (PIECE + 1))
    assert encoder.encode("prompt", "the town") == [*backend.encode("the town").ids]


def test_a_file_that_its_library_gives_up_at_is_refused(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["continuing_subword_prefix"] = "x" * 3  # longer than a token that is merged
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="the model's tokenizer gave up: "):
        load_tokenizer(tmp_path)
