"""Texts that grow token by token are the texts of all tokens, and a token's bytes are its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from quire.text.detokenizer import Detokenizer
from quire.text.text_tokens import echo_of, text_left, tokens_in_text
from quire.text.tokenizer import JsonTokenizer, TokenTexts, own_texts
from support.small_tokenizers import (
    ALPHABET,
    byte_level,
    unigram,
    with_byte_fallback,
    word_level,
    word_piece,
)

SPECIAL = ("<s>", "</s>", "<mark>")


def in_several_steps() -> Tokenizer:
    """Whose decoder falls back to bytes, but not in a way that joins them."""
    made = with_byte_fallback()
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return made


def respelled() -> Tokenizer:
    """Whose added token has a letter that stands for a byte, so that its decoder spells it."""
    made = byte_level()
    made.add_tokens(["õ"])
    made.decoder = decoders.Sequence([decoders.Replace("õ", "Ãµ"), decoders.ByteLevel()])
    return made


def marked(made: Tokenizer) -> Tokenizer:
    made.add_special_tokens([*SPECIAL])
    return made


BACKENDS = {
    "byte level": marked(byte_level()),
    "byte level, respelled": marked(respelled()),
    "byte fallback": with_byte_fallback(SPECIAL),
    "byte fallback, spaces kept": with_byte_fallback(SPECIAL, strips=False),
    "byte fallback, then more": marked(in_several_steps()),
    "word piece": marked(word_piece()),
    "unigram": marked(unigram()),
    "no decoder": marked(word_level()),
}
KINDS = {name: JsonTokenizer(backend, None) for name, backend in BACKENDS.items()}
JOINED = ["byte level", "byte level, respelled", "byte fallback", "byte fallback, spaces kept"]
TEXTS = st.lists(
    st.sampled_from(["a", "b", " a", "ab", "  ", " ", "👍🏽", "é", "õ", "日本", "\n", *SPECIAL]),
    max_size=6,
).map("".join)


def text_after(kind: str, context: Sequence[int], ids: Sequence[int], *, skip: bool = True) -> str:
    detokenizer = Detokenizer(KINDS[kind], context, skip)
    pieces = [detokenizer.push(token_id) for token_id in ids]
    return "".join(pieces) + detokenizer.flush()


@pytest.mark.parametrize("kind", KINDS)
@given(before=TEXTS, after=TEXTS, skip=st.booleans(), special=st.booleans())
@example("👍🏽", " a", True, True)
@example("a<s></s><mark><s></s><mark><s>", " a", True, False)
@example("", " a", True, False)
def test_what_comes_is_the_text_of_all_without_that_of_the_prompt(
    kind: str, before: str, after: str, skip: bool, special: bool
) -> None:
    backend = BACKENDS[kind]
    context = backend.encode(before, add_special_tokens=special).ids
    ids = backend.encode(after, add_special_tokens=False).ids
    whole = backend.decode([*context, *ids], skip_special_tokens=skip)
    known = backend.decode(context, skip_special_tokens=skip)
    assert whole.startswith(known)
    assert text_after(kind, context, ids, skip=skip) == whole[len(known) :]
    assert KINDS[kind].decode([*context, *ids], skip_special_tokens=skip) == whole


@pytest.mark.parametrize("kind", JOINED)
@given(data=st.data())
def test_whatever_tokens_come_they_are_their_bytes(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    one = st.integers(0, BACKENDS[kind].get_vocab_size() - 1)
    context, ids = data.draw(st.lists(one, max_size=5)), data.draw(st.lists(one, max_size=12))
    whole = b"".join(tokenizer.own_texts.bytes[token_id] for token_id in ids)
    expected = whole.decode(errors="replace")
    if kind == "byte fallback":
        expected = expected.removeprefix(" ")
    assert text_after(kind, [], ids, skip=False) == expected
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected
    both = tokenizer.decode([*context, *ids], skip_special_tokens=False)
    known = tokenizer.decode(context, skip_special_tokens=False)
    if not both.startswith(known):  # its last character is completed
        known = known.removesuffix("\ufffd")
    assert text_after(kind, context, ids, skip=False) == both[len(known) :]


@pytest.mark.parametrize("kind", JOINED)
@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_cut_character_is_one_and_what_was_before_it_stays(kind: str, left: int) -> None:
    """As Unicode recommends it, and as a decoder of bytes has it."""
    ids = KINDS[kind].encode("a👍👍", add_special_tokens=False)[: left - 4]
    assert text_after(kind, KINDS[kind].encode("a"), ids[1:]) == "👍\ufffd"
    assert KINDS[kind].decode(ids) == "a👍\ufffd"


@pytest.mark.parametrize("kind", JOINED)
def test_a_character_that_the_prompt_begins_comes_whole(kind: str) -> None:
    ids = KINDS[kind].encode("a👍", add_special_tokens=False)
    assert text_after(kind, ids[:-2], [*ids[-2:], *ids[:1]]).startswith("👍")
    tail = KINDS[kind].encode("bb", add_special_tokens=False)
    assert text_after(kind, ids[:-2], tail).strip() == "bb", "its U+FFFD is the prompt's"


def test_so_it_does_where_tokens_depend_on_others() -> None:
    kind = "byte fallback, then more"
    ids = KINDS[kind].encode("b a👍 a", add_special_tokens=False)
    assert text_after(kind, ids[:-3], ids[-3:]) == "👍 a"


@pytest.mark.parametrize("kind", JOINED)
def test_bytes_that_can_be_no_character_do_not_wait(kind: str) -> None:
    (wrong,) = [i for i in range(400) if KINDS[kind].own_texts.bytes[i] == b"\xff"]
    detokenizer = Detokenizer(KINDS[kind], [], skip_special_tokens=True)
    assert [detokenizer.push(wrong) for _ in range(3)] == ["\ufffd"] * 3


def test_a_text_that_never_becomes_one_is_not_kept_for_ever() -> None:
    kind = "byte fallback, then more"
    detokenizer = Detokenizer(KINDS[kind], [], skip_special_tokens=True)
    pieces = [detokenizer.push(0xFF) for _ in range(100)]
    assert len("".join(pieces)) > 60


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("byte level", "👍", [*(bytes([byte]) for byte in "👍".encode())]),
        ("byte fallback", "a é\n", [b" a", b" ", b"\xc3", b"\xa9", b"\n"]),
        ("byte fallback, spaces kept", "a c", [b"a", b" ", b"c"]),
        ("byte fallback, then more", "a é", [b" a", b" ", b"\xc3", b"\xa9"]),
        ("word piece", "ab a", [b" a", b"b", b" a"]),
        ("unigram", "a a", [b" ", b"a", b" ", b"a"]),
        ("byte level", "<mark>", [b"<mark>"]),
        ("byte fallback", "<mark>", [b"<mark>"]),
        ("word piece", "<mark>", [b"<mark>"]),
    ],
)
def test_the_bytes_of_tokens(kind: str, text: str, expected: list[bytes]) -> None:
    ids = KINDS[kind].encode(text, add_special_tokens=False)
    assert [KINDS[kind].own_texts.bytes[token_id] for token_id in ids] == expected


def test_every_byte_has_its_letter() -> None:
    bytes_of = JsonTokenizer(byte_level(), None).own_texts.bytes
    letters = [bytes_of[BACKENDS["byte level"].token_to_id(letter)] for letter in ALPHABET]
    assert sorted(letters) == [bytes([byte]) for byte in range(256)]
    assert [len(letter) for letter in letters] == [1] * 256


def test_a_tokenizer_of_bytes_with_the_decoder_of_another_kind() -> None:
    """As files of models have been published: their spaces would come as letters."""
    backend = byte_level()
    ids = backend.encode(" the river 日本").ids
    backend.decoder = with_byte_fallback().decoder
    assert JsonTokenizer(backend, None).decode(ids) == " the river 日本"


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, special=st.booleans())
def test_tokens_in_their_places_are_the_text_and_its_bytes(
    kind: str, text: str, special: bool
) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text, add_special_tokens=special)
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    tokens = tokens_in_text(tokenizer, ids)
    assert "".join(token.added for token in tokens) == whole
    assert "".join(token.text(token.token_id) for token in tokens) == whole
    joined = b"".join(token.data(token.token_id) for token in tokens)
    if "\ufffd" not in whole:
        assert joined == whole.encode()


def test_a_candidate_completes_what_has_been_begun_or_is_told_by_its_bytes() -> None:
    tokenizer = KINDS["byte fallback"]
    ids = tokenizer.encode("👍👎", add_special_tokens=False)[1:]
    *_, last = tokens_in_text(tokenizer, ids[:4])
    assert last.text(ids[3]) == "👍" and last.data(ids[3]) == "👍".encode()[-1:]
    assert last.text(ids[7]) == "👎", "what might have stood there"
    assert last.text(ids[0]) == "bytes:\\xf0" and last.data(ids[0]) == b"\xf0"
    assert last.text(tokenizer.encode("a")[1]) == " a"


def test_an_echo_has_the_marks_that_were_given_and_no_others() -> None:
    tokenizer = KINDS["byte fallback"]
    ids = tokenizer.encode("a b<mark>a")
    named = echo_of(tokenizer, ids, None)
    assert named.text == "<s> a b<mark> a" == "".join(token.added for token in named.tokens)
    given_text = echo_of(tokenizer, ids, "a b<mark>a")
    assert given_text.text == "a b<mark>a"
    assert [token.added for token in given_text.tokens][:3] == ["", "a", " "]
    assert given_text.tokens[0].text(ids[0]) == "<s>"
    marked_text = echo_of(tokenizer, ids[:4], "<s> a b")
    assert [token.added for token in marked_text.tokens] == ["<s>", " a", " ", "b"]
    assert text_left(tokenizer, ids) == "a b<mark> a"
    assert text_left(tokenizer, ids[3:]) == "b<mark> a"


def test_names_of_tokens_are_found_once() -> None:
    asked: list[int] = []
    own = TokenTexts(lambda token_id: asked.append(token_id) or b"x", frozenset(), 0)  # type: ignore[func-returns-value]
    assert (own[3], own[3], own.bytes[3], asked) == ("x", "x", b"x", [3])
    assert own_texts(byte_level(), frozenset()).strips == 0
