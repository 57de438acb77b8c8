"""What an engine does, told to those who watch: spans, profiles, recordings."""

from quire.engine.tracing.profile import Profile
from quire.engine.tracing.spans import SpanSender
from quire.engine.tracing.story import PROVIDER, operation, served
from quire.engine.tracing.trace_events import TraceEvents, in_lines
from quire.engine.tracing.watcher import Standing, Watcher, Watchers

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
