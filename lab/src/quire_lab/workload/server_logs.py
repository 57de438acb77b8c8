"""Files of other servers: SGLang's log of requests, and the details of vLLM's benchmark.

vLLM's own log of requests has neither the lengths of prompts nor those of outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quire.engine.traces.request import TraceRequest
from quire_lab.workload.csv_traces import timestamp
from quire_lab.workload.rows import json_rows

VLLM_LISTS = ("input_lens", "output_lens")


def read_sglang(path: Path) -> Iterator[TraceRequest | None]:
    """The requests of ``--log-requests --log-requests-format json`` that came to an end.

    Lines of other events are passed over. Requests are in the order in which they came, so all of
    them are held in memory.
    """
    received: dict[str, float] = {}
    ended: list[tuple[float, int, int]] = []
    for row in json_rows(path):
        event, rid = row.values.get("event"), str(row.values.get("rid"))
        if event == "request.received":
            received[rid] = timestamp(row, "timestamp")
        if event != "request.finished":
            continue
        out = row.values.get("out")
        found = out.get("meta_info") if isinstance(out, dict) else None
        if not isinstance(found, dict):
            raise row.error("out.meta_info is missing")
        info = row.within(found)
        start = received.pop(rid, None)
        if start is None:  # it came before the log begins
            start = timestamp(row, "timestamp") - info.seconds("e2e_latency")
        prompt, output = info.tokens("prompt_tokens", 1), info.tokens("completion_tokens")
        ended.append((start, prompt, output))  # without output it was aborted
    yield from _in_order(ended)


def read_vllm_bench(path: Path) -> Iterator[TraceRequest | None]:
    """The requests of ``vllm bench serve --save-detailed``.

    A file that was appended to (``--append-result``) has a row for each run. Their clocks need not
    be one, so each run begins where the one before has ended.
    """
    begin = 0.0
    for row in json_rows(path):
        lists = [row.get(name) for name in (*VLLM_LISTS, "start_times")]
        if not all(isinstance(one, list) and len(one) == len(lists[0]) for one in lists):
            raise row.error("input_lens, output_lens and start_times must be lists of one length")
        ended = []
        for prompt, output, start in zip(*lists, strict=True):
            one = row.within({"input_lens": prompt, "output_lens": output, "start_times": start})
            lengths = one.tokens("input_lens"), one.tokens("output_lens")
            ended.append((one.seconds("start_times"), *lengths))
        end = begin
        for request in _in_order(ended, begin):
            end = end if request is None else request.arrival
            yield request
        begin = max(end, begin + row.seconds("duration")) if "duration" in row.values else end


def _in_order(
    ended: list[tuple[float, int, int]], begin: float = 0.0
) -> Iterator[TraceRequest | None]:
    """Requests in order, the first one at ``begin``; None: failed ones."""
    answered = sorted(one for one in ended if one[1] and one[2])
    for start, prompt, output in answered:
        yield TraceRequest(begin + start - answered[0][0], prompt, output)
    yield from [None] * (len(ended) - len(answered))
