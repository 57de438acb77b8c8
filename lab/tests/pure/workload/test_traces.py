from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.engine.traces.request import Segment, TraceRequest
from quire_lab.workload import Trace, read_azure, read_burstgpt, read_mooncake, read_timed_trace
from quire_lab.workload.clipping import block_names, clipped

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 3500, "input_length": 513, "output_length": 0, "hash_ids": [7, 9]}
"""


def write(directory: Path, text: str) -> Path:
    file = directory / "trace"
    file.write_text(text)
    return file


def test_azure_rows_become_requests(tmp_path: Path) -> None:
    requests = list(read_azure(write(tmp_path, AZURE)))
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [
        (374, 44), (396, 109), (879, 55)
    ]  # fmt: skip
    assert requests[0].arrival == 0.0
    assert requests[1].arrival == pytest.approx(4.314579, abs=1e-6)


def test_failed_requests_of_burstgpt_are_left_out(tmp_path: Path) -> None:
    requests = list(Trace.open(write(tmp_path, BURSTGPT)))
    assert requests == [TraceRequest(0.0, 472, 18), TraceRequest(113.5, 417, 276)]


def test_mooncake_tells_which_blocks_are_equal(tmp_path: Path) -> None:
    first, second = read_mooncake(write(tmp_path, MOONCAKE))
    assert first == TraceRequest(0.0, 600, 5, content=(Segment(7, 512), Segment(8, 88)))
    assert second == TraceRequest(2.5, 513, 1, content=(Segment(7, 512), Segment(9, 1)))


def test_timed_traces_are_in_seconds_and_blocks_of_16(tmp_path: Path) -> None:
    line = '{"timestamp": 1.5, "input_length": 20, "output_length": 5, "hash_ids": ["a", "b"]}'
    (request,) = read_timed_trace(write(tmp_path, line))
    assert request.content == (Segment("a", 16), Segment("b", 4))


def test_rows_are_read_one_by_one(tmp_path: Path) -> None:
    rows = read_azure(write(tmp_path, AZURE + "2023-11-16 18:15:52,broken,55\n"))
    assert [next(rows).prompt_tokens for _ in range(3)] == [374, 396, 879]
    with pytest.raises(ConfigError, match="line 5: ContextTokens must be a whole number"):
        next(rows)


Reader = Callable[[Path], Iterator[TraceRequest]]


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (read_azure, "", "line 1: column 'TIMESTAMP' is missing"),
        (read_azure, "a,b\n1,2\n", "line 1: column 'TIMESTAMP' is missing; there are: a, b"),
        (read_azure, AZURE.replace("\n", ",Extra\n", 1), "line 1: unknown column 'Extra'"),
        (read_azure, AZURE + "x,1,2\n", "line 5: TIMESTAMP is not a time: 'x'"),
        (read_azure, AZURE + "2023-11-16 18:15:52.1,-4,2\n", "line 5: ContextTokens must be from"),
        (read_azure, AZURE + "2023-11-16 18:15:52.1,4,99999999999\n", "line 5: GeneratedTokens"),
        (read_azure, AZURE + "2023-11-16 18:15:52.1,4\n", "line 5: the row must have 3 columns"),
        (read_azure, AZURE + "2023-11-16 18:15:40.1,4,2\n", "line 5: times must not go back"),
        (read_burstgpt, BURSTGPT + "nan,GPT-4,1,2,3,API log\n", "line 5: Timestamp must be a time"),
        (read_mooncake, MOONCAKE + "{\n", "line 3: not JSON"),
        (read_mooncake, "[]\n", "line 1: not a JSON object"),
        (read_mooncake, '{"timestamp": 0}\n', "line 1: input_length is missing"),
        (
            read_mooncake,
            '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1, 2]}',
            "line 1: 2 hash_ids are too many for 5 tokens",
        ),
        (
            read_mooncake,
            '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": 3}',
            "line 1: hash_ids must be a list",
        ),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, reader: Reader, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(reader(write(tmp_path, text)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        list(read_azure(tmp_path / "missing.csv"))


@pytest.mark.parametrize(
    ("prompt", "output", "length", "expected"),
    [
        (10, 20, 100, (10, 20)),
        (90, 20, 100, (80, 20)),
        (90, 90, 100, (50, 50)),
        (5, 0, 100, (5, 1)),
    ],
)
def test_clipping_keeps_within_the_models_length(
    prompt: int, output: int, length: int, expected: tuple[int, int]
) -> None:
    cut = clipped(TraceRequest(0.0, prompt, output), length)
    assert (cut.prompt_tokens, cut.output_tokens) == expected


def test_a_clipped_prompt_shares_what_is_left_and_an_output_goes_its_own_way() -> None:
    content = (Segment("a", 40), Segment("b", 60))
    request = TraceRequest(0.0, 90, 10, content=content)
    assert clipped(request, 200) is request
    limited = replace(request, max_tokens=request.output_tokens)
    assert clipped(limited, 200) is limited
    assert clipped(request, 60).content == (Segment("a", 40), Segment("b", 10))


def test_names_of_blocks_are_equal_exactly_where_all_before_is() -> None:
    def names(*content: tuple[str, int], own: str = "me") -> list[bytes]:
        return block_names([Segment(*piece) for piece in content], 64, 16, own)

    first = names(("a", 32), ("b", 32))
    assert len(set(first)) == 4
    assert names(("a", 32), ("c", 32))[:2] == first[:2]
    assert not set(names(("a", 32), ("c", 32))[2:]) & set(first)
    assert not set(names(("c", 32), ("b", 32))) & set(first)  # same tokens after others
    assert names(("a", 40), own="x")[:2] == first[:2]
    assert not set(names(own="x")) & set(names(own="y"))
    # A border inside a block: as far as it goes, the content is the same.
    assert names(("a", 24), ("b", 40))[0] == first[0]
    assert names(("a", 24), ("b", 40))[1] != first[1]


def test_hashes_must_cover_a_prompt(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1000, "output_length": 5}
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({**row, "hash_ids": [1]}))
    with pytest.raises(ConfigError, match="1 hash_ids are too few for 1000 tokens"):
        list(read_mooncake(path))
    for fitting in ([], [1, 2]):
        path.write_text(json.dumps({**row, "hash_ids": fitting}))
        assert len(list(read_mooncake(path))) == 1


def test_an_empty_file_is_told_to_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.touch()
    with pytest.raises(ConfigError, match=r"trace.csv is empty$"):
        Trace.open(path)


@pytest.mark.parametrize(
    ("columns", "text", "arrivals"),
    [
        ("prompt=in,output=out,time=at", "at,user,in,out\n5,a,10,3\n7.5,b,20,4\n", [0.0, 2.5]),
        ("output=out,prompt=in,time_ms=at", "in;out;at\n10;3;500\n20;4;750\n", [0.0, 0.25]),
        (
            "prompt=in,output=out,time=at",
            "in\tout\tat\n10\t3\t2024-05-10 00:00:00.5\n20\t4\t2024-05-10 00:00:02\n",
            [0.0, 1.5],
        ),
        ("prompt=1,output=2", "10,3\n20,4\n", [0.0, 0.0]),
    ],
)
def test_columns_of_any_csv_can_be_named(
    tmp_path: Path, columns: str, text: str, arrivals: list[float]
) -> None:
    path = tmp_path / "any.csv"
    path.write_text(text)
    trace = Trace.of_columns(path, columns)
    assert [(r.prompt_tokens, r.output_tokens) for r in trace] == [(10, 3), (20, 4)]
    assert [r.arrival for r in trace] == pytest.approx(arrivals)
    assert trace.format.has_times == ("time" in columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("prompt=in", "must have prompt and output"),
        ("prompt=in,output=out,time=a,time_ms=a", "one time at the most"),
        ("prompt=in,output=out,tokens=x", "got 'tokens=x'"),
        ("prompt=in,output=result", "line 1: column 'result' is missing; there are: in, out"),
        ("prompt=in,output=out", "line 3: the row must have 2 columns"),
        ("prompt=1,output=3", "line 1: column 1 must be a whole number of tokens, got 'in'"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, columns: str, message: str) -> None:
    path = tmp_path / "any.csv"
    path.write_text("in,out\n10,3\n20\n")
    with pytest.raises(ConfigError, match=message):
        list(Trace.of_columns(path, columns))


@pytest.mark.parametrize(
    ("columns", "text", "message"),
    [
        ("prompt=a,output=a", "a,b\n1,2\n", "one column cannot tell two things"),
        ("prompt=0,output=1", "1,2\n", "columns are counted from 1, got 'prompt=0,output=1'"),
        ("prompt=1,output=3", "1,2\n", "line 1: column 3 is missing"),
        ("prompt=a,output=b", "a,a,b\n1,9,2\n", "line 1: column 'a' is there 2 times"),
        ("prompt=a,output=b", "a,b\n12,2.5\n", "line 2: b must be a whole number of tokens"),
        ("prompt=a,output=b", "a,b\n\n12,inf\n", "line 3: b must be a whole number of tokens"),
        ("prompt=a,output=b", "a,b\n", "any.csv holds no request"),
        ("prompt=a,output=b", "a,b\n1,2\n\xe9,3\n", "line 3: not text in UTF-8"),
    ],
)
def test_what_is_no_trace_is_told_by_line(
    tmp_path: Path, columns: str, text: str, message: str
) -> None:
    path = tmp_path / "any.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=message):
        list(Trace.of_columns(path, columns))


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    """By what is in the file, not by its name. What spreadsheets write is a number too."""
    path, text = tmp_path / "any", b"in,out\n10.0,3\n\n2e1,4\n"
    path.write_bytes(gzip.compress(text))
    trace = Trace.of_columns(path, "prompt=in,output=out")
    assert [(r.prompt_tokens, r.output_tokens) for r in trace] == [(10, 3), (20, 4)]
    path.write_bytes(gzip.compress(MOONCAKE.encode()))
    assert Trace.open(path).format.name == "mooncake" and len(list(Trace.open(path))) > 1
    path.write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(ConfigError, match=r"any cannot be read: Compressed file ended"):
        list(trace)


def test_nesting_without_end_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text in ("[" * 100_000, '{"timestamp":' + "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ConfigError, match="not JSON: maximum recursion depth"):
            list(Trace.open(path))


def test_logs_of_other_servers_are_traces(tmp_path: Path) -> None:
    def line(event: str, rid: str, second: float, **out: float) -> str:
        when = f"2026-01-02T03:04:{second:09.6f}"
        facts = {"timestamp": when, "event": event, "rid": rid, "obj": {"stream": False}}
        return json.dumps(facts | ({"out": {"meta_info": out}} if out else {}))

    log = tmp_path / "host_0.log"
    lines = [
        line("request.received", "a", 5.0),
        line("request.finished", "z", 6.0, prompt_tokens=7, completion_tokens=2, e2e_latency=2.5),
        line("request.received", "b", 6.5),
        line("request.finished", "b", 7.0, prompt_tokens=20, completion_tokens=4, e2e_latency=0.5),
        line("request.finished", "a", 9.0, prompt_tokens=10, completion_tokens=3, e2e_latency=4),
        line("request.finished", "c", 9.5, prompt_tokens=10, completion_tokens=0, e2e_latency=1),
    ]
    log.write_text("\n".join(lines))
    bench = tmp_path / "bench.json"
    values = {
        "date": "20260102", "input_lens": [7, 20, 10, 5], "output_lens": [2, 4, 3, 0],
        "start_times": [100.5, 103.5, 102.0, 104.0], "ttfts": [0.1] * 4,
    }  # fmt: skip
    bench.write_text(json.dumps(values))
    for path, name in ((log, "sglang"), (bench, "vllm-bench")):
        trace = Trace.open(path)
        assert trace.format.name == name
        found = [(r.arrival, r.prompt_tokens, r.output_tokens) for r in trace]
        assert found == [(0.0, 7, 2), (1.5, 10, 3), (3.0, 20, 4)]
    log.write_text(line("request.finished", "a", 1.0))
    with pytest.raises(ConfigError, match=r"line 1: out\.meta_info is missing"):
        list(Trace.open(log))


def rows_of(times: Iterable[float], length: int = 900, **more: object) -> str:
    row = {"input_length": length, "output_length": 5, **more}
    return "\n".join(json.dumps({"timestamp": time, **row}) for time in times)


BLOCKS = list(range(57))  # of 16 tokens, for 900


@pytest.mark.parametrize(
    ("text", "times", "span"),
    [
        (rows_of([0, 3000, 6000], hash_ids=[1, 2]), "milliseconds (hashes of 512 tokens)", 6.0),
        (rows_of([0, 1, 3], hash_ids=BLOCKS), "seconds (hashes of 16 tokens)", 3.0),
        (rows_of([0, 0.5, 2.25]), "seconds (fractions)", 2.25),
        (rows_of([1.7e12, 1.7e12 + 500]), "milliseconds (milliseconds since 1970)", 0.5),
        (rows_of([1.7e9 + 0.5, 1.7e9 + 8]), "seconds (seconds since 1970)", 7.5),
        (rows_of([1.7e15, 1.7e15 + 5e5]), "microseconds (microseconds since 1970)", 0.5),
        (rows_of([17 * 10**17, 17 * 10**17 + 2**29]), "nanoseconds (nanoseconds since 1970)", 0.54),
        (rows_of([0, 0, 0]), "seconds (all are one)", 0.0),
        (rows_of([7], length=9, hash_ids=[0]), "seconds (all are one)", 0.0),
        # The first row is too short to tell its blocks apart.
        (
            rows_of([0], length=9, hash_ids=[0]) + "\n" + rows_of([4], hash_ids=BLOCKS),
            "seconds (hashes of 16 tokens)",
            4.0,
        ),
        (
            rows_of(range(100), length=2000),
            "seconds (as milliseconds, 2,000,000 tokens would come a second)",
            99.0,
        ),
    ],
)
def test_what_a_traces_times_are_counted_in_is_seen_from_its_rows(
    tmp_path: Path, text: str, times: str, span: float
) -> None:
    trace = Trace.open(write(tmp_path, text))
    assert trace.format.times == times
    facts = trace.facts()
    assert facts.span == pytest.approx(span, rel=0.01) == list(trace)[-1].arrival
    assert facts.requests == len(list(trace)) == text.count("\n") + 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (rows_of([0, 3000, 6000]), "nothing in it tells"),
        (rows_of([0, 3], length=9, hash_ids=[0]), "nothing in it tells"),
        (
            rows_of(range(0, 60_000, 600), hash_ids=BLOCKS),
            "seconds, but as seconds, 1.5 tokens would come a second",
        ),
        (rows_of([i * 1000.5 for i in range(60)]), "fractions: seconds, but as seconds"),
        (
            rows_of([0, 0.5], hash_ids=[1, 2]),
            "hashes of 512 tokens: milliseconds, but fractions: seconds",
        ),
        (rows_of(range(0, 300, 3), length=20_000, hash_ids=list(range(40))), "but as milliseconds"),
    ],
)
def test_a_trace_whose_times_may_be_either_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=rf"\(.*{why}.*\); say --time-unit s or ms"):
        Trace.open(path)
    last = json.loads(text.splitlines()[-1])["timestamp"]
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        assert Trace.open(path, unit=unit).facts().span == pytest.approx(last * factor)
    if "hash_ids" not in text:  # who names the form has named the unit
        assert Trace.open(path, "mooncake").facts().span == pytest.approx(last / 1e3)
        assert Trace.open(path, "timed-trace").facts().span == pytest.approx(last)


def test_a_unit_is_no_other_formats(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"azure traces have their own \(dates\)"):
        Trace.open(write(tmp_path, AZURE), unit="ms")


@pytest.mark.parametrize(
    ("columns", "time", "said"),
    [
        ("prompt=in,output=out,time=at", "1700000000123", "milliseconds since 1970: say time_ms="),
        ("prompt=in,output=out,time_ms=at", "1700000000", "seconds since 1970: say time=at"),
        ("prompt=in,output=out,time_ms=at", "1700000000123456", "microseconds since 1970: give"),
    ],
)
def test_a_column_in_another_unit_than_named_is_refused(
    tmp_path: Path, columns: str, time: str, said: str
) -> None:
    path = write(tmp_path, f"at,in,out\n{time},5,6\n")
    with pytest.raises(ConfigError, match=f"line 2: at looks like {said}"):
        list(Trace.of_columns(path, columns))


@pytest.mark.parametrize("empty", ["0", "", "NaN", "null"])
def test_one_row_without_output_refuses_no_others(tmp_path: Path, empty: str) -> None:
    path = write(tmp_path, AZURE + f"2023-11-16 18:15:52.5,400,{empty}\n")
    trace = Trace.open(path)
    assert len(list(trace)) == 3
    facts = trace.facts()
    assert (facts.requests, facts.unanswered) == (3, 1)
    named = Trace.of_columns(path, "prompt=ContextTokens,output=GeneratedTokens,time=TIMESTAMP")
    assert list(named) == list(trace)


def test_all_runs_of_a_benchmark_are_read(tmp_path: Path) -> None:
    """``--append-result`` writes a row for each, whose clocks need not be one."""
    run = {"input_lens": [7, 5, 9], "output_lens": [2, 0, 3], "start_times": [100.5, 101.0, 102.5]}
    later = {**run, "start_times": [3.0, 3.5, 4.0]}
    path = write(tmp_path, json.dumps({**run, "duration": 10.0}) + "\n" + json.dumps(later))
    trace = Trace.open(path)
    assert [r.arrival for r in trace] == [0.0, 2.0, 10.0, 11.0]
    assert trace.facts() == ("vllm-bench", "seconds", 4, 2, 11.0)
