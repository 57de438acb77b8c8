"""Tokenizers that only transformers can load give what they give there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from quire.text.tokenizer import _FOR_BPE_TOO as FORCED
from quire.text.tokenizer import ConvertedTokenizer, PythonTokenizer, Tokenizer, load_tokenizer
from support.small_tokenizers import byte_level

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "town", "##s", "a", "##b", "'", "."]


def converted(directory: Path) -> None:
    """Files of a BERT, of which transformers makes a tokenizer in Rust."""
    (directory / "vocab.txt").write_text("\n".join(WORDS))
    config = {"tokenizer_class": "BertTokenizer", "clean_up_tokenization_spaces": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))


def in_python(directory: Path) -> None:
    """A ByT5, which is written in Python."""
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer"})
    )
    (directory / "config.json").write_text(json.dumps({"model_type": "t5"}))


@pytest.fixture(scope="module", params=[converted, in_python])
def pair(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Tokenizer, Any]:
    directory = tmp_path_factory.mktemp("tokenizer")
    request.param(directory)
    ours, theirs = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    kind = ConvertedTokenizer if request.param is converted else PythonTokenizer
    assert type(ours) is kind
    return ours, theirs


TEXTS = st.lists(st.sampled_from([*"ab '.", "the ", "towns ", "[SEP]", "é", "日"])).map(
    "".join
) | st.text(st.characters(exclude_categories=["Cs"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, special=st.booleans())
def test_texts_have_the_same_tokens(pair: Any, text: str, special: bool) -> None:
    ours, theirs = pair
    ids = theirs.encode(text, add_special_tokens=special)
    assert ours.encode(text, add_special_tokens=special) == ids
    assert ours.count(text) == len(theirs.encode(text, add_special_tokens=False))
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
            ids, skip_special_tokens=skip
        )


def test_what_they_drop_is_known(pair: Any) -> None:
    ours, _ = pair
    assert ours.longest_token is None


@pytest.mark.parametrize("tidies", [False, True])
def test_what_is_not_tidied_is_the_bytes_of_its_tokens(tmp_path: Path, tidies: bool) -> None:
    """Of a GPT-2 whose files are those of old; transformers tidies no BPE's texts unless told."""
    backend = byte_level()
    backend.model.save(str(tmp_path))
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "clean_up_tokenization_spaces": True,
        FORCED: tidies,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is ConvertedTokenizer
    assert ours.own_texts.strips == (None if tidies else 0)
    ids = ours.encode(" the river . n't 👍", add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids)
    assert tidies == (ours.decode(ids) == " the river. n't 👍".replace(" n't", "n't"))
    cut = ids[:-1]
    assert ours.decode(cut).endswith(" \ufffd")


def test_the_bytes_of_tokens_that_depend_on_others(tmp_path: Path) -> None:
    converted(tmp_path)
    ours = load_tokenizer(tmp_path)
    the, s, mask = (WORDS.index(word) for word in ("the", "##s", "[MASK]"))
    assert [ours.own_texts.bytes[one] for one in (the, s, mask)] == [b" the", b"s", b"[MASK]"]
    assert ours.own_texts[the] == ""
