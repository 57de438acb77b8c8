"""Output that nobody reads, and what goes on all the same."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.engine import streams

BEGIN = """
import logging, os, sys, warnings
from quire.engine.streams import last_words, nobody_waits, num_dropped
logging.basicConfig(format="%(name)s: %(message)s")
logging.getLogger("others").addHandler(logging.StreamHandler())
logging.getLogger("others").propagate = False
"""
PATIENCE = 60.0


@contextmanager
def program(text: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A Python program, and the end of the pipe to which it writes, which nobody reads."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + text], stdout=writing, stderr=writing, stdin=subprocess.PIPE
    )
    os.close(writing)
    try:
        yield process, reading
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        process.wait()
        os.close(reading)


def rest(reading: int) -> bytes:
    pieces = list(iter(lambda: os.read(reading, 1 << 20), b""))
    return b"".join(pieces)


WAYS = {
    "a log": 'logging.warning("x" * 100)',
    "a log of others": 'logging.getLogger("others").warning("x" * 100)',
    "print": 'print("x" * 100)',
    "a warning": 'warnings.warn("x" * 100)',
    "what is left of an exception": "sys.excepthook(KeyError, KeyError('x' * 100), None)",
    "bytes": 'sys.stderr.buffer.write(b"x" * 100)',
}


@pytest.mark.parametrize("way", WAYS)
def test_nobody_waits_for_a_reader_who_has_stopped(way: str) -> None:
    text = f"""
warnings.simplefilter("always")
with nobody_waits():
    for _ in range(3000):
        {WAYS[way]}
    os._exit(7)
"""
    with program(text) as (process, _):
        assert process.wait(PATIENCE) == 7


def test_a_process_ends_though_nobody_reads_its_last_words() -> None:
    with program("with nobody_waits():\n    print('x' * 200_000)\nprint('x')") as (process, _):
        assert process.wait(PATIENCE) == 0


def test_what_is_dropped_is_counted_and_said_once_somebody_reads(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    total = streams._MOST + 3000
    text = f"""
with nobody_waits():
    for number in range({total}):
        logging.warning("line %d %s", number, "x" * 100)
    open({str(fifo)!r}, "w").close()
    sys.stdin.readline()
    last_words()
    logging.warning("it goes on, without %d", num_dropped())
"""
    with program(text) as (process, reading):
        assert process.stdin is not None
        fifo.read_text()  # all is said, and nobody has read it
        process.stdin.write(b"\n")
        process.stdin.flush()
        *lines, notice, after = rest(reading).decode().splitlines()
        assert process.wait(PATIENCE) == 0
    numbers = [int(line.split()[2]) for line in lines]
    assert numbers == sorted(numbers) and len(numbers) < total
    dropped = total - len(numbers)
    assert f"{dropped} lines of stderr were dropped" in notice and "quire.engine.streams" in notice
    assert after == f"root: it goes on, without {dropped}"


def test_all_is_written_in_order_where_somebody_reads() -> None:
    text = """
with nobody_waits():
    for number in range(500):
        print(number)
    print("naïve, unfinished", end="")
print()
"""
    with program(text) as (process, reading):
        lines = rest(reading).decode().splitlines()
        assert process.wait(PATIENCE) == 0
    assert lines == [*map(str, range(500)), "naïve, unfinished"]


def test_streams_are_what_they_were_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    logger = logging.getLogger("quire.test_streams")
    logger.addHandler(handler)
    before = sys.stdout, sys.stderr, handler.stream
    try:
        with streams.nobody_waits():
            with streams.nobody_waits():  # a command's own, and a server's in it
                inner = sys.stderr
            assert sys.stderr is inner
            assert not sys.stdout.isatty() and sys.stdout.fileno() == before[0].fileno()
        assert (sys.stdout, sys.stderr, handler.stream) == before
    finally:
        logger.removeHandler(handler)
