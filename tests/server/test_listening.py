"""Host and port are had, or refused in one line, before a model is loaded."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from quire.core.errors import ConfigError
from quire.http.guards.listening import bound, listen
from quire.tools.cli import main
from support.live_server import PATIENCE


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: object) -> None:
        raise AssertionError("a model is being loaded")

    monkeypatch.setattr("quire.engine.assembly.build_engine", load)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_refused(
    host: str, taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--host", host, "--port", str(taken)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"quire: error: port {taken} of {host} is in use: choose another, or 0 for one that is free"
    )


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "no.such.host.invalid"], "host 'no.such.host.invalid' cannot be resolved"),
        (["--host", "a..b"], "host 'a..b' cannot be resolved"),
        (["--host", "a" * 70], "cannot be resolved"),
        (["--host", "203.0.113.7"], "host '203.0.113.7' is not an address of this machine"),
        (["--port", "65536"], "port must be an integer from 0 to 65535, got 65536"),
        (["--port", "-1"], "port must be an integer from 0 to 65535, got -1"),
        (["--threads", "100000"], "threads must be an integer from 1 to"),
        (["--threads", "0"], "threads must be an integer from 1 to"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *flags]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("quire: error: ") and message in line


def test_a_privileged_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    refusal = r"port 80 may not be used by this user: .* 1024 up"
    with pytest.raises(ConfigError, match=refusal), bound("127.0.0.1", 80):
        pass


def test_who_binds_but_does_not_listen_refuses_clients() -> None:
    with bound("127.0.0.1", 0) as (one,):
        port = one.getsockname()[1]
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
        listen([one])
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) == 0
    with socket.socket() as client:  # closed at the end, whatever happened
        assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_the_slower_of_two_that_start_is_refused() -> None:
    """Both have bound the port while neither listened."""
    with bound("127.0.0.1", 0) as (first,):
        port = first.getsockname()[1]
        with bound("127.0.0.1", port) as (second,):
            listen([first])
            with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
                listen([second])


def test_all_addresses_of_a_host_have_one_port() -> None:
    with bound("", 0) as sockets:
        assert len({one.getsockname()[1] for one in sockets}) == 1
        families = {one.family for one in sockets}
        assert socket.AF_INET in families and len(families) == len(sockets)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_the_empty_address_of_ipv6_serves_ipv4_too() -> None:
    try:
        with bound("::", 0) as (one,):
            listen([one])
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", one.getsockname()[1])) == 0
    except ConfigError:
        pytest.skip("this machine has no IPv6")


def test_the_command_serves_on_the_port_that_it_took() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "quire", "serve", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--kv-cache-memory-bytes", "8MiB"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process:
        assert process.stderr is not None
        lines = (re.search(r"http://127.0.0.1:[1-9]\d+", line) for line in process.stderr)
        url = next(found for found in lines if found)
        assert httpx.get(f"{url[0]}/health", timeout=PATIENCE).status_code == 200
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in rest
