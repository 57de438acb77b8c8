"""Digests of models' files: remembered while nothing has changed, and never a moment longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from quire.engine.assembly import digests
from quire.engine.assembly.digests import FileDigests, samples

SIZE = 3 * digests._PIECE // 2


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that has not been changed for long."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(SIZE))
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + int(2e9 * digests._SETTLED))
    return path


def digest_of(path: Path, memory: Path) -> str:
    """As an engine that starts asks for it."""
    files = FileDigests(memory)
    found = files.of(path)
    files.remember()
    assert found == xxhash.xxh3_128_hexdigest(path.read_bytes()), "whatever has been before"
    return found


def unread(path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether its digest is known without reading it."""
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_, **__: pytest.fail("it is read"))
        files, known = FileDigests(None), FileDigests(memory)._known
        files._known = known
        try:
            files.of(path)
        except pytest.fail.Exception:
            return False
        return True


def flipped_in_place(path: Path) -> None:
    """With its size and time of modification."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(SIZE // 2)
        byte = file.read(1)[0]
        file.seek(SIZE // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path: Path) -> None:
    status, other = path.stat(), path.with_name("other")
    other.write_bytes(os.urandom(SIZE))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [flipped_in_place, replaced])
def test_a_file_is_read_again_when_it_has_changed_and_only_then(
    change: Callable[[Path], None], weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "digests.json"
    first = digest_of(weights, memory)
    assert unread(weights, memory, monkeypatch)
    change(weights)
    assert not unread(weights, memory, monkeypatch)
    assert digest_of(weights, memory) != first
    assert [path.name for path in tmp_path.glob("*.new")] == []
    for damaged in (b"", b"[]", b"{", memory.read_bytes()[:-9], b'{"x": [[1, 2], 3]}'):
        memory.write_bytes(damaged)
        digest_of(weights, memory)
    assert unread(weights, memory, monkeypatch)


def test_what_has_just_changed_is_not_remembered(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next change may bear the same time."""
    monkeypatch.undo()
    memory = tmp_path / "digests.json"
    digest_of(weights, memory)
    assert not memory.exists() and not unread(weights, memory, monkeypatch)


def test_samples_tell_models_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_bytes(os.urandom(3_000_000))
    paths[1].write_bytes(b"x")
    before = samples(paths)
    paths[0].write_bytes(paths[0].read_bytes()[:-1] + b"!")
    after = samples(paths)
    assert before["a"] != after["a"] and before["b"] == after["b"]
