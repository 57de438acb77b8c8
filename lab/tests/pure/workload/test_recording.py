from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.engine.traces.request import DraftCounts, Segment, TraceRequest
from quire.engine.traces.writer import TraceWriter
from quire_lab.workload import read_recording


def request(prompt: int, output: int) -> TraceRequest:
    return TraceRequest(0.0, prompt, output, max_tokens=output + 5)


def test_what_is_written_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace", 4)
    first, second, third = writer.begin(1.0), writer.begin(1.5), writer.begin(1.25)
    writer.end(second, request(8, 3), [b"one", b"two"])
    assert len((tmp_path / "trace").read_text().splitlines()) == 1  # waits for the first
    writer.end(first, request(5, 2), [b"one"])
    writer.end(third, None)
    writer.close()
    a, b = read_recording(tmp_path / "trace")
    assert (a.arrival, a.prompt_tokens, a.output_tokens, a.max_tokens) == (0.0, 5, 2, 7)
    assert b.arrival == 0.5
    assert b.content[0] == a.content[0] and b.content[1] != b.content[0]
    assert [segment.num_tokens for segment in b.content] == [4, 4]


def test_what_speculation_gave_is_written_where_there_was_any(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace", 4)
    counts = [None, DraftCounts(0, 0, 0), DraftCounts(3, 20, 11)]
    for drafts in counts:
        writer.end(writer.begin(1.0), replace(request(5, 20), drafts=drafts))
    writer.close()
    assert [one.drafts for one in read_recording(tmp_path / "trace")] == counts


def test_what_is_under_way_when_the_recording_ends_holds_nobody_back(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace", 4)
    writer.begin(0.0)
    writer.end(writer.begin(1.0), request(5, 2))
    writer.close()
    assert len(list(read_recording(tmp_path / "trace"))) == 1


def test_a_request_that_runs_for_ever_does_not_hold_back_all_others(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace", 4, most_held=10_000)
    endless = [writer.begin(0.0), writer.begin(0.5)]
    for number in range(1000):
        writer.end(writer.begin(1.0 + number), request(number + 1, 2))
        assert sum(map(len, writer._lines.values())) < 10_000 and len(writer._order) < 200
    late = writer.begin(2000.0)
    for ticket in endless:
        writer.end(ticket, request(5, 2))  # too late
    writer.end(late, request(7, 2))
    writer.close()
    read = list(read_recording(tmp_path / "trace"))
    assert [row.prompt_tokens for row in read] == [*range(1, 1001), 7]


def test_names_of_blocks_differ_from_one_recording_to_the_next(tmp_path: Path) -> None:
    names = set()
    for number in range(2):
        writer = TraceWriter(tmp_path / str(number), 4)
        writer.end(writer.begin(0.0), request(4, 1), [b"hash of a guessed prompt"])
        (read,) = read_recording(tmp_path / str(number))
        names.add(read.content)
        writer.close()
    assert len(names) == 2


def test_broken_recordings_are_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    line = {
        "arrival": 0.0, "prompt_tokens": 3, "output_tokens": 1, "n": 1, "beam_search": False,
        "max_tokens": 1, "hash_ids": [],
    }  # fmt: skip
    header = '{"quire_trace": 1, "block_size": 4}\n'
    for changes, message in (
        ({"colour": "red"}, "line 2: unknown column 'colour'"),
        ({"n": 0}, "line 2: n must be from 1"),
        ({"beam_search": 1}, "line 2: beam_search must be true or false"),
        ({"max_tokens": 0}, "line 2: max_tokens must be from 1"),
        ({"hash_ids": ["a", "b"]}, "line 2: 2 hash_ids are too many"),
        ({"num_drafts": 1}, "line 2: num_draft_tokens is missing"),
        (DraftCounts(1, 3, 4)._asdict(), "line 2: 4 accepted of 3 drafts, in 1 steps, cannot be"),
    ):
        path.write_text(header + json.dumps({**line, **changes}))
        with pytest.raises(ConfigError, match=message):
            list(read_recording(path))
    path.write_text(header + json.dumps({**line, "hash_ids": ["a"]}))
    assert next(read_recording(path)).content == (Segment("a", 4),)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not a trace that quire recorded"):
        list(read_recording(path))
    with pytest.raises(ConfigError, match="record_trace"):
        TraceWriter(tmp_path / "no" / "such", 4)
