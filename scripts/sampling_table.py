"""Writes the table of sampling parameters in docs/serving.md, of which the code knows all:

python scripts/sampling_table.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from quire.core.protocol import SamplingParams

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
BEGIN = "<!-- sampling parameters: python scripts/sampling_table.py -->\n"
END = "<!-- end -->\n"


def updated(page: str) -> str:
    """The page with the table as it should be."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END, maxsplit=1)
    rows = "".join(f"{row}\n" for row in table())
    return f"{before}{BEGIN}{rows}{END}{after}"


def table() -> Iterator[str]:
    yield "| | what it does | allowed | left out |"
    yield "|---|---|---|---|"
    for parameter in fields(SamplingParams):
        text, words = parameter.metadata["help"], parameter.metadata["allowed"].words
        if not parameter.metadata["http"]:
            text += " (in Python only)"
        name = f"`{parameter.name}`" + " *" * parameter.metadata["flag"]
        yield f"| {name} | {text} | {words} | {_shown(parameter.default)} |"


def _shown(default: object) -> str:
    """As JSON has it; nothing for what is nothing."""
    return "" if default in (None, ()) else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
