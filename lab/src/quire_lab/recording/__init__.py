"""What the page shows, kept in a file, of a server or of a simulation. Never torch."""

from quire_lab.recording.form import RecordingHeader, Writer
from quire_lab.recording.reading import RecordedLine, RecordingSummary, check, lines

__all__ = ["RecordedLine", "RecordingHeader", "RecordingSummary", "Writer", "check", "lines"]
