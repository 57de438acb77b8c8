"""Prompts of vectors that clients send, in memory that is bounded for all of them together."""

from __future__ import annotations

import weakref
from base64 import b64decode
from collections import deque
from functools import partial

from starlette.exceptions import HTTPException

from quire.core.errors import RequestError
from quire.core.protocol import VectorSpan
from quire.engine.input_processor import NO_VECTORS
from quire.http.openai.requests import CompletionRequest
from quire.http.service import Service

FIELD = "prompt_embeds"
_PIECE = 2**20  # characters decoded in one go, for the interpreter is not shared meanwhile
_READING = 6  # bytes in memory for each one of a file while it is read: copies, in a wider type
_BESIDE = 128  # bytes for each vector: its digest, and its place among the prompt's ids


class GivenVectors:
    """Reads vectors in the thread that parses bodies.

    They count for as long as their request lives: while it waits, runs or was preempted, to the end
    of its answer.
    """

    def __init__(self, service: Service) -> None:
        self._enabled = service.config.enable_prompt_embeds
        self._most = service.config.max_prompt_embeds_bytes
        self._form = service.input_processor.vectors
        self._apart = service.bodies.apart
        self._held = 0
        self._let_go = deque[int]()  # by whichever thread, at any moment

    async def read(self, request: CompletionRequest) -> list[VectorSpan]:
        """The request's prompts, each given as a safetensors file in base64.

        RequestError: they are none, or too large; HTTPException: there is no memory now.
        """
        if not self._enabled:
            why = f"{FIELD} need a server that is started with --enable-prompt-embeds"
            raise RequestError(why, FIELD)
        if self._form is None:
            raise RequestError(NO_VECTORS, FIELD)
        sizes: list[int] = []
        weakref.finalize(request, self._let_go.extend, sizes).atexit = False
        texts = request.take_vector_files()
        return [await self._apart(partial(self._read, text, sizes)) for text in texts]

    def _read(self, text: str, sizes: list[int]) -> VectorSpan:
        assert self._form is not None, "read() has looked"
        while self._let_go:
            self._held -= self._let_go.popleft()
        most, wanted = self._most, _READING * (len(text) * 3 // 4)
        if wanted > most:
            raise RequestError(
                f"{FIELD} would take {wanted:,} bytes to read, and all that are held may take "
                f"{most:,} (--max-prompt-embeds-bytes)",
                FIELD,
            )
        if self._held + wanted > most:
            raise HTTPException(
                503,
                f"the {FIELD} of other requests hold {self._held:,} bytes of {most:,} "
                "(--max-prompt-embeds-bytes): try again",
                {"Retry-After": "1"},
            )
        span, size = self._form.read(_decoded(text))
        size += _BESIDE * len(span.digests)
        self._held += size
        sizes.append(size)
        return span


def _decoded(text: str) -> bytes:
    try:
        pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
        return b"".join(b64decode(piece, validate=True) for piece in pieces)
    except ValueError as error:  # binascii.Error, or a character that is not of ASCII
        raise RequestError(f"{FIELD} must be base64: {error}", FIELD) from None
