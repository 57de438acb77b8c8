"""What a grammar asks for is text: no token that ends a text or is special stands for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, normalizers

from quire.capabilities.grammar import GrammarCompiler, Guide, Rules
from quire.core.errors import RequestError
from quire.text.params import Reasoning, SamplingParams, StructuredOutputs
from support.grammars import END, Words, allowed, backend, compiled, compiler, demo

MARKS = ["<|endoftext|>", "<|user|>", "<|end|>"]


def written(rules: Rules, words: tokenizers.Tokenizer, seed: int = 0, most: int = 400) -> str:
    """What somebody writes who takes any token that is allowed; its end is not in it."""
    size, output, chance = words.get_vocab_size(), list[int](), random.Random(seed)
    while (found := allowed(rules, output, size)) and len(output) < most:
        token = chance.choice(found)
        if token in rules.ends:
            break
        output.append(token)
    assert found, "nothing may follow"
    return str(words.decode(output, skip_special_tokens=True))


FORMS: list[Callable[[str], dict[str, Any]]] = [
    lambda mark: {"choice": [f"a{mark}b"]},
    lambda mark: {"choice": [mark]},
    lambda mark: {"regex": "a" + mark.replace("|", r"\|") + "b"},
    lambda mark: {"grammar": f'root ::= "a{mark}b"'},
    lambda mark: {"grammar": f'start: "a{mark}" "b"'},
    lambda mark: {"json": {"const": f"a{mark}b"}},
    lambda mark: {"json": {"enum": [f"a{mark}b", f"a{mark}c"]}},
    lambda mark: {
        "json": {"properties": {mark: {"const": mark}}, "required": [mark], "type": "object",
                 "additionalProperties": False}
    },
    lambda mark: {"json": {"type": "string", "pattern": "^a" + mark.replace("|", r"\|") + "b$"}},
    lambda mark: {
        "structural_tag": {
            "type": "structural_tag",
            "format": {"type": "const_string", "value": f"a{mark}b"},
        }
    },
    lambda mark: {
        "structural_tag": {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": mark,
                "content": {"type": "json_schema", "json_schema": {"const": mark}},
                "end": mark,
            },
        }
    },
]  # fmt: skip


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("form", FORMS)
def test_what_looks_like_a_special_token_is_written_as_text(
    form: Callable[[str], dict[str, Any]], mark: str
) -> None:
    rules = compiled(**form(mark))
    for seed in range(2):
        text = written(rules, backend(), seed)
        assert mark in text and text.replace(mark, "").strip('ab"c{}: \n\t\r') == ""


def test_a_special_token_that_is_asked_for_by_name_or_number_is_that_token() -> None:
    user = backend().token_to_id("<|user|>")
    for spelled in ("<|user|>", f"<[{user}]>"):
        assert allowed(compiled(grammar=f'start: {spelled} "x"'), [], 4_096) == [user]
    token = {"type": "token", "token": "<|user|>"}
    tag = {"type": "structural_tag", "format": token}
    assert allowed(compiled(structural_tag=tag), [], 4_096) == [user]


def test_tokens_that_look_like_marks_and_are_none_are_text() -> None:
    """So is the token of <tool_call> for some models, who have learnt to write it so."""
    words = demo()
    words.add_tokens([AddedToken("<tool_call>", normalized=False)])
    mark, size = words.token_to_id("<tool_call>"), words.get_vocab_size()
    made = GrammarCompiler(Words(words), size, frozenset({END}))
    assert mark in allowed(compiled(made, choice=["<tool_call>a"]), [], size)
    assert written(compiled(made, choice=["<tool_call>a"]), words) == "<tool_call>a"
    assert allowed(compiled(made, grammar='start: <tool_call> "a"'), [], size) == [mark]


def test_a_token_that_ends_texts_is_no_text_whatever_it_looks_like() -> None:
    (dot,) = backend().encode(".", add_special_tokens=False).ids
    made = GrammarCompiler(Words(backend()), 4_096, frozenset({END, dot}))
    rules = compiled(made, regex=r"a\.b|ac")
    a = backend().encode("a", add_special_tokens=False).ids
    assert dot not in allowed(rules, a, 4_096)


def test_letters_that_a_tokenizer_changes_are_written_as_they_are() -> None:
    words = demo()
    words.normalizer = normalizers.NFC()
    made = GrammarCompiler(Words(words), words.get_vocab_size(), frozenset({END}))
    for text in (
        "e\u0301t\u0301e\u0301",
        "\u212b",
        "a\x7fb",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ):
        assert written(compiled(made, choice=[text]), words) == text


def test_forced_tokens_are_those_that_a_text_mostly_has() -> None:
    rules = compiled(choice=["hello world, hello there", "hello world, what is it"])
    guide = Guide(rules)
    guide.follow([], 0)
    forced = guide.forced([])
    assert backend().decode(forced).startswith("hello world")
    usual = backend().encode("hello world, hello there", add_special_tokens=False).ids
    assert forced == usual[: len(forced)]
    assert allowed(rules, [], 4_096) == forced[:1]
    special = Guide(compiled(choice=["a<|endoftext|>b"]))
    special.follow([], 0)
    assert END not in special.forced([])


@pytest.mark.parametrize("extra", [-96, 0, 500])
def test_a_model_may_know_more_tokens_than_its_tokenizer_or_fewer(extra: int) -> None:
    size = backend().get_vocab_size() + extra
    made = GrammarCompiler(Words(backend()), size, frozenset({END}))
    rules = compiled(made, regex="[a-z<>\\[\\]0-9]{1,9}")
    assert max(allowed(rules, [], size)) < backend().get_vocab_size()


@pytest.mark.parametrize("kind", ["unknown decoder", "panic"])
def test_a_tokenizer_that_llguidance_does_not_know_is_refused_and_nothing_else(kind: str) -> None:
    words = json.loads(demo().to_str())
    if kind == "panic":
        words["decoder"] = {"type": "ByteFallback"}
        words["model"]["vocab"]["<0xZZ>"] = len(words["model"]["vocab"])
    else:
        words["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    strange = Words(tokenizers.Tokenizer.from_str(json.dumps(words)))
    made = GrammarCompiler(strange, 4_096, frozenset({END}))
    with pytest.raises(RequestError, match="structured_outputs needs a tokenizer"):
        made.warm_up()  # as a worker's zygote does
    with pytest.raises(RequestError, match="structured_outputs needs a tokenizer"):
        compiled(made, choice=["a"])


# -- guides that have failed ---------------------------------------------------------------------


def test_a_guide_that_is_stuck_allows_nothing_and_says_so() -> None:
    guide, rules = Guide(compiled(choice=["yes"])), compiled(choice=["yes"])
    wrong = backend().encode("no", add_special_tokens=False).ids
    assert allowed(rules, wrong, 4_096) == []
    guide.follow(wrong, len(wrong))
    assert guide.failure and guide.forced(wrong) == []
    guide.retreat(0)  # as after a draft that was wrong
    assert guide.failure is None and guide.forced([])
    assert guide.fork().failure is None


def thinking(end: str) -> Rules:
    params = SamplingParams(
        structured_outputs=StructuredOutputs(choice=["yes", "no"]),
        reasoning=Reasoning("<think>", end, open=True),
    )
    rules = compiler().rules(params)
    assert rules is not None
    return rules


def test_reasoning_ends_where_its_mark_is_read_whatever_tokens_it_was_written_with() -> None:
    rules = thinking("</think>")
    letters = [backend().encode(one, add_special_tokens=False).ids for one in "Hm </think>"]
    output = [token for each in letters for token in each]
    usual = backend().encode("</think>", add_special_tokens=False).ids
    assert output[-len(usual) :] != usual
    assert len(allowed(rules, output[:-1], 4_096)) > 1_000
    after = allowed(rules, output, 4_096)
    assert after == allowed(compiled(choice=["yes", "no"]), [], 4_096)


def test_what_follows_reasoning_in_one_token_fails_unless_it_is_white_space() -> None:
    words = demo()
    words.add_tokens([AddedToken("k>\n", normalized=False), AddedToken("k>x", normalized=False)])
    made = GrammarCompiler(Words(words), words.get_vocab_size(), frozenset({END}))
    params = SamplingParams(
        structured_outputs=StructuredOutputs(choice=["yes"]),
        reasoning=Reasoning("<think>", "</think>", open=True),
    )
    rules = made.rules(params)
    assert rules is not None
    opening = backend().encode("Hm</thin", add_special_tokens=False).ids
    line, more = map(words.token_to_id, ("k>\n", "k>x"))
    size = words.get_vocab_size()
    assert allowed(rules, [*opening, line], size) == allowed(
        compiled(made, choice=["yes"]), [], size
    )
    assert allowed(rules, [*opening, more], size) == []
