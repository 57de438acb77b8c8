"""Real texts of a real engine keep to what is asked of them, whatever the sampling."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jsonschema
import pytest

from quire.core.errors import RequestError
from quire.engine.llm import LLM
from quire.engine.outputs import RequestOutput
from quire.text.params import Reasoning, SamplingParams, StructuredOutputs

HOT: dict[str, Any] = {"temperature": 2.0, "seed": 1, "max_tokens": 150}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


ASKED: list[tuple[dict[str, Any], Callable[[str], Any]]] = [
    ({"json": PERSON}, is_person),
    ({"json": json.dumps(PERSON), "disable_any_whitespace": True}, is_person),
    ({"json_object": True}, is_object),
    ({"json": True}, lambda text: json.loads(text) is not Ellipsis),
    ({"regex": r"[0-9]{3}-[a-z]{1,9}x"}, re.compile(r"[0-9]{3}-[a-z]{1,9}x").fullmatch),
    ({"choice": ["yes", "no", 'é"\n\\x']}, {"yes", "no", 'é"\n\\x'}.__contains__),
    ({"grammar": 'root ::= "a" [0-9]+ ("x" | "yz")'}, re.compile("a[0-9]+(x|yz)").fullmatch),
    (
        {"grammar": 'start: "(" start? ")"'},
        lambda t: t == "(" * (len(t) // 2) + ")" * (len(t) // 2),
    ),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(max_model_len=512)
    yield made
    usage = made.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"


def structured(asked: dict[str, Any], **others: Any) -> SamplingParams:
    return SamplingParams(**{**HOT, "structured_outputs": StructuredOutputs(**asked), **others})


def serve(llm: LLM, params: list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate(["The answer:"] * len(params), params, use_tqdm=False)


def test_texts_that_end_are_what_was_asked_for(llm: LLM) -> None:
    params = [structured(asked, n=3) for asked, _ in ASKED]
    finished = 0
    for one, (_, right) in zip(serve(llm, params), ASKED, strict=True):
        for output in one.outputs:
            assert output.finish_reason in ("stop", "length")
            if output.finish_reason == "stop":
                finished += 1
                assert right(output.text), output.text
    assert finished > 12


def test_beams_keep_to_it_and_are_fewer_where_no_more_can_be(llm: LLM) -> None:
    search = {"use_beam_search": True, "temperature": 0.0, "seed": None, "n": 4}
    many, one = serve(
        llm,
        [structured({"json": PERSON}, **search), structured({"regex": "x"}, **search)],
    )
    assert len(many.outputs) == 4
    for output in many.outputs:
        assert output.finish_reason == "length" or is_person(output.text)
    assert 1 <= len(one.outputs) < 4
    assert {output.text for output in one.outputs} == {"x"}


def test_other_fields_do_not_get_in_its_way(llm: LLM) -> None:
    choice = {"choice": ["yes", "no"]}
    late, endless, biased, stopped = serve(
        llm,
        [
            structured(choice, min_tokens=20),
            structured(choice, ignore_eos=True),
            structured(choice, logit_bias={5: 100.0}, frequency_penalty=2.0, logprobs=2),
            structured({"json": PERSON}, stop=['"tags"']),
        ],
    )
    for one in (late, endless, biased):
        assert one.outputs[0].text in ("yes", "no")
        assert one.outputs[0].finish_reason == "stop"
    assert stopped.outputs[0].text.lstrip().startswith("{")
    # Log-probabilities are the model's: the likeliest need not be allowed.
    table = biased.outputs[0].logprobs
    assert table is not None and all(len(one) >= 2 for one in table)
    chosen = biased.outputs[0].token_ids
    assert all(t[token].rank > 1 for t, token in zip(table, chosen, strict=True))


def test_nothing_left_to_choose_ends_that_request_only(llm: LLM) -> None:
    llm.engine.add_request("stuck", "Hi", structured({"regex": "x+"}, allowed_token_ids=[5]))
    llm.engine.add_request("well", "Hi", structured({"choice": ["yes"]}))
    finals = {}
    while llm.engine.has_work:
        finals |= {d.request_id: d for d in llm.engine.step() if d.final is not None}
    failure = finals["stuck"].failure
    assert isinstance(failure, RequestError) and "leave no token" in str(failure)
    assert finals["well"].final is not None and finals["well"].final.outputs[0].text == "yes"


def test_a_budget_closes_reasoning_and_the_text_begins_after_it(llm: LLM) -> None:
    marks = Reasoning("<think>", "</think>", open=True)
    (one,) = serve(
        llm,
        [structured({"choice": ["yes", "no"]}, reasoning=marks, thinking_token_budget=6, n=4)],
    )
    encode = partial(llm.engine.input_processor.tokenizer.encode, add_special_tokens=False)
    for output in one.outputs:
        thought, close, text = output.text.partition("</think>")
        assert close and text in ("yes", "no")
        tokens = [encode("</think>"), output.token_ids]
        place = next(i for i in range(7) if tokens[1][i : i + len(tokens[0])] == tokens[0])
        assert llm.engine.input_processor.tokenizer.decode(tokens[1][:place]) == thought
    (free,) = serve(
        llm, [SamplingParams(**HOT, reasoning=marks, thinking_token_budget=0, ignore_eos=True)]
    )
    assert free.outputs[0].text.startswith("</think>")
    assert len(free.outputs[0].token_ids) == HOT["max_tokens"]


def test_texts_that_look_like_special_tokens_are_written_however_they_are_sampled(llm: LLM) -> None:
    """Once such a token stood for them, and then anything might be written, with success."""
    ends = [f"a{mark}b" for mark in ("<|endoftext|>", "<|end|>", "<|user|>")]
    marks = Reasoning("<think>", "</think>", open=True)
    ways: list[dict[str, Any]] = [
        {"n": 3},
        {"min_tokens": 30},
        {"ignore_eos": True},
        {"use_beam_search": True, "temperature": 0.0, "seed": None, "n": 2},
        {"reasoning": marks, "thinking_token_budget": 4},
        {"logit_bias": {0: 100.0, 4: 100.0}, "bad_words": ["a", "<"]},
    ]
    asked = [(end, structured({"choice": [end]}, **way)) for way in ways for end in ends]
    for (end, _), one in zip(asked, serve(llm, [each for _, each in asked]), strict=True):
        for output in one.outputs:
            assert output.finish_reason == "stop"
            assert output.text.rpartition("</think>")[2] == end
    (cut,) = serve(llm, [structured({"choice": ends[:1]}, max_tokens=3)])
    assert cut.outputs[0].finish_reason == "length"
    assert cut.outputs[0].text and ends[0].startswith(cut.outputs[0].text)


def test_drafts_of_what_must_come_are_texts_too() -> None:
    """The tokens that are drafted for a text are those that it mostly has, and none is special."""
    made = LLM(
        max_model_len=256, speculative_config={"method": "ngram", "num_speculative_tokens": 4}
    )
    text = "It ends with <|endoftext|> and with <|end|>, which are no ends."
    asked = {"json": {"const": text}}
    (one,) = serve(made, [structured(asked)])
    assert json.loads(one.outputs[0].text) == text and one.outputs[0].finish_reason == "stop"
    tokenizer = made.engine.input_processor.tokenizer
    assert not set(one.outputs[0].token_ids[:-1]) & tokenizer.special_ids
    usual = tokenizer.encode('"It ends with', add_special_tokens=False)
    assert list(one.outputs[0].token_ids[: len(usual)]) == list(usual)


def test_numbers_of_ids_are_not_rounded(llm: LLM) -> None:
    ids = [1234567890123456789, 2**53 + 1]
    schema = {"type": "object", "properties": {"id": {"enum": ids}}, "required": ["id"],
              "additionalProperties": False}  # fmt: skip
    (one,) = serve(llm, [structured({"json": schema}, n=4)])
    for output in one.outputs:
        assert json.loads(output.text)["id"] in ids


def test_a_number_without_bounds_ends(llm: LLM) -> None:
    digits = {
        str(digit): llm.engine.input_processor.tokenizer.token_id(str(digit)) for digit in range(10)
    }
    likely = {token: 90.0 for token in digits.values() if token is not None}
    (one,) = serve(llm, [structured({"json": {}}, logit_bias=likely, temperature=0.0, n=1)])
    assert one.outputs[0].finish_reason == "stop" and len(one.outputs[0].text) < 150
    assert isinstance(json.loads(one.outputs[0].text), (int, float))
