"""Where a server's API keys come from, and that nobody is shown one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.http.config.server import ServerConfig
from quire.tools.commands.flags import add_settings, server_config


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIRE_API_KEY", "VLLM_API_KEY", "LLAMA_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def write(path: Path, content: bytes, mode: int = 0o600) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def from_command_line(*flags: str) -> ServerConfig:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_settings(parser, [ServerConfig])
    return server_config(parser.parse_args(flags))


def test_keys_of_all_sources_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = write(tmp_path / "keys", b"# ours\r\n\r\n  file-1  \r\nboth\n #file-2\n")
    monkeypatch.setenv("QUIRE_API_KEY", "env-1,both")
    config = from_command_line("--api-key", "a", "b", "--api-key-file", file, "--api-key", "c")
    assert config.api_key == ("a", "b", "c", "file-1", "both", "env-1")
    assert ServerConfig().api_key == ("env-1", "both")
    monkeypatch.delenv("QUIRE_API_KEY")
    assert ServerConfig().api_key == ()
    assert ServerConfig(api_key="one-key").api_key == ("one-key",)  # not seven of a letter


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([""], r"api_key, key 1 of 1, is empty"),
        (["good", "two words"], r"api_key, key 2 of 2, must be of printable ASCII"),
        (["tab\t"], "printable ASCII"),
        (["null\0"], "printable ASCII"),
        (["schlüssel"], "printable ASCII"),
        (["delete\x7f"], "printable ASCII"),
        ([b"bytes"], "must be a text"),
    ],
)
def test_a_key_that_nobody_could_send_is_refused(keys: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        ServerConfig(api_key=keys)
    assert str(keys[-1]) not in str(refused.value) or not keys[-1]


@pytest.mark.parametrize("value", ["", ",", "good,", "good, too"])
def test_so_is_one_of_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", value)
    with pytest.raises(ConfigError, match=r"QUIRE_API_KEY, key \d of \d,"):
        ServerConfig()


def test_keys_that_guard_others_guard_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert ServerConfig().api_key == ("secret",)
    monkeypatch.setenv("QUIRE_API_KEY", "own")
    monkeypatch.setenv("LLAMA_API_KEY", "one,two")
    monkeypatch.setenv("LLAMA_ARG_API_KEY_FILE", write(tmp_path / "keys", b"kept\n"))
    assert ServerConfig(api_key=["given"]).api_key == (
        *("given", "kept", "own", "secret", "one", "two"),
    )
    monkeypatch.setenv("VLLM_API_KEY", "")
    with pytest.raises(ConfigError, match="VLLM_API_KEY, key 1 of 1, is empty"):
        ServerConfig()


@pytest.mark.parametrize(("variable", "setting"), [
    ("OLLAMA_ORIGINS", "allowed_origins"),
    ("LLAMA_ARG_CORS_ORIGINS", "allowed_origins"),
    ("LLAMA_ARG_SSL_KEY_FILE", "ssl_keyfile"),
    ("LLAMA_ARG_SSL_CERT_FILE", "ssl_certfile"),
])  # fmt: skip
def test_what_else_guards_others_is_not_passed_over(
    variable: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "https://here.example")
    with pytest.raises(ConfigError, match=f"{variable} is set, .* give {setting} in its place"):
        ServerConfig()
    if setting == "allowed_origins":
        assert ServerConfig(allowed_origins=["https://here.example"]).api_key == ()
        monkeypatch.setenv(variable, "*")
        assert ServerConfig().allowed_origins == ("localhost",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no key"),
        (b"# none\n\n", "holds no key"),
        (b"good\nsecret words\n", r"line 2, must be of printable ASCII"),
        ("\ufeffsecret".encode(), r"line 1, must be of printable ASCII"),
        (b"\xff\xfesecret", "cannot be read: .* it is not UTF-8"),
        (None, "cannot be read: .* No such file"),
        (b"#" * 1_048_577, "more than 1,048,576 characters"),
    ],
)
def test_a_file_without_keys_is_refused(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"api_key_file.*{message}") as refused:
        ServerConfig(api_key_file=str(path))
    assert "secret" not in str(refused.value)


def test_a_directory_is_no_file_of_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="api_key_file cannot be read"):
        ServerConfig(api_key_file=str(tmp_path))


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o640, False), (0o600, False)])
def test_a_file_that_everybody_can_read_is_hinted_at(
    mode: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ServerConfig(api_key_file=write(tmp_path / "keys", b"secret\n", mode))
    assert ("can be read by every user" in caplog.text) == warned
    assert "secret" not in caplog.text


def test_a_config_does_not_show_its_keys(tmp_path: Path) -> None:
    config = ServerConfig(api_key=["secret"], api_key_file=write(tmp_path / "k", b"hidden\n"))
    assert "secret" not in repr(config) and "hidden" not in repr(config)


def test_caches_are_apart_where_there_are_several_keys() -> None:
    assert not ServerConfig().cache_salt_by_key
    assert not ServerConfig(api_key=["a"]).cache_salt_by_key
    assert not ServerConfig(api_key=["a", "a"]).cache_salt_by_key
    assert ServerConfig(api_key=["a", "b"]).cache_salt_by_key
    assert not ServerConfig(api_key=["a", "b"], cache_salt_by_key=False).cache_salt_by_key


@pytest.mark.parametrize("name", ["cache_salt_by_key", "api_key_metrics"])
def test_what_needs_a_key_is_refused_without_one(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} needs an api_key"):
        ServerConfig(**{name: True})  # type: ignore[arg-type]
    ServerConfig(**{name: True}, api_key=["a"])  # type: ignore[arg-type]
