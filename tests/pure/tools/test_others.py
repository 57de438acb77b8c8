"""What becomes of flags and variables that others' start scripts have."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from functools import cache
from itertools import chain

import pytest

from quire.core.errors import ConfigError
from quire.engine.config.neutral import ANY
from quire.tools.cli import main
from quire.tools.commands.others import (
    LLAMA_SERVER,
    NEUTRAL,
    PROGRAMS,
    VLLM,
    Program,
    answers_to,
    flag_of,
    lost,
)
from quire.tools.commands.parser import Parser
from quire.tools.commands.serve import add_serve, serve


@cache
def parser() -> Parser:
    made = Parser(prog="quire serve")
    add_serve(made)
    return made


def flags(names: str) -> Iterator[str]:
    return (name for name in names.split() if name.startswith("-"))


def all_names(program: Program) -> list[str]:
    tables = (program.same, program.instead, program.cannot)
    texts = chain([program.works], *(table.values() for table in tables))
    return [name.partition("=")[0] for text in texts for name in text.split()]


def refused(flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        parser().parse_args(["some/model", flag, "1"])
    return capsys.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_each_name_has_one_answer(program: Program) -> None:
    names = all_names(program)
    twice = {name for name in names if names.count(name) > 1}
    assert not twice


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_what_works_is_a_flag(program: Program) -> None:
    served = parser()._option_string_actions
    for flag in flags(program.works):
        assert served[flag].help != argparse.SUPPRESS, flag


def test_what_changes_nothing_passes_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    serves = parser()
    for text in LLAMA_SERVER.same.values():
        for name in flags(text):
            flag, takes, values = name.partition("=")
            given = [flag, *([values.split("|")[0] or "5"] if takes else [])]
            caplog.clear()
            with caplog.at_level(logging.INFO):
                assert serves.parse_args(["some/model", *given]).model == "some/model"
            assert f"{flag} changes nothing" in caplog.text


def test_options_of_vllm_pass_with_what_is_so_anyway_and_say_why_they_do_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    serves = parser()
    for one in NEUTRAL:
        flag = flag_of(one)
        if answers_to(flag):
            continue
        value = "5" if one.values in ((), (ANY,)) else str(one.values[0])
        spelled = [flag, value]
        if one.is_switch:
            spelled = [flag if one.values[0] else f"--no-{flag[2:]}"]
        if one.values:
            assert serves.parse_args(spelled).model is None
        else:
            assert one.why in refused(flag, capsys)


@pytest.mark.parametrize("program", (VLLM, LLAMA_SERVER), ids=lambda one: one.name)
def test_what_is_written_otherwise_or_cannot_be_is_told(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    served = parser()._option_string_actions
    for table, before in ((program.instead, "write "), (program.cannot, "")):
        for text, names in table.items():
            for flag in flags(names):
                if flag not in served:  # --device is ours, and checks its values
                    assert f"{before}{text}" in refused(flag, capsys), flag


def test_what_is_to_be_written_is_there() -> None:
    served = parser()._option_string_actions
    for program in PROGRAMS:
        for text in program.instead:
            for word in flags(text.replace(",", " ").replace(":", " ")):
                name = word.partition(".")[0]
                assert name in served or "quire deploy" in text, text


def test_two_meanings_are_both_told(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused("-n", capsys)
    assert "for vLLM's, write --nnodes N; for llama.cpp's, how long an answer is" in error


def test_variables_that_mean_something_have_a_line() -> None:
    lines = list(lost({
        "OLLAMA_CONTEXT_LENGTH": "8192", "LLAMA_ARG_CTX_SIZE": "1", "VLLM_USE_MODELSCOPE": "1",
        "VLLM_API_KEY": "k", "OLLAMA_FLASH_ATTENTION": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SOMETHING_NEW": "1", "HOME": "/", "PATH": "",
    }))  # fmt: skip
    assert lines == [
        "the variable LLAMA_ARG_CTX_SIZE is not read here: "
        "write --max-model-len N (of each request)",
        "the variable OLLAMA_CONTEXT_LENGTH is not read here: write --max-model-len N",
        "the variable VLLM_SOMETHING_NEW is not read here",
        "the variable VLLM_USE_MODELSCOPE is not read here: models are Hugging Face's",
    ]


def test_of_variables_that_begin_alike_a_name_itself_counts_before() -> None:
    lines = list(lost({
        "VLLM_ROCM_USE_AITER": "1", "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_SGL_KERNEL": "1",
    }))  # fmt: skip
    assert lines == [
        "the variable VLLM_CPU_KVCACHE_SPACE is not read here: write --kv-cache-memory-bytes SIZE",
        "the variable VLLM_ROCM_USE_AITER is not read here: graphics processors are NVIDIA's",
    ]


@pytest.mark.parametrize("spelled", [["-m", "/nowhere"], ["--model", "/nowhere"], ["/nowhere"]])
def test_a_model_may_be_named_as_others_do(
    spelled: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *spelled]) == 1
    assert "/nowhere: there is no such file or directory" in capsys.readouterr().err


def test_two_models_cannot_be_named() -> None:
    with pytest.raises(ConfigError, match="two models are named: a and b"):
        serve(parser().parse_args(["a", "--model", "b"]))
