"""How llguidance's dialect of Lark spells texts."""

from __future__ import annotations

import json
from collections.abc import Iterable


def literal(text: str) -> str:
    """A text as itself: none of it is a mark, whatever it looks like. "" is nothing at all."""
    return json.dumps(text).replace("\x7f", r"\u007f")


def either(each: Iterable[str]) -> str:
    return " | ".join(each)


def json_text(text: str) -> str:
    """A text in JSON, as it is mostly written."""
    return json.dumps(text, ensure_ascii=False)
