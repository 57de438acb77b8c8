"""Conversations as ShareGPT's users shared them: text, from which only lengths are taken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.engine.traces.request import MOST_TOKENS, Segment, TraceRequest
from quire_lab.workload.rows import reading

BYTES_PER_TOKEN = 4
"""Of UTF-8. What byte-pair encodings with vocabularies of 32,000 and more make of English prose;
letters beyond ASCII take more bytes each, and more tokens."""

_CHUNK = 1 << 16  # characters


def read_sharegpt(path: Path) -> Iterator[TraceRequest]:
    """A request for every answer, its prompt the conversation up to there; all arrive at 0.

    The file is a JSON array of {"conversations": [{"from": "human", "value": text}, …]}. A turn's
    length is its "tokens", where that is given, else it is estimated from its text.
    """
    for number, conversation in enumerate(_elements(path), 1):
        where = f"{path}, conversation {number}"
        turns = conversation.get("conversations")
        if not isinstance(turns, list):
            raise ConfigError(f"{where}: conversations is missing")
        history: list[Segment] = []
        for place, turn in enumerate(turns):
            if not isinstance(turn, dict):
                raise ConfigError(f"{where}, turn {place + 1} is not an object")
            tokens = _tokens(turn, f"{where}, turn {place + 1}")
            if not tokens:
                continue
            prompt = sum(segment.num_tokens for segment in history)
            history.append(Segment(f"{number}.{place}", tokens))
            if turn.get("from") in ("gpt", "assistant", "chatgpt", "bing", "bard") and prompt:
                yield TraceRequest(0.0, prompt, tokens, content=tuple(history))


def _tokens(turn: Mapping[str, Any], where: str) -> int:
    tokens = turn.get("tokens")
    if tokens is None:
        text = turn.get("value")
        if not isinstance(text, str):
            raise ConfigError(f"{where}: value must be a text")
        return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= MOST_TOKENS:
        raise ConfigError(f"{where}: tokens must be from 0 to {MOST_TOKENS:,}, got {tokens!r}")
    return tokens


def _elements(path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of a JSON array, one at a time: such files are larger than memory likes."""
    decoder, buffer = json.JSONDecoder(), ""
    with reading(path) as file:
        buffer = _more(file.read(_CHUNK).lstrip(), file)
        if not buffer.startswith("["):
            raise ConfigError(f"{path} does not hold a JSON array")
        buffer = buffer[1:]
        while True:
            buffer = _more(buffer.lstrip(" \t\r\n,"), file)
            if buffer.startswith("]"):
                return
            while True:
                try:
                    value, end = decoder.raw_decode(buffer)
                    break
                except RecursionError as error:
                    raise ConfigError(f"{path} is not JSON: {error}") from None
                except ValueError as error:
                    read = file.read(max(_CHUNK, len(buffer)))
                    if not read:
                        raise ConfigError(f"{path} is not JSON: {error}") from None
                    buffer += read
            if not isinstance(value, dict):
                raise ConfigError(f"{path} holds something that is not a conversation")
            yield value
            buffer = buffer[end:]


def _more(buffer: str, file: Any) -> str:
    """The buffer, or what follows in the file if it is empty."""
    while not buffer:
        read = file.read(_CHUNK)
        if not read:
            return ""
        buffer = read.lstrip(" \t\r\n,")
    return buffer
