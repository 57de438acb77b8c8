"""Where a command's output goes, and what becomes of the command when it cannot go there."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.tools.cli import main

SIMULATE = ("simulate", "llama-3-8b", "--input", "50", "--output", "5", "--requests", "5")


def quire(*words: str | bytes, encoding: str = "utf-8", **streams: int) -> tuple[int, str]:
    """Status, and what was written to the error stream."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from quire.tools.cli import main; sys.exit(main())",
            *words,
        ],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        stderr=subprocess.PIPE,
        **streams,
    )
    return done.returncode, done.stderr.decode()


def test_a_reader_that_has_gone_ends_a_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert quire(*SIMULATE, stdout=writing) == (128 + signal.SIGPIPE, "")
    finally:
        os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_does_not_fit_is_an_error_in_a_line() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        status, said = quire(*SIMULATE, stdout=full.fileno())
    assert status == 1
    assert said == "quire: error: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("fleet", [(), ("--replicas", "2")])
def test_a_file_that_does_not_fit_is_named(
    fleet: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*SIMULATE, *fleet, "--requests-out", "/dev/full")) == 1
    assert "/dev/full cannot be written: No space left on device" in capsys.readouterr().err


def test_a_file_of_flags_that_cannot_be_read_is_an_error_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(("serve", "--config", "/nowhere/flags.yaml")) == 1
    said = capsys.readouterr().err
    assert said.startswith("quire: error: config /nowhere/flags.yaml cannot be read")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str, tmp_path: Path) -> None:
    """A service manager may start a command without them; no file takes their place."""
    out = tmp_path / "requests.csv"
    program = "import sys; from quire.tools.cli import main; sys.exit(main())"
    command = shlex.join([sys.executable, "-c", program, *SIMULATE, "--requests-out", str(out)])
    done = subprocess.run(f"{command} {closed}", shell=True, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(out.read_text().splitlines()) == 6


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_what_is_typed_and_no_text_is_read_all_the_same(encoding: str) -> None:
    program = """from quire.tools.commands.chat import _screen
print(ascii(_screen(markdown=False).read()))"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": encoding}, input=b"h\xff\n", stdout=subprocess.PIPE,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == rb"'h\ufffd'"


def test_a_path_that_cannot_be_shown_is_shown_in_escapes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace = os.fsencode(tmp_path) + b"/caf\xc3\xa9 \xff.csv"
    Path(os.fsdecode(trace)).write_text("in,out\n50,5\n60,6\n")
    report = os.fsencode(tmp_path) + b"/caf\xc3\xa9 \xff"
    command = (b"simulate", b"llama-3-8b", b"--columns", b"prompt=in,output=out", b"--trace", trace)
    status, said = quire(*command, b"--report", report, encoding="ascii", stdout=subprocess.DEVNULL)
    assert (status, "Traceback" in said) == (0, False)
    assert r"caf\xe9 \udcff/report.html" in said
    assert r"café \udcff" in (Path(os.fsdecode(report)) / "report.html").read_text()


def test_no_directory_for_swapped_blocks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    assert torch
    from quire.execution.kv.swap_file import SwapFile

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)

    class Blocks:
        block_bytes = 64

    with pytest.raises(ConfigError, match="swap_path must be given: No usable temporary directory"):
        SwapFile(None, 1, Blocks())  # type: ignore[arg-type]


def test_what_a_trace_was_taken_for_is_always_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    row = {"input_length": 100, "output_length": 5}
    trace.write_text("\n".join(json.dumps({"timestamp": i / 2, **row}) for i in range(12)))
    said = "trace: timed-trace, times in seconds (fractions); 12 requests in 5.5 s, 2 a second"
    wanted = {
        "format": "timed-trace", "times": "seconds (fractions)", "requests": 12, "unanswered": 0,
        "span": 5.5,
    }  # fmt: skip
    of_trace = ("llama-3-8b", "--machine", "h100", "--trace", str(trace))
    for command in (
        ("simulate", *of_trace),
        ("simulate", *of_trace, "--replicas", "2"),
        ("plan", *of_trace),
        ("plan", *of_trace, "--fewest-machines", "--ttft", "5"),
    ):
        assert main(command) == 0
        assert said in capsys.readouterr().out.splitlines()
        assert main((*command, "--json")) == 0
        values = json.loads(capsys.readouterr().out)
        assert values.get("setup", values)["trace"] == wanted
    trace.write_text("\n".join(json.dumps({"timestamp": i, **row}) for i in range(12)))
    assert main(("plan", *of_trace)) == 1
    assert "say --time-unit s or ms" in capsys.readouterr().err
    assert main(("simulate", *of_trace, "--time-unit", "s")) == 0
    assert "seconds (as given); 12 requests in 11 s" in capsys.readouterr().out
