"""Vectors in the place of a prompt's tokens: what may be given, and the rows of a step they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from quire.core.errors import RequestError, reason
from quire.core.protocol import Chunk, Opened, VectorSpan

_FIELD = "prompt_embeds"
_LONGEST_HEADER = 4096  # bytes of a file: a few lines of JSON are read, and no million
_MADE_BY_TORCH = b"PK\x03\x04"


class VectorForm(NamedTuple):
    """The vectors that a model takes in the place of its tokens'."""

    width: int
    dtype: torch.dtype  # to which all are cast

    def count(self, given: object) -> int:
        """How many vectors a tensor has. RequestError, unless it is one that can be taken."""
        if isinstance(given, VectorSpan):  # which was made here
            return len(given.digests)
        if not isinstance(given, Tensor):
            raise _refused(f"must be a torch.Tensor, got {type(given).__name__}")
        if given.layout is not torch.strided or given.is_nested or given.is_meta:
            raise _refused("must be a dense tensor, whose numbers are there")
        if not given.is_floating_point():
            raise _refused(f"must be of floating point, got {given.dtype}")
        if given.ndim != 2 or given.shape[1] != self.width or not len(given):
            wanted = f"[tokens, {self.width}], with at least one token"
            raise _refused(f"must have the shape {wanted}; got {list(given.shape)}")
        return len(given)

    def span(self, given: object) -> VectorSpan:
        """A prompt of these vectors alone. The caller may change its tensor afterwards."""
        if isinstance(given, VectorSpan):
            return given
        self.count(given)
        given = cast(Tensor, given).detach()
        vectors = given.to("cpu", self.dtype, copy=True).contiguous()
        if not bool(vectors.isfinite().all()):
            raise _refused(f"must be finite numbers, as {self.dtype} too")
        rows = vectors.view(torch.uint8).numpy()
        return VectorSpan(0, [blake2b(row, digest_size=16).digest() for row in rows], vectors)

    def read(self, file: bytes) -> tuple[VectorSpan, int]:
        """A prompt of the one tensor of a safetensors file, and the bytes that its numbers take."""
        header = int.from_bytes(file[:8], "little")
        if header > min(_LONGEST_HEADER, len(file)):
            if file.startswith(_MADE_BY_TORCH):
                raise _refused("must be a safetensors file; torch.save's may run what they hold")
            raise _refused(
                f"must be a safetensors file, whose header has at most {_LONGEST_HEADER:,} bytes"
            )
        try:
            tensors = load(file)
        except (SafetensorError, KeyError) as error:
            raise _refused(f"must be a whole safetensors file: {reason(error)}") from None
        if len(tensors) != 1:
            raise _refused(f"must be a file of one tensor; it has {len(tensors)}")
        span = self.span(*tensors.values())
        return span, len(span.digests) * self.width * self.dtype.itemsize


def given_rows(chunks: Sequence[Chunk], known: Iterable[Opened]) -> tuple[tuple[int, Tensor], ...]:
    """The vectors of a step's chunks, each with the row from which on they are.

    known: whose the chunks are.
    """
    found, row = [], 0
    for chunk, opened in zip(chunks, known, strict=True):
        end = chunk.start + len(chunk.token_ids)
        for span in opened.request.spans:
            first, last = max(chunk.start, span.start), min(end, span.end)
            if first < last:
                vectors = cast(Tensor, span.vectors)[first - span.start : last - span.start]
                found.append((row + first - chunk.start, vectors))
        row += len(chunk.token_ids)
    return tuple(found)


def _refused(why: str) -> RequestError:
    return RequestError(f"{_FIELD} {why}", _FIELD)
