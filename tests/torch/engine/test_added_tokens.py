"""Tokens and ends beside tokenizer.json are what transformers makes of the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from quire import LLM, SamplingParams
from quire.core.errors import ModelError
from quire.text.tokenizer import load_tokenizer
from support.small_tokenizers import byte_level

BASE = byte_level(special=[AddedToken("<a>", special=True), AddedToken("<b>", normalized=False)])
A, B, NEXT = (BASE.token_to_id("<a>"), BASE.token_to_id("<b>"), BASE.get_vocab_size())
TEXTS = (
    "<a>  x <b> y", "<c> <d>  z", "the town <p> the", "<x> <y>  w", "<z><q> the",
    "  <b>  <img><vid> <e1> <e2>",
)  # fmt: skip


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": content, **plain, "special": True, **flags}


def numbered(**tokens: Any) -> dict[str, Any]:
    return {"added_tokens_decoder": {at.removeprefix("t"): told for at, told in tokens.items()}}


CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
FILES: Mapping[str, dict[str, Any]] = {
    "flags over those of tokenizer.json": {
        CONFIG: numbered(**{f"t{A}": token("<a>", rstrip=True), f"t{B}": token("<b>", lstrip=True)})
    },
    "special no more": {CONFIG: numbered(**{f"t{A}": token("<a>", special=False)})},
    "special by then": {CONFIG: numbered(**{f"t{B}": token("<b>")})},
    "new ones in any order": {
        CONFIG: {
            **numbered(**{f"t{NEXT + 1}": token("<d>", special=False), f"t{NEXT}": token("<c>")}),
            "eos_token": "<c>",
        }
    },
    "named ones, of the vocabulary or new": {
        CONFIG: {
            "eos_token": "the",
            "pad_token": {**token("<p>", rstrip=True), "__type": "AddedToken"},
        }
    },
    "older models' map": {
        MAP: {"eos_token": "<b>", "additional_special_tokens": ["<x>", "<y>"]},
        CONFIG: {"eos_token": "<b>"},
    },
    "older models' list": {
        ADDED: {"<z>": NEXT + 1, "<q>": NEXT, "<a>": A},
        MAP: {"eos_token": "<z>"},
    },
    "those of one model": {
        CONFIG: {"image_token": "<img>", "extra_special_tokens": {"video_token": "<vid>"}}
    },
    "more": {CONFIG: {"extra_special_tokens": ["<e1>", "<e2>"]}},
}


def write(directory: Path, files: Mapping[str, Any]) -> Path:
    BASE.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **files.get(CONFIG, {})}
    for name, value in {**files, CONFIG: config}.items():
        (directory / name).write_text(json.dumps(value))
    return directory


@pytest.mark.parametrize("case", FILES)
def test_tokens_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    directory = write(tmp_path, FILES[case])
    ours, theirs = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == ids, text
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip
            )
    assert ours.end_ids == {id for id in [theirs.eos_token_id] if id is not None}


def test_ends_of_two_files_are_joined_and_templates_are_given_those_of_either(
    tmp_path: Path,
) -> None:
    directory = write(tmp_path, {MAP: {"eos_token": token("<b>"), "bos_token": "<a>"},
                                 CONFIG: {**numbered(**{f"t{A}": token("<a>")}),
                                          "eos_token": "<a>"}})  # fmt: skip
    found = load_tokenizer(directory, "{{ bos_token }}{{ eos_token }}")
    assert found.end_ids == {A, B}
    assert found.apply_chat_template([{"role": "user", "content": ""}], {}) == "<a><a>"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({CONFIG: numbered(**{f"t{NEXT + 5}": token("<c>")})}, f"'<c>' is to be token {NEXT + 5}"),
        ({CONFIG: numbered(**{f"t{A}": token("<a>", rstrip=3)})}, "is no token"),  # type: ignore[arg-type]
        ({CONFIG: numbered(**{f"t{A}": 7})}, "tokenizer_config.json: 7 is no token"),
        ({CONFIG: numbered(tx=token("<c>"))}, "'x' is no token's id"),
        ({CONFIG: {"added_tokens_decoder": [1]}}, "added_tokens_decoder must be an object"),
        ({ADDED: {"<c>": None}}, "added_tokens.json: None is no token's id"),
        ({ADDED: {"<c>": [NEXT]}}, "is no token's id"),
        ({ADDED: {"<c>": NEXT + 1}}, "and is none of tokenizer.json's, of which the next is"),
    ],
)
def test_what_is_no_token_is_refused(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        load_tokenizer(write(tmp_path, files))


@pytest.mark.parametrize("name", [CONFIG, MAP])
def test_a_text_ends_where_the_tokenizer_says(name: str, model_dir: Any, tmp_path: Path) -> None:
    """The model's config has another end, which no text of it comes to."""
    directory = model_dir("llama")
    for file in directory.iterdir():
        (tmp_path / file.name).symlink_to(file)
    whole = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompt = [3, 4, 5]
    (long,) = LLM(tmp_path).generate([prompt], whole, use_tqdm=False)
    ids = long.outputs[0].token_ids
    end = next(id for at, id in enumerate(ids) if at > 3 and id not in ids[:at])
    text = load_tokenizer(directory).decode([end], skip_special_tokens=False)
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    named = next(token for token, id in vocabulary.items() if id == end)
    assert text
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).write_text(json.dumps({"eos_token": named}))
    llm = LLM(tmp_path)
    (short,) = llm.generate(
        [prompt], SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False
    )
    assert short.outputs[0].token_ids == ids[: ids.index(end) + 1]
    assert short.outputs[0].finish_reason == "stop"
    (again,) = llm.generate([prompt], whole, use_tqdm=False)
    assert again.outputs[0].token_ids == ids
