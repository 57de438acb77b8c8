"""What the page shows, kept in a file, of a server or of a simulation. Never torch."""

from quire.tools.recording.form import RecordingHeader, Writer
from quire.tools.recording.reading import RecordedLine, RecordingSummary, check, lines

__all__ = ["RecordedLine", "RecordingHeader", "RecordingSummary", "Writer", "check", "lines"]
