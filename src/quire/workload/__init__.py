"""Requests to serve: their times and lengths, from traces or drawn at random."""

from quire.workload.clipping import Clipping, Cut
from quire.workload.csv_traces import read_azure, read_burstgpt
from quire.workload.jsonl_traces import read_mooncake, read_timed_trace
from quire.workload.presets import PRESETS
from quire.workload.recording import TraceWriter, read_recording, recorded_engine
from quire.workload.request import DraftCounts, Seen, Segment, TraceRequest, block_names
from quire.workload.sharegpt import read_sharegpt
from quire.workload.synthetic import DATASETS, Lengths, Library, Synthetic, arrival_times
from quire.workload.traces import FORMATS, Trace, TraceFacts, TraceFormat
from quire.workload.units import UNITS

__all__ = [
    "DATASETS",
    "FORMATS",
    "PRESETS",
    "UNITS",
    "Clipping",
    "Cut",
    "DraftCounts",
    "Lengths",
    "Library",
    "Seen",
    "Segment",
    "Synthetic",
    "Trace",
    "TraceFacts",
    "TraceFormat",
    "TraceRequest",
    "TraceWriter",
    "arrival_times",
    "block_names",
    "read_azure",
    "read_burstgpt",
    "read_mooncake",
    "read_recording",
    "read_sharegpt",
    "read_timed_trace",
    "recorded_engine",
]
