"""What a bad word forbids spells it, and nothing else."""

from __future__ import annotations

from functools import partial

import pytest
from tokenizers import normalizers

from quire.core.errors import RequestError
from quire.text.bad_words import bad_word_ids
from quire.text.tokenizer import JsonTokenizer
from support.small_tokenizers import byte_level, unigram, with_byte_fallback, word_piece

KINDS = {
    "byte level": JsonTokenizer(byte_level(), None),
    "byte fallback": JsonTokenizer(with_byte_fallback(("<s>",)), None),
    "byte fallback, spaces kept": JsonTokenizer(with_byte_fallback(strips=False), None),
}


def forbidden(tokenizer: JsonTokenizer, word: str) -> set[tuple[int, ...]]:
    encode = partial(tokenizer.encode, add_special_tokens=False)
    return bad_word_ids(word, encode, tokenizer.own_texts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "word", ["\n", " ", "\t", "\n\n", "  ", "ab", " ab", "\tab", "é", "👍🏽", "a b"]
)
def test_they_spell_the_word_or_the_word_after_a_space(kind: str, word: str) -> None:
    tokenizer = KINDS[kind]
    spelled = {
        b"".join(tokenizer.own_texts.bytes[token_id] for token_id in ids).decode()
        for ids in forbidden(tokenizer, word)
    }
    assert spelled == ({word} if word[0].isspace() else {word, " " + word})


def test_they_are_the_tokens_that_a_model_would_write() -> None:
    tokenizer = KINDS["byte fallback"]
    token = tokenizer.token_id
    assert forbidden(tokenizer, "\n") == {(token("<0x0A>"),)}
    assert forbidden(tokenizer, " ") == {(token("▁"),)}
    assert forbidden(tokenizer, "ab") == {(token("ab"),), (token("▁a"), token("b"))}
    assert forbidden(tokenizer, "a") == {(token("a"),), (token("▁a"),)}


def test_words_of_a_tokenizer_that_changes_them_have_its_tokens() -> None:
    lower = JsonTokenizer(byte_level(normalizers.Lowercase()), None)
    assert forbidden(lower, "THE") == {
        tuple(lower.encode("the")), tuple(lower.encode(" the")),
    }  # fmt: skip
    assert forbidden(JsonTokenizer(word_piece(), None), "ab") == {(1, 2)}
    assert forbidden(JsonTokenizer(unigram(), None), "a")


def test_what_no_tokens_spell_is_refused_since_it_could_not_be_kept() -> None:
    with pytest.raises(RequestError, match="no tokens of this model spell") as caught:
        forbidden(JsonTokenizer(word_piece(), None), "\n")
    assert caught.value.field == "bad_words"
