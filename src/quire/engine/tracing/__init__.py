"""What an engine does, as others read it: spans, profiles, the form that Perfetto reads."""

from quire.engine.tracing.collector import Collector, resource
from quire.engine.tracing.profile import Profile
from quire.engine.tracing.spans import PROVIDER, SpanSender
from quire.engine.tracing.trace_events import TraceEvents, in_lines

__all__ = ["PROVIDER", "Collector", "Profile", "SpanSender", "TraceEvents", "in_lines", "resource"]
