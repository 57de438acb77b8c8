"""The tokenizer of an engine. Its chat templates are rendered in a box: a template is a program,
which a model's file or a request brings.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.capabilities.box import Box, BoxBroken
from quire.core.errors import ConfigError, RequestError
from quire.engine.assembly.loading import locate
from quire.engine.config import EngineConfig
from quire.models.files import read_text
from quire.models.loader import resolve_model
from quire.text.sandbox import OWN
from quire.text.tokenizer import Tokenizer, load_tokenizer

MOST_SECONDS = 4.0  # for one text; honest ones take milliseconds
_MEMORY = 256 << 20  # bytes of a worker; the longest texts take some tens of megabytes
_WORKERS = 3  # as many as threads that prepare inputs


def tokenizer_of(config: EngineConfig) -> Tokenizer:
    """The model's tokenizer, with its own chat template or another."""
    template = _read_template(config.chat_template)
    return load_tokenizer(tokenizer_directory(config), template, BoxedTemplates())


def tokenizer_directory(config: EngineConfig) -> Path:
    """Where the tokenizer is read from."""
    if config.tokenizer is None:
        return locate(config)
    return resolve_model(config.tokenizer, download_dir=config.download_dir)


def _read_template(given: str | None) -> str | None:
    """The text of a file, or the one given, which a brace tells from a name."""
    if given is None or "{" in given:
        return given
    try:
        return read_text(Path(given))
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template cannot be read: {error}") from error


class BoxedTemplates:
    """A ``Renderer`` over a box, whose process begins with the first text.

    A request's own template has a worker for itself: whatever it makes of it, it sees nothing of
    others' conversations.
    """

    def __init__(self, seconds: float = MOST_SECONDS, memory: int = _MEMORY) -> None:
        """seconds, memory: that a text may take, in bytes."""
        self._seconds, self._memory = seconds, memory
        self._box = Box("quire.text.sandbox:Templates", memory=memory, workers=_WORKERS)

    def render(self, source: str, given: Mapping[str, Any], most: float, field: str) -> str:
        try:
            return self._rendered(source, given, most, field)
        except BoxBroken as error:
            raise RequestError(
                f"the chat template cannot put these messages together: {error}; it may take "
                f"{self._seconds:g} s and {self._memory >> 20} MiB",
                field,
            ) from None
        except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
            text = f"messages and variables of a chat template must be values of JSON: {error}"
            raise RequestError(text, field) from error

    def _rendered(self, *call: object) -> str:
        if call[-1] != OWN:
            return self._box.call("render", *call, seconds=self._seconds, gives=str)
        worker = self._box.worker()
        try:
            return worker.call("render", *call, seconds=self._seconds, gives=str)
        finally:
            worker.end()
