"""What the server logs, as lines for people or as objects for machines."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FACTS = ("request_id", "engine_request_id", "method", "path", "status", "duration_ms")


class JSONLines(logging.Formatter):
    """An object a line: what a text line has, what failed, and facts that its message holds."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {name: vars(record)[name] for name in _FACTS if name in vars(record)}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def set_format(name: str) -> None:
    """Of all that this process logs, warnings of Python's included: text or json."""
    logging.captureWarnings(True)
    formatter = JSONLines() if name == "json" else logging.Formatter(TEXT)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
