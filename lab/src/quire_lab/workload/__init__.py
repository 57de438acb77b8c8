"""Requests to serve: their times and lengths, from traces or drawn at random."""

from quire_lab.workload.clipping import Clipping, Cut
from quire_lab.workload.csv_traces import read_azure, read_burstgpt
from quire_lab.workload.jsonl_traces import read_mooncake, read_timed_trace
from quire_lab.workload.recording import read_recording, recorded_engine
from quire_lab.workload.sharegpt import read_sharegpt
from quire_lab.workload.synthetic import (
    DATASETS,
    PRESETS,
    Lengths,
    Library,
    Synthetic,
    arrival_times,
)
from quire_lab.workload.traces import FORMATS, Trace, TraceFacts, TraceFormat
from quire_lab.workload.units import UNITS

__all__ = [
    "DATASETS",
    "FORMATS",
    "PRESETS",
    "UNITS",
    "Clipping",
    "Cut",
    "Lengths",
    "Library",
    "Synthetic",
    "Trace",
    "TraceFacts",
    "TraceFormat",
    "arrival_times",
    "read_azure",
    "read_burstgpt",
    "read_mooncake",
    "read_recording",
    "read_sharegpt",
    "read_timed_trace",
    "recorded_engine",
]
