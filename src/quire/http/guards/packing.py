"""Bodies that come compressed."""

from __future__ import annotations

import zlib

from starlette.exceptions import HTTPException

_EITHER = 32 + zlib.MAX_WBITS  # gzip's frame or zlib's, as the data say
_PLAIN = ("", "identity")
_PACKED = ("gzip", "x-gzip", "deflate")


def is_packed(encoding: str) -> bool:
    """By a content-encoding; HTTPException if it is none that is understood."""
    name = encoding.strip().lower()
    if name in _PACKED:
        return True
    if name in _PLAIN:
        return False
    raise HTTPException(
        415, f"content-encoding {encoding[:50]!r} is not understood: gzip, deflate or identity are"
    )


def unpacked(body: bytes | bytearray, most: int) -> bytes:
    """What it holds; HTTPException if that is more than ``most`` bytes, or not whole."""
    unpacking = zlib.decompressobj(_EITHER)
    try:
        content = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise HTTPException(400, f"the body cannot be unpacked: {error}") from None
    if len(content) > most:
        raise HTTPException(413, f"the body unpacks to more than {most:,} bytes (--max-body-bytes)")
    if not unpacking.eof or unpacking.unused_data:
        raise HTTPException(400, "the body cannot be unpacked: it is not one whole gzip stream")
    return content
