"""Requests to serve: their times and lengths, from traces or drawn at random."""

from quire.workload.csv_traces import read_azure, read_burstgpt
from quire.workload.jsonl_traces import read_mooncake, read_timed_trace
from quire.workload.request import Segment, TraceRequest, block_names

__all__ = [
    "Segment",
    "TraceRequest",
    "block_names",
    "read_azure",
    "read_burstgpt",
    "read_mooncake",
    "read_timed_trace",
]
