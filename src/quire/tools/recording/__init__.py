"""What the page shows, kept in a file, of a server or of a simulation. Never torch."""

from quire.tools.recording.form import Header, Writer
from quire.tools.recording.reading import Line, Summary, check, lines

__all__ = ["Header", "Line", "Summary", "Writer", "check", "lines"]
