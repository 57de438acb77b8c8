"""Incremental text equals the text of the whole, and chat templates see what they should."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

import quire
from quire.core.errors import ModelError, RequestError
from quire.text.detokenizer import Detokenizer
from quire.text.sandbox import OWN, Templates
from quire.text.tokenizer import JsonTokenizer, load_tokenizer

DEMO = Path(quire.__file__).parent / "models/demo"
TOKENIZER = load_tokenizer(DEMO)


def pieces(prompt: str, text: str) -> tuple[list[str], list[int]]:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(TOKENIZER, TOKENIZER.encode(prompt), skip_special_tokens=True)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()], ids


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_pieces_add_up_to_the_text(prompt: str, text: str) -> None:
    parts, ids = pieces(prompt, text)
    assert "".join(parts) == TOKENIZER.decode(ids)


@given(
    st.lists(st.integers(0, 60), max_size=6),
    st.lists(st.one_of(st.integers(0, 300), st.integers(0, 4095)), max_size=30),
    st.booleans(),
)
def test_what_a_token_adds_wherever_it_stands_is_what_it_adds_here(
    context: list[int], ids: list[int], skip: bool
) -> None:
    by_table = Detokenizer(TOKENIZER, context, skip)
    by_window = Detokenizer(TOKENIZER, context, skip)
    by_window._own_texts = defaultdict(str)
    assert [by_table.push(i) for i in ids] == [by_window.push(i) for i in ids]
    assert by_table.flush() == by_window.flush()


def test_only_what_joins_bytes_has_texts_of_its_own() -> None:
    backend = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    (hello,) = TOKENIZER.encode(" the", add_special_tokens=False)
    assert TOKENIZER.own_texts[hello] == " the"
    backend.decoder = tokenizers.decoders.Metaspace()  # the first token of a text has no space
    assert JsonTokenizer(backend, None).own_texts[hello] == ""


def test_no_piece_shows_half_a_character() -> None:
    parts, ids = pieces("x", "naïve 日本語 🙂")
    assert len(ids) > len("naïve 日本語 🙂"), "no character is split: nothing is tested"
    assert "".join(parts) == "naïve 日本語 🙂"
    assert not any("\ufffd" in part for part in parts)


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    ids = TOKENIZER.encode("🙂", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(TOKENIZER, [], skip_special_tokens=True)
    assert [detokenizer.push(i) for i in ids] == [""] * len(ids)
    assert "\ufffd" in detokenizer.flush()
    assert detokenizer.flush() == ""


def test_chat_template_of_the_demo_model() -> None:
    text = TOKENIZER.apply_chat_template([{"role": "user", "content": "Hi"}], {})
    assert "Hi" in text and text != "Hi"


def directory_with(tmp_path: Path, template: str) -> Path:
    (tmp_path / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    config = {"chat_template": template, "bos_token": {"content": "<b>"}, "eos_token": "<e>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_templates_see_what_transformers_gives_them(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% if loop.last %}{% break %}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}{{ mood }}{{ eos_token }}"
    )
    tokenizer = load_tokenizer(directory_with(tmp_path, template))
    text = tokenizer.apply_chat_template([{"role": "user", "content": "é<"}], {"mood": "!"})
    assert text == '<b>{"role": "user", "content": "é<"}>!<e>'


def test_a_template_file_and_an_override_come_first(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, "config")
    message = [{"role": "user", "content": "x"}]
    (directory / "chat_template.jinja").write_text("file")
    assert load_tokenizer(directory).apply_chat_template(message, {}) == "file"
    assert load_tokenizer(directory, "mine").apply_chat_template(message, {}) == "mine"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ 1 + messages }}",
        "{{ ''.__class__.__mro__[1].__subclasses__()[0]() }}",
        "{% filter first %}{{ nothing }}{% endfilter %}",
        "{% filter list %}x{% endfilter %}",
        "{% filter length %}x{% endfilter %}",
        "{{ '\\ud800' }}",
        "{{ raise_exception('\\ud800') }}",
    ],
)
def test_a_template_that_fails_is_the_requests_error(tmp_path: Path, template: str) -> None:
    tokenizer = load_tokenizer(directory_with(tmp_path, template))
    with pytest.raises(RequestError, match="chat template refuses") as caught:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], {})
    assert caught.value.field == "messages"
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("template", "variables"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}", {}),
        ("{{ more }}", {"more": "x" * 101}),
        ("{% for one in more %}{{ one }}{% endfor %}", {"more": ["xx"] * 51}),
    ],
)
def test_a_template_that_goes_on_and_on_is_ended(
    tmp_path: Path, template: str, variables: dict[str, Any]
) -> None:
    tokenizer = load_tokenizer(directory_with(tmp_path, template))
    with pytest.raises(RequestError, match="at most 100 characters") as caught:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], variables, 100)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ raise_exception(more) }}", "x" * 10**6),
        ("{{ more + 1 }}", "text"),
        ("{{ more.a.b }}", 5),
        ("{{ 1 // more }}", 0),
        ("{{ 10 ** more / 1.0 }}", 400),
        ("{{ more }}", 10**5000),
    ],
    ids=["raises", "adds", "looks into", "divides", "overflows", "spells"],
)
def test_values_that_a_template_cannot_take_are_the_requests_error(
    tmp_path: Path, template: str, value: Any
) -> None:
    tokenizer = load_tokenizer(directory_with(tmp_path, template))
    with pytest.raises(RequestError, match="chat template refuses") as caught:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], {"more": value})
    assert len(str(caught.value)) < 300, "it echoes what was sent"


@pytest.mark.parametrize("template", ["{% for %}", f"{{{{ {'1' * 5_000} }}}}"])
def test_a_template_that_does_not_compile_is_the_models_error(
    tmp_path: Path, template: str
) -> None:
    with pytest.raises(ModelError, match="does not compile"):
        load_tokenizer(directory_with(tmp_path, template))


@pytest.mark.parametrize("template", ["{% for %}", f"{{{{ {'1' * 5_000} }}}}", "{{ 10 ** 5000 }}"])
def test_a_template_of_a_request_that_does_not_compile_is_its_error(template: str) -> None:
    with pytest.raises(RequestError, match="does not compile") as caught:
        Templates().render(template, {}, 100, OWN)
    assert caught.value.field == OWN


def test_a_model_without_template_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    with pytest.raises(RequestError, match="no chat template"):
        load_tokenizer(tmp_path).apply_chat_template([{"role": "user", "content": "x"}], {})


@pytest.mark.parametrize("broken", ["{", '{"version": "1.0"}', ""])
def test_a_broken_tokenizer_is_named(tmp_path: Path, broken: str) -> None:
    (tmp_path / "tokenizer.json").write_text(broken)
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(tmp_path)
