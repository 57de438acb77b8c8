"""Wherever a guide stands, it says what one says that has gone there straight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.capabilities.grammar import GrammarCompiler, Guide, Rules
from quire.core.errors import RequestError
from quire.text.params import Reasoning, SamplingParams, StructuredOutputs
from support.grammars import Words, backend, compiler

EOS = 0
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TEXTS = [
    StructuredOutputs(json=PERSON),
    StructuredOutputs(regex="[a-z]{2,5}(, [a-z]+)*"),
    StructuredOutputs(choice=["yes", "yesterday", "no"]),
    StructuredOutputs(grammar='start: "(" start* ")"'),
    StructuredOutputs(grammar='start: ("(" r | s)+\nr[stop="a"]: /[bc]*/\ns[max_tokens=3]: /d+/'),
    None,
]
OPEN, CLOSE = "<|start|>", "the end"


def encode(text: str) -> list[int]:
    return Words(backend()).encode(text, add_special_tokens=False)


@cache
def rules(text: int, marks: Reasoning | None, budget: int | None) -> Rules:
    params = SamplingParams(
        structured_outputs=TEXTS[text], reasoning=marks, thinking_token_budget=budget
    )
    found = compiler().rules(params)
    assert found is not None
    return found


def masks(places: Sequence[tuple[Guide, Sequence[int], int]]) -> np.ndarray:
    size = backend().get_vocab_size()
    bits = Guide.fill_masks(places, size).view(np.uint8)
    return np.unpackbits(bits, axis=1, count=size, bitorder="little").view(np.bool_)


def mask(guide: Guide, output: Sequence[int], length: int) -> np.ndarray:
    return masks([(guide, output, length)])[0]


# A single token opens where a grammar follows; "open" means that the prompt has done it.
one_token = "a"
MARKS = st.sampled_from(
    [None, Reasoning(one_token, CLOSE, False), Reasoning("<think>", CLOSE, True)]
)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 4), MARKS, st.sampled_from([None, 0, 3]), st.data())
def test_it_does_not_matter_how_it_came_there(
    text: int, marks: Reasoning | None, budget: int | None, data: st.DataObject
) -> None:
    asked = rules(text, marks, None if marks is None else budget)
    guides, output = [Guide(asked)], list[int]()
    for _ in range(data.draw(st.integers(1, 12))):
        guide = guides[data.draw(st.integers(0, len(guides) - 1))]
        deed = data.draw(st.sampled_from(["go on", "go on", "back", "draft", "fork"]))
        if deed == "fork":
            guides.append(guide.fork())
            continue
        if deed == "back":
            start = data.draw(st.integers(0, len(output)))
            for each in guides:
                each.retreat(start)
            del output[start:]
        allowed = mask(guide, output, len(output)).nonzero()[0]
        if deed == "draft":  # a token that may be wrong, and the rows after it
            output.append(data.draw(st.integers(0, 4_000)))
            mask(guide, output, len(output))
            for each in guides:
                each.retreat(len(output) - 1)
            output.pop()
        elif len(allowed) and allowed.tolist() != [EOS]:
            tokens = [int(one) for one in allowed if one != EOS]
            output.append(tokens[data.draw(st.integers(0, len(tokens) - 1))])
        here = mask(guide, output, len(output))
        assert (here == mask(Guide(asked), output, len(output))).all()
        assert here.any()


def test_rows_of_drafts_are_those_of_each_place() -> None:
    asked = rules(0, None, None)
    output = encode('{"name": "x", "age": 3}')
    guide = Guide(asked)
    other = Guide(rules(2, None, None))
    places = [(guide, output, length) for length in range(len(output) + 1)]
    found = masks([(other, [], 0), *places])
    for (_, _, length), row in zip(places, found[1:], strict=True):
        assert (row == mask(Guide(asked), output, length)).all()
        if length < len(output):
            assert row[output[length]]
    assert found[-1].nonzero()[0].tolist() == [EOS]
    assert found[0][encode("yes")[0]] and not found[0][EOS]


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "x" r "c"\nr[stop="a"]: /b*/',
        'start: "x" r "c"\nr[max_tokens=9]: /b*/',
        'start: "x" r "c"\nr[suffix="a"]: /b*/',
        'start: "x" r "c"\nr[lazy]: /b*a/',
    ],
)
def test_drafts_are_taken_back_wherever_a_rule_ends(grammar: str) -> None:
    found = compiler().rules(SamplingParams(structured_outputs=StructuredOutputs(grammar=grammar)))
    assert found is not None
    guide, output, drafts = Guide(found), encode("x"), encode("b") * 2
    for _ in range(4):
        (guide := guide.fork()).retreat(len(output))
        places = [(guide, output + drafts, len(output) + ahead) for ahead in range(3)]
        straight = [(Guide(found), tokens, length) for _, tokens, length in places]
        assert (masks(places) == masks(straight)).all()
        assert guide.failure is None
        output += encode("b")


def test_a_draft_that_is_too_complex_ends_no_text() -> None:
    names = [f"r{number}" for number in range(16)]
    rules = [f'{name}: "b" ({" | ".join(names)})?' for name in names]
    grammar = "\n".join(['start: "x" (/c+/ | r0)', *rules])
    found = compiler().rules(SamplingParams(structured_outputs=StructuredOutputs(grammar=grammar)))
    assert found is not None
    guide, output = Guide(found), encode("x")
    first = mask(guide, output, 1)
    mask(guide, output + encode("b") * 300, 301)
    assert guide.failure is not None
    guide.retreat(1)
    assert (mask(guide, output, 1) == first).all()
    assert guide.failure is None


def test_a_budget_without_marks_is_refused() -> None:
    with pytest.raises(RequestError, match="thinking_token_budget needs"):
        compiler().rules(SamplingParams(thinking_token_budget=3))


def test_reasoning_comes_first_and_is_closed_when_its_budget_is_spent() -> None:
    close, letters = encode(CLOSE), encode("xyz")
    guide = Guide(rules(2, Reasoning("<think>", CLOSE, True), 2))
    output = [letters[0], letters[1]]
    free = mask(guide, output, 1)
    assert free.sum() == len(free) - 1 and not free[EOS]  # it may not end while it thinks
    for place, token in enumerate(close):
        assert mask(guide, output, 2 + place).nonzero()[0].tolist() == [token]
        output.append(token)
    answer = mask(guide, output, len(output))
    assert answer[encode("yes")[0]] and not answer[letters[0]]
    # One that closes by itself is answered at once.
    early = Guide(rules(2, Reasoning("<think>", CLOSE, True), 50))
    assert (mask(early, close, len(close)) == answer).all()


def test_a_text_may_begin_where_reasoning_may() -> None:
    (opening,) = encode(one_token)
    guide = Guide(rules(2, Reasoning(one_token, CLOSE, False), None))
    first = mask(guide, [], 0)
    assert first[opening] and first[encode("yes")[0]] and first.sum() < 20
    assert mask(guide, [opening], 1).sum() == len(first) - 1
    guide.retreat(0)
    answer = encode("no")
    assert mask(guide, answer, len(answer)).nonzero()[0].tolist() == [EOS]


def test_marks_of_several_tokens_or_of_one_kind() -> None:
    assert len(encode("<think>")) > 1
    several = Guide(rules(2, Reasoning("<think>", CLOSE, False), None))
    assert (mask(several, [], 0) == mask(Guide(rules(2, None, None)), [], 0)).all()
    (mark,) = encode(one_token)
    alike, thought = Guide(rules(2, Reasoning(one_token, one_token, False), None)), encode("xyz")
    output = [mark, *thought, mark]
    assert mask(alike, output, len(output) - 1).sum() > 20
    assert mask(alike, output, len(output))[encode("yes")[0]]
    assert mask(alike, output, len(output)).sum() < 20


REFUSED = [
    ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
    ({"json": {"$ref": "http://example.com/schema"}}, "not present"),
    ({"json": {"$ref": "#"}}, "no text"),
    ({"json": {"not": {"pattern": "a"}}}, "not cannot be kept to$"),
    ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
    ({"json": {"enum": [f"{i}:{i * 7919}" for i in range(20_000)]}}, "characters|big"),
    ({"json": {"oneOf": [{"type": "string"}, {"pattern": "a"}]}}, "oneOf.*anyOf can$"),
    ({"regex": "("}, "unclosed"),
    ({"grammar": 'start: "a" |  nowhere'}, "nowhere"),
    ({"grammar": "root ::= ((("}, "cannot be read"),
    ({"grammar": "root ::= " + "(" * 8000}, "cannot be read: it is nested too deeply"),
    ({"structural_tag": {"structures": [{}], "triggers": ["<"]}}, "begin"),
]


@pytest.mark.parametrize(("asked", "why"), REFUSED)
def test_what_cannot_be_is_refused_by_name(asked: dict[str, object], why: str) -> None:
    with pytest.raises(RequestError, match=f"(?s)structured_outputs.*{why}"):
        compiler().rules(SamplingParams(structured_outputs=StructuredOutputs.of(asked)))
    # and leaves nothing behind for the next
    assert compiler().rules(SamplingParams(structured_outputs=TEXTS[2])) is not None


def test_formats_that_nobody_knows_and_values_that_look_like_them() -> None:
    schema = {
        "type": "object",
        "properties": {
            "format": {"type": "string", "format": "path", "maxLength": 2},
            "const": {"const": {"format": "path"}},
            "at": {"type": "string", "format": "date"},
        },
        "required": ["format", "const", "at"],
    }
    asked = StructuredOutputs(
        json=schema, disable_any_whitespace=True, disable_additional_properties=True
    )
    found = compiler().rules(SamplingParams(structured_outputs=asked))
    assert found is not None and found.text is not None
    for text, right in [
        ('{"format":"x/","const":{"format":"path"},"at":"2026-01-31"}', True),
        ('{"format":"x/","const":{},"at":"2026-01-31"}', False),
        ('{"format":"x/","const":{"format":"path"},"at":"someday"}', False),
        ('{"format":"x/","const":{"format":"path"},"at":"2026-01-31","more":1}', False),
    ]:
        tokens = encode(text)
        assert (found.text.deep_copy().try_consume_tokens(tokens) == len(tokens)) is right


def test_the_same_is_compiled_once() -> None:
    first, again = rules(0, None, None), rules.__wrapped__(0, None, None)
    assert first.text is again.text


def test_short_expressions_that_take_much_are_not_kept_as_if_they_took_little() -> None:
    """Such a one takes up to 2 MB, and with ten times the fuel took 180: a thousand were kept."""
    made = compiler.__wrapped__()
    asked = [StructuredOutputs(regex=f"(a{{{count}}}){{999}}") for count in range(900, 980)]
    found = [made.rules(SamplingParams(structured_outputs=each)) for each in asked]
    for place, same in ((-1, True), (0, False)):
        again = made.rules(SamplingParams(structured_outputs=asked[place]))
        assert again is not None and (again.text is found[place].text) is same


def test_who_has_used_a_grammar_up_has_not_done_so_for_those_who_come_after() -> None:
    """Copies share the states of a lexer, of which there may be so many."""
    made = compiler.__wrapped__()
    asked = SamplingParams(structured_outputs=StructuredOutputs(regex="[ab]*a[ab]{300}"))
    before = made.rules(asked)
    letters, seed = encode("a") + encode("b"), random.Random(0)
    while True:
        user = before.text.deep_copy()
        user.try_consume_tokens(seed.choices(letters, k=290))
        if user.is_error():
            break
    after = made.rules(asked)
    assert after.text.deep_copy().try_consume_tokens(letters * 20) == 40


def test_what_others_write_does_not_decide_what_one_can() -> None:
    """With thousands of states for each output, some of them were told that it was too complex."""
    asked = SamplingParams(structured_outputs=StructuredOutputs(regex="[ab]*a[ab]{300}"))
    made = compiler.__wrapped__()
    greedy, own = made.rules(asked), made.rules(asked)
    letters, seed = encode("a") + encode("b"), random.Random(0)
    output = seed.choices(letters, k=40)
    guide = Guide(own)
    size = backend().get_vocab_size()
    Guide.fill_masks([(guide, output, 20)], size)
    while not (user := greedy.text.deep_copy()).is_error():
        user.try_consume_tokens(seed.choices(letters, k=290))
        if user.is_error():
            break
    for length in (20, 21, 40):  # where it stands, and where it goes
        bits = Guide.fill_masks([(guide, output, length)], size)
        straight = (Guide(compiler.__wrapped__().rules(asked)), output, length)
        assert guide.failure is None
        assert (bits == Guide.fill_masks([straight], size)).all()


def test_a_tokenizer_without_a_text_is_refused() -> None:
    without = GrammarCompiler(Words(backend(), readable=False), 10, frozenset({EOS}))
    endless = GrammarCompiler(Words(backend()), 4_096, frozenset())
    for each, why in ((without, "token by token"), (endless, "with an end")):
        with pytest.raises(RequestError, match=why):
            each.rules(SamplingParams(structured_outputs=TEXTS[2]))
