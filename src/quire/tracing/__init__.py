"""What an engine does, told to those who watch: spans, profiles, recordings."""

from quire.tracing.profile import Profile
from quire.tracing.spans import SpanSender
from quire.tracing.story import PROVIDER, operation, served
from quire.tracing.trace_events import TraceEvents, in_lines
from quire.tracing.watcher import Standing, Watcher, Watchers

__all__ = [
    "PROVIDER",
    "Profile",
    "SpanSender",
    "Standing",
    "TraceEvents",
    "Watcher",
    "Watchers",
    "in_lines",
    "operation",
    "served",
]
