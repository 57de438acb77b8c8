"""What a model writes is read in a time that grows as its length does, whatever it writes."""

from __future__ import annotations

import time

import pytest

from quire.text.dialect.catalogue import DIALECTS, REASONING
from quire.text.dialect.reader import EventParser, OutputParser, Reply

LENGTH = 60_000  # characters
TOOLS = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
BEGINNINGS = ("", "[f(a='", '{"name": "f", "arguments": {"a": "')
KINDS = list({id(dialect): dialect.names[0] for dialect in DIALECTS.values()}.values())


def parser(name: str) -> EventParser:
    dialect = DIALECTS[name]
    if dialect.parser is not None:
        return dialect.parser(TOOLS, "")
    return OutputParser(dialect.form, TOOLS, REASONING["qwen3"])


@pytest.mark.parametrize("name", KINDS)
def test_marks_without_end(name: str) -> None:
    for mark in DIALECTS[name].marks[:2]:
        for beginning in BEGINNINGS:
            text = (mark + beginning) * (LENGTH // len(mark + beginning))
            before = time.process_time()
            reading = parser(name)
            Reply.of(reading.push(text) + reading.finish())
            assert time.process_time() - before < 2, (mark, beginning)
