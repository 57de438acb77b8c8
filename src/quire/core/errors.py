"""The exception tree, and how a value, or another library's error, is shown in a message.

QuireError
├── ConfigError    a setting is unknown, out of range, or contradicts another
├── ModelError     a model's directory, config, weights or tokenizer cannot be used
│   └── ModelNotFoundError    nothing is there by its name, or it cannot be had now
├── RequestError   a request cannot be served as it is; ``field`` names the culprit
│   ├── ContextLengthError    its prompt is longer than there is room for
│   ├── UnknownAdapterError   it names an adapter that is not loaded
│   ├── UnknownSessionError   it names a session that is not open
│   ├── TooManySessionsError   it would open more of them than may be
│   └── SessionBusyError      it needs a session whose turn has not ended
├── BusyError      one of it can be done at a time, and one is being done
├── RequestAbortedError   an operator has ended the request
├── OverloadedError    there is more work than can be done now; ``retry_after`` says when to retry
│   ├── QueueFullError        as many requests wait as may
│   └── QueueTimeoutError     a request has waited for longer than it may
└── EngineError    the engine failed while it worked; running requests end with this
    └── RankError     a rank is gone, or did not answer in time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = [
    "BusyError",
    "ConfigError",
    "ContextLengthError",
    "EngineError",
    "ModelError",
    "ModelNotFoundError",
    "OverloadedError",
    "QueueFullError",
    "QueueTimeoutError",
    "QuireError",
    "RankError",
    "RequestAbortedError",
    "RequestError",
    "SessionBusyError",
    "TooManySessionsError",
    "UnknownAdapterError",
    "UnknownSessionError",
    "cut",
    "reason",
    "shown",
    "visible",
]

DOCTOR = "quire doctor says what this machine has"  # where a start fails for the machine's sake
_MOST_SHOWN = 200  # characters of a value in a message, or of what another library says
_CONTROLS = (*range(32), *range(127, 160))
_TURNS = (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))  # and two line ends
_ESCAPES = {one: chr(one).encode("unicode_escape").decode() for one in (*_CONTROLS, *_TURNS)}
_WIDEST_INTEGER = 600  # bits; digits of wider ones are too many to show, and slow to compute


class QuireError(Exception):
    """Base of every error that Quire raises on purpose. It may quote anybody, in one line."""

    def __str__(self) -> str:
        return visible(super().__str__())


class ConfigError(QuireError, ValueError):
    """A setting is unknown, out of range, or contradicts another."""


class ModelError(QuireError):
    """A model's directory, config, weights or tokenizer cannot be used."""


class ModelNotFoundError(ModelError):
    """Nothing is there by a model's name, or it cannot be had now.

    ``name`` is a path, or what Hugging Face calls it.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class RequestError(QuireError, ValueError):
    """A request cannot be served as it is.

    ``field`` is the request's field at fault, in the caller's own words ("prompt", "top_k").
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class ContextLengthError(RequestError):
    """A prompt is longer than the model is, or than what there is memory for.

    tokens: that it has, at least. most: that it may have. length: of prompt and output together.
    """

    def __init__(self, message: str, field: str, tokens: int, most: int, length: int) -> None:
        # Agents know by OpenAI's sentence, from every server, that they have to say less.
        sentence = f"This model's maximum context length is {length} tokens. However, {message}"
        super().__init__(sentence, field)
        self.tokens = tokens
        self.most = most
        self.length = length


class UnknownAdapterError(RequestError):
    """A request names an adapter that is not loaded."""


class UnknownSessionError(RequestError):
    """A request names a session that is not open."""


class TooManySessionsError(RequestError):
    """A request would open more sessions than may be open."""


class SessionBusyError(RequestError):
    """A request needs a session whose turn has not ended."""


class BusyError(QuireError, RuntimeError):
    """What can be done once at a time is being done."""


class RequestAbortedError(QuireError, RuntimeError):
    """An operator has ended the request. To send it again is of no use."""


class OverloadedError(QuireError, RuntimeError):
    """There is more work than can be done now; nothing is wrong with the request.

    ``retry_after``: seconds after which it may be worth sending it again.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(OverloadedError):
    """As many requests wait as may; this one has not been queued."""


class QueueTimeoutError(OverloadedError):
    """A request has waited for longer than it may without having been let in."""


class EngineError(QuireError, RuntimeError):
    """The engine failed while it worked; the requests it was running end with this."""


class RankError(EngineError):
    """One of the processes that compute steps together is gone, or did not answer in time."""


def cut(text: str, most: int = _MOST_SHOWN) -> str:
    """``text``, or its beginning and three dots."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def visible(text: str) -> str:
    """``text``; escaped is what orders terminals about: controls, line ends, turns of direction."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def reason(error: BaseException) -> str:
    """What another library's error says, as a message may quote it: in one line, and not all.

    Halves of surrogate pairs, which no answer can hold, are escaped.
    """
    text = " ".join(str(error)[: 10 * _MOST_SHOWN].split())
    text = text.encode(errors="backslashreplace").decode()
    if isinstance(error, RecursionError):
        text = "it is nested too deeply"
    elif isinstance(error, MemoryError):
        text = text or "there is too little memory"
    return cut(text) or type(error).__name__


def shown(value: object) -> str:
    """``value`` as a message may quote it: like its repr, cut, and cheap however large it is."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _MOST_SHOWN:
            return cut(text)
    return text


def _pieces(value: object) -> Iterator[str]:
    # Lazily, so that of a long or deep value only its beginning is looked at.
    match value:
        case str():
            yield repr(value[: _MOST_SHOWN + 1])
        case int() if value.bit_length() > _WIDEST_INTEGER:
            yield f"an integer of {value.bit_length()} bits"
        case None | int() | float():
            yield repr(value)
        case list() | tuple():
            yield "["
            for number, item in enumerate(value):
                yield ", " if number else ""
                yield from _pieces(item)
            yield "]"
        case Mapping():
            yield "{"
            for number, (key, item) in enumerate(value.items()):
                yield ", " if number else ""
                yield from _pieces(key)
                yield ": "
                yield from _pieces(item)
            yield "}"
        case _:
            yield f"a value of type {type(value).__name__}"[: _MOST_SHOWN + 1]
