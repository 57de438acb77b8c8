"""Flags of ``quire serve`` as start scripts carry them, typed and in files."""

from __future__ import annotations

import argparse
import ast
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.http.config.server import ServerConfig
from quire.tools.cli import _parser, main
from quire.tools.commands.chat import add_chat
from quire.tools.commands.command import COMMANDS
from quire.tools.commands.flags import options, server_config
from quire.tools.commands.generate import add_generate
from quire.tools.commands.parser import Parser
from quire.tools.commands.serve import add_serve


def parsed(*arguments: str) -> tuple[EngineConfig, ServerConfig]:
    parser = Parser(prog="quire serve")
    add_serve(parser)
    found = parser.parse_args(arguments)
    return EngineConfig.create(options(found)), server_config(found)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def command_parser(name: str) -> argparse.ArgumentParser:
    """Of one that comes with another package."""
    actions = _parser([name])._actions
    (choices,) = (one.choices for one in actions if isinstance(one, argparse._SubParsersAction))
    found: argparse.ArgumentParser = choices[name]
    return found


def test_no_flag_is_taken_for_another_that_begins_like_it() -> None:
    tried = 0
    for parser in (one for name in COMMANDS for one in parsers(command_parser(name))):
        flags = parser._option_string_actions
        for beginning in {flag[:-1] for flag in flags} - flags.keys() - {"-", "--"}:
            with pytest.raises(SystemExit) as caught:
                parser.parse_args([beginning, "8"])
            assert caught.value.code == 2
            tried += 1
    assert tried > 500


def test_no_script_completes_flags() -> None:
    root = Path(__file__).parents[3]
    for folder in ("attacks", "benchmarks", "cluster", "lab", "scripts", "src", "tests"):
        for file in (root / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if "ArgumentParser" not in text:
                continue  # to read all of them takes longer than all other tests here
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ArgumentParser"):
                    given = {keyword.arg: keyword.value for keyword in node.keywords}
                    allowed = given.get("allow_abbrev")
                    assert isinstance(allowed, ast.Constant) and allowed.value is False, file


SAME_ANYWAY = """--pipeline-parallel-size=1 --enable-chunked-prefill
    --trust-remote-code --disable-log-requests --enable-log-requests --disable-log-stats
    --load-format safetensors --tokenizer-mode auto --response-role assistant --task generate"""


def test_flags_that_ask_for_what_is_so_anyway_pass_with_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        assert parsed("some/model", *SAME_ANYWAY.split()) == parsed("some/model")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == SAME_ANYWAY.count("--") == len(set(lines))
    assert "--pipeline-parallel-size changes nothing: ranks divide every layer" in lines


@pytest.mark.parametrize(("arguments", "words"), [
    (["--pipeline-parallel-size", "2"], "may only be 1, not 2: ranks divide every layer"),
    (["--load-format", "dummy"], "auto or safetensors or gguf, not dummy"),
    (["--max-model-length", "9"], "no flag --max-model-length; did you mean --max-model-len?"),
    (["--prot", "8"], "no flag --prot; did you mean --port?"),
    (["-c", "8"], "-c is not here; write --max-model-len N"),
    (["--tensor", "8"], "no flag --tensor"),
    (["--zzzz"], "no flag --zzzz"),
    (["--max-model-len", "many"], "is not an integer"),
    (["--speculative-model", "x"], "write --speculative-config.method draft --speculative-config."),
    (["--num-speculative-tokens=5"], "--speculative-config.num_speculative_tokens N"),
    (["-md", "x.gguf"], "-md is not here; write --speculative-config.method draft"),
    (["-dp", "2"], "-dp is not here; write quire deploy MODEL --replicas N"),
    (["--draft-max", "8"], "write --speculative-config.num_speculative_tokens N"),
    (["--hf-overrides.a", "1", "--hf-overrides", "{}"], "both as a whole and by its keys"),
    (["--hf-overrides.a=1", "--hf-overrides.a.b=1"], "--hf-overrides.a is given both"),
    (["--port.a=1"], "no flag --port.a"),
])  # fmt: skip
def test_a_flag_that_cannot_be_is_told_below_a_line_of_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments)
    assert ended.value.code == 2
    usage, error = capsys.readouterr().err.strip().splitlines()
    assert usage == "usage: quire serve [MODEL] [flags] (quire serve --help lists them)"
    assert words in error


def test_every_subcommand_explains_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "latency", "--input-length", "5"])
    usage, error = capsys.readouterr().err.strip().splitlines()
    assert usage.startswith("usage: quire bench latency [MODEL] [flags]")
    assert error == "quire: error: there is no flag --input-length; did you mean --input-len?"


def test_dashes_underscores_and_endings_of_numbers() -> None:
    engine, server = parsed("--max_model_len=32k", "--max-num-batched-tokens", "4K", "--api_key",
                            "a_b", "c")  # fmt: skip
    assert (engine.max_model_len, engine.max_num_batched_tokens) == (32_000, 4096)
    assert server.api_key == ("a_b", "c")


FILE = """
model: some/model
max_model_len: 512
port: 9
served-model-name: [a, b]
allowed-origins: ["http://x", "http://y"]
api-key: secret
enable-prefix-caching: false
trust-remote-code: true
disable-log-requests: false
hf-overrides: {rope_theta: 5.0}
swap-space: 1.5
dtype: null
"""


def test_flags_from_a_file_give_way_to_typed_ones(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(FILE)
    engine, server = parsed("--config", str(path), "--port", "10", "--no-enable-prefix-caching")
    assert (engine.model, engine.max_model_len, engine.swap_space) == ("some/model", 512, 1.5)
    assert engine.enable_prefix_caching is False and engine.hf_overrides == {"rope_theta": 5.0}
    assert (server.port, server.served_model_name) == (10, ("a", "b"))
    assert server.allowed_origins == ("http://x", "http://y") and server.api_key == ("secret",)
    engine, server = parsed("other/model", f"--config={path}", "--served-model-name", "c")
    assert (engine.model, server.served_model_name) == ("other/model", ("c",))


SPECULATION = {"method": "ngram", "num_speculative_tokens": 5}


@pytest.mark.parametrize("typed", [
    ["--speculative-config", json.dumps(SPECULATION)],
    ["--speculative_config=" + json.dumps(SPECULATION)],
    ["--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens", "5"],
    ["--speculative-config.num-speculative-tokens=5", "--speculative-config.method=ngram"],
])  # fmt: skip
def test_an_object_comes_as_json_by_its_keys_or_in_a_file(tmp_path: Path, typed: list[str]) -> None:
    for add_flags in (add_serve, add_generate, add_chat):
        parser = Parser(prog="quire")
        add_flags(parser)
        found = parser.parse_args(typed)
        assert EngineConfig.create(options(found)).speculative_config == SPECULATION
    path = tmp_path / "serve.yaml"
    path.write_text("speculative-config: {method: suffix, num_speculative_tokens: 9}")
    asked = parsed("--config", str(path))[0].speculation
    assert asked is not None and (asked.method, asked.num_speculative_tokens) == ("suffix", 9)
    assert parsed("--config", str(path), *typed)[0].speculative_config == SPECULATION


@pytest.mark.parametrize(("content", "words"), [
    ("max-model-length: 5", "did you mean --max-model-len?"),
    ("- a", "keys and values"),
    ("#" * 1_048_577, "more than 1,048,576 characters"),
    ("a: [", "cannot be read"),
    ("a: !!python/object/apply:os.system [true]", "cannot be read"),
    (None, "No such file"),
])  # fmt: skip
def test_a_file_that_cannot_be_read(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "serve.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        parsed("--config", str(path))
    assert words in str(refused.value)


def test_lists_come_one_by_one_or_as_json() -> None:
    assert ServerConfig(host="0.0.0.0").allowed_origins == ("*",)
    assert ServerConfig(api_key=["secret"]).allowed_origins == ("*",)
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert ServerConfig(host=host).allowed_origins == ("localhost",)
    for given in (["[]"], ['["http://a"]'], ["http://a", "http://b"]):
        found = parsed("--allowed-origins", *given)[1].allowed_origins
        assert list(found) == ([] if given == ["[]"] else [one.strip('[]"') for one in given])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"allow_credentials": True}, "allow_credentials needs allowed_origins"),
    ({"allowed_hosts": ["x"], "api_key": ["k"]}, "allowed_hosts does nothing with an api_key"),
    ({"allowed_hosts": ["x"], "host": "0.0.0.0"}, "or with a host that others reach"),
    ({"allowed_origins": ["[1]"]}, "allowed_origins must hold texts"),
    ({"ssl_keyfile": __file__}, "ssl_keyfile does nothing without ssl_certfile"),
    ({"ssl_certfile": "/nowhere"}, "ssl_certfile /nowhere cannot be read"),
    ({"ssl_certfile": __file__, "ssl_cert_reqs": 2}, "ssl_cert_reqs needs ssl_ca_certs"),
    ({"root_path": "llm"}, "root_path must be a path such as /llm"),
    ({"root_path": "/llm/"}, "root_path must be a path such as /llm"),
    ({"uvicorn_log_level": "loud"}, "uvicorn_log_level must be one of critical"),
    ({"max_logprobs": 101}, "max_logprobs must be an integer from -1 to 100"),
    ({"default_chat_template_kwargs": "[1]"}, "default_chat_template_kwargs must be a JSON object"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=lambda value: str(value)[:30])
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerConfig(**settings)


@pytest.mark.parametrize(("settings", "words"), [
    ({"hf_overrides": "{"}, "hf_overrides is not valid JSON"),
    ({"speculative_config": {"method": ["ngram"]}}, "method must be one of auto, ngram"),
    ({"speculative_config": '{"model": 5}'}, "model must be a text, got 5"),
    ({"override_generation_config": 5}, "override_generation_config must be a JSON object"),
    ({"generation_config": "somewhere"}, "must be auto, none, vllm or a directory"),
])  # fmt: skip
def test_an_engine_s_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineConfig(**settings)
    assert EngineConfig(generation_config="vllm").generation_config == "none"


@pytest.mark.parametrize("columns", ["80", "200"])
def test_help_shows_what_matters_first_and_what_values_may_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: quire serve [MODEL] [flags]\n")
    assert "--scheduling-policy {fcfs,priority,fair}" in text and "--swap-space GiB" in text
    assert "--[no-]dashboard " in text and "TEXT" not in text
    assert max(map(len, text.splitlines())) <= min(int(columns), 100)
    groups = [line[:-1] for line in text.splitlines() if line[-1:] == ":" and line[0] != " "]
    assert groups[2] == "settings used most" and "security" in groups
    first = text.split("settings used most:\n")[1].split("\n\n")[0]
    assert sum(line.startswith("  -") for line in first.splitlines()) == 10
