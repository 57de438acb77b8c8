"""A parameter is declared once, and all that is told of it is what it does."""

from __future__ import annotations

import argparse
import math
from dataclasses import Field, fields
from typing import Any

import pytest

from quire.core.errors import RequestError
from quire.text.params import SamplingParams
from quire.text.params.parameters import description
from quire.tools.cli import main
from quire.tools.commands import flags

PARAMETERS = fields(SamplingParams)


def by_name(parameter: Field[Any]) -> str:
    return parameter.name


def refused(parameter: Field[Any], value: object) -> bool:
    try:
        parameter.metadata["allowed"].check(parameter.name, value)
    except RequestError as error:
        assert error.field == parameter.name and str(error).startswith(f"{parameter.name} ")
        return True
    return False


@pytest.mark.parametrize("parameter", PARAMETERS, ids=by_name)
def test_its_default_is_allowed(parameter: Field[Any]) -> None:
    if parameter.default is None:
        assert "None" in str(parameter.type)
    else:
        assert not refused(parameter, parameter.default)


@pytest.mark.parametrize("parameter", PARAMETERS, ids=by_name)
def test_none_is_allowed_where_its_type_says_so(parameter: Field[Any]) -> None:
    if "None" in str(parameter.type):
        assert getattr(SamplingParams(**{parameter.name: None}), parameter.name) is None
    elif parameter.default == ():  # what vLLM's own default of lists is
        assert getattr(SamplingParams(**{parameter.name: None}), parameter.name) == ()
    else:
        with pytest.raises(RequestError, match=f"^{parameter.name} must"):
            SamplingParams(**{parameter.name: None})


@pytest.mark.parametrize("parameter", PARAMETERS, ids=by_name)
def test_its_range_is_where_it_is_told(parameter: Field[Any]) -> None:
    schema = dict(parameter.metadata["allowed"].schema)
    step = 1 if "int" in str(parameter.type) else 1e-6
    if (low := schema.pop("minimum", None)) is not None:
        assert not refused(parameter, low) and refused(parameter, low - step)
    if (low := schema.pop("exclusiveMinimum", None)) is not None:
        assert refused(parameter, low) and not refused(parameter, low + step)
    if (high := schema.pop("maximum", None)) is not None:
        assert not refused(parameter, high) and refused(parameter, high + step)
    if (most := schema.pop("maxItems", None)) is not None:
        item: Any = 1 if "int" in str(parameter.type) else "x"
        least = schema.pop("minItems", 0)
        assert not refused(parameter, [item] * most) and refused(parameter, [item] * (most + 1))
        assert not least or (not refused(parameter, [item] * least) and refused(parameter, []))
    if (most := schema.pop("maxProperties", None)) is not None:
        assert not refused(parameter, dict.fromkeys(range(most), 0))
        assert refused(parameter, dict.fromkeys(range(most + 1), 0))
    for value in schema.pop("enum", ()):
        assert not refused(parameter, value)
    assert not schema, "something is told that is not tested"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("n", "1 to 256"), ("max_tokens", "at least 0"), ("seed", "-2^63 to 2^64 - 1"),
        ("top_p", "above 0, at most 1"), ("temperature", "at least 0"), ("min_p", "0 to 1"),
        ("repetition_penalty", "above 0"), ("early_stopping", 'true, false or "never"'),
        ("stop", "at most 64 of 256 characters"), ("ignore_eos", ""),
        ("logit_bias", "at most 1,024, each -100 to 100"),
    ],
)  # fmt: skip
def test_its_range_in_words(name: str, words: str) -> None:
    (parameter,) = (one for one in PARAMETERS if one.name == name)
    assert parameter.metadata["allowed"].words == words


def test_a_smallest_number_that_is_too_little() -> None:
    for name, limit in (("top_p", r"in \(0, 1\], got 0"), ("repetition_penalty", "above 0, got 0")):
        with pytest.raises(RequestError, match=f"{name} must be {limit}$"):
            SamplingParams(**{name: 0.0})
        SamplingParams(**{name: math.ulp(0.0)})


# -- as flags ----------------------------------------------------------------------------------


def test_flags_tell_what_is_told_of_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for parameter in PARAMETERS:
        flag = parameter.name.replace("_", "-") + " "
        shown = f"--{flag}" in told or f"--[no-]{flag}" in told
        if parameter.metadata["flag"]:
            assert shown and description(parameter) in told
        elif parameter.name != "seed":  # there is one of the engine's
            assert not shown


def test_what_is_given_by_flags_are_parameters() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    flags.add_sampling_flags(parser, max_tokens=128)
    given = ["--top-p", "0.5", "--n", "2", "--stop", "a", "--stop", "b", "--bad-words", "c",
             "--no-skip-special-tokens", "--ignore-eos"]  # fmt: skip
    assert SamplingParams(**flags.sampling_options(parser.parse_args(given))) == SamplingParams(
        top_p=0.5, n=2, stop=("a", "b"), bad_words=["c"], skip_special_tokens=False,
        ignore_eos=True, max_tokens=128,
    )  # fmt: skip
    assert flags.sampling_options(parser.parse_args([])) == {"max_tokens": 128}


# -- as vLLM has them --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "neutral", "other"), [
    ("logits_processors", [], ["x"]),
    ("spaces_between_special_tokens", True, False),
    ("flat_logprobs", False, True),
    ("output_kind", 2, 1),
    ("extra_args", {}, {"a": 1}),
    ("truncate_prompt_tokens", None, 4),
    ("trace_decode_token_ids", None, [1]),
])  # fmt: skip
def test_vllm_s_others_may_be_as_they_are_by_default(
    name: str, neutral: object, other: object
) -> None:
    assert SamplingParams(**{name: neutral}) == SamplingParams(**{name: None}) == SamplingParams()
    with pytest.raises(RequestError, match=f"^{name} may only be None"):
        SamplingParams(**{name: other})


def test_a_clone_is_equal_and_another() -> None:
    params = SamplingParams(n=2, stop=["a"], logit_bias={1: 2.0})
    clone = params.clone()
    assert clone == params and clone is not params
