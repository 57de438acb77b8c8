"""A diary harms nobody: an engine that records on disks that fail."""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.core.memory import PagedAllocator
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.recorder import RequestRecorder
from quire.engine.traces.request import TraceRequest
from quire.engine.traces.writer import TraceWriter
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from quire_lab.workload import read_recording
from support.fake_model import FakeExecutor

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")


class BadDisk:
    """A raw file that takes so many bytes at a time, and fails from its k-th call on."""

    def __init__(self, path: Path, calls: Iterator[int], fails_at: int, at_a_time: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._calls = calls
        self._fails_at = fails_at
        self._at_a_time = at_a_time

    def write(self, data: memoryview) -> int:
        self._may_fail()
        return self._file.write(data[: self._at_a_time])

    def truncate(self, size: int) -> int:
        return self._file.truncate(size)

    def close(self) -> None:
        self._file.close()
        self._may_fail()

    def _may_fail(self) -> None:
        if next(self._calls) >= self._fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")


def serve(recorder: RequestRecorder | None) -> dict[str, tuple[int, ...]]:
    """Twelve requests, two of them aborted; what each of them gave."""
    scheduler = Scheduler(PagedAllocator(64, 4), BatchLimits(4, 32))
    input_processor = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=200, seed=0)
    clock = count()
    engine = Engine(
        scheduler,
        FakeExecutor(64, 4),
        input_processor,
        clock=lambda: next(clock) / 8,
    )
    if recorder is not None:
        engine.events.add(recorder)
    gave: dict[str, tuple[int, ...]] = {}
    for number in range(12):
        params = SamplingParams(max_tokens=3 + 5 * number % 7, seed=1)
        engine.add_request(str(number), [number + 1] * (3 + number), params)
    engine.abort("7")
    while engine.has_work:
        for delta in engine.step():
            if delta.final is not None:
                gave[delta.request_id] = tuple(delta.final.outputs[0].token_ids)
        engine.abort("2")
    engine.close()
    engine.close()
    return gave


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the recorder's file a bad one; its calls, counted."""
    original = Path.open

    def install(fails_at: int, at_a_time: int = 10**9) -> Iterator[int]:
        calls = count(1)

        def bad(path: Path, mode: str = "r", buffering: int = -1, **options: Any) -> Any:
            if mode == "wb" and buffering == 0:
                with monkeypatch.context() as patch:
                    patch.setattr(Path, "open", original)
                    return BadDisk(path, calls, fails_at, at_a_time)
            return original(path, mode, buffering, **options)

        monkeypatch.setattr(Path, "open", bad)
        return calls

    return install


@pytest.mark.parametrize("at_a_time", [10**9, 17])
def test_a_disk_that_fails_at_any_moment_harms_nobody(
    tmp_path: Path, disk: Any, caplog: pytest.LogCaptureFixture, at_a_time: int
) -> None:
    expected, path = serve(None), tmp_path / "trace"
    calls = disk(fails_at=10**9, at_a_time=at_a_time)
    assert serve(RequestRecorder(path, 4, 0.0)) == expected
    whole, num_calls = path.read_bytes(), next(calls) - 1
    assert len(whole.splitlines()) == 12 and not caplog.records  # "7" gave no token
    for fails_at in range(1, num_calls + 1, 1 if at_a_time > 17 else 5):
        disk(fails_at, at_a_time)
        recorder = RequestRecorder(path, 4, 0.0)
        assert recorder.recording == (fails_at > math.ceil(len(whole.splitlines()[0]) / at_a_time))
        assert serve(recorder) == expected
        assert not recorder.recording
        (record,) = caplog.records
        assert record.levelno == logging.ERROR and record.exc_info in (None, False)
        assert str(path) in record.message and "No space left" in record.message
        caplog.clear()
        written = path.read_bytes()  # whole lines: no half one, which no reader could pass
        assert written.count(b"\n") == len(written.splitlines())
        if written:
            list(read_recording(path))


def test_a_recorder_with_a_bug_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = serve(None)
    for name in ("begin", "end", "close"):

        def fail(*arguments: object) -> None:
            raise KeyError("a lost ticket")

        monkeypatch.setattr(TraceWriter, name, fail)
        recorder = RequestRecorder(tmp_path / name, 4, 0.0)
        assert serve(recorder) == expected
        assert not recorder.recording and len(caplog.records) == 1
        assert caplog.records[0].exc_info  # a traceback: this is no matter of disks
        caplog.clear()
        monkeypatch.undo()


def test_a_trace_that_is_removed_or_closed_harms_nobody(tmp_path: Path) -> None:
    expected, path = serve(None), tmp_path / "trace"
    recorder = RequestRecorder(path, 4, 0.0)
    path.unlink()
    assert serve(recorder) == expected
    recorder = RequestRecorder(path, 4, 0.0)
    recorder.close()
    assert serve(recorder) == expected
    assert list(read_recording(path)) == []


@pytest.mark.parametrize("salt", ["", "a tenant's"])
def test_blocks_have_the_names_that_they_have_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, salt: str
) -> None:
    recorded: list[bytes] = []
    monkeypatch.setattr(TraceWriter, "end", lambda *given: recorded.extend(given[-1]))
    allocator = PagedAllocator(64, 4)
    scheduler = Scheduler(allocator, BatchLimits(4, 32))
    input_processor = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=200, seed=0)
    recorder = RequestRecorder(tmp_path / "trace", 4, 0.0)
    engine = Engine(scheduler, FakeExecutor(64, 4), input_processor)
    engine.events.add(recorder)
    prompt = {"prompt_token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "cache_salt": salt}
    engine.add_request("0", prompt, SamplingParams(max_tokens=5))
    while engine.has_work:
        engine.step()
    engine.close()
    assert len(recorded) == 3
    assert None not in map(allocator.device.find, recorded)


def test_a_ticket_that_nobody_knows_is_passed_over(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace", 4)
    writer.end(99, TraceRequest(0.0, 3, 1))
    writer.close()
    assert len((tmp_path / "trace").read_text().splitlines()) == 1
