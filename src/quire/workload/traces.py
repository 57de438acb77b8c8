"""Readers of published traces. A trace has times and lengths, no text."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

from quire.errors import ConfigError


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace."""

    arrival: float  # seconds after the trace's first request
    prompt_tokens: int
    output_tokens: int

    def clipped(self, max_model_len: int) -> TraceRequest:
        """The request as a model of this length can serve it: one token in and one out at least.

        The prompt is cut first to leave room for the output, the output to half of the length.
        """
        output = max(1, min(self.output_tokens, max_model_len // 2))
        prompt = max(1, min(self.prompt_tokens, max_model_len - output))
        return TraceRequest(self.arrival, prompt, output)


def read_azure(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """The first ``limit`` requests of an Azure LLM inference trace (Azure Public Dataset).

    Columns: TIMESTAMP, ContextTokens, GeneratedTokens.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(islice(csv.DictReader(file), limit))
        times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
        return [
            TraceRequest(
                (time - times[0]).total_seconds(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for time, row in zip(times, rows, strict=True)
        ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not an Azure LLM trace: {error!r}") from error
