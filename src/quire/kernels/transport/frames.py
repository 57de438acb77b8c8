"""What a message is on a wire, whoever reads and writes it.

    4 bytes   b"QRE2"
    uint32    bytes of the message, little-endian, at most 1 MiB
    uint64    bytes of its payload, at most what its reader expects
    message   a tagged struct in MessagePack
    payload   bytes that are sent and kept as they are, such as a block's

Nothing that comes is run, and no memory is taken before both sizes have been checked.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

_T = TypeVar("_T")
Buffer: TypeAlias = bytes | bytearray | memoryview

_MAGIC = b"QRE2"
_SIZES = struct.Struct("<IQ")
_MOST = 1 << 20  # bytes of a message
_encode = msgspec.msgpack.Encoder().encode


class PeerError(Exception):
    """The process at the other end is of no use any more; says why."""


class TooSlow(PeerError):
    """It has used up its time."""


class Stranger(PeerError):
    """It is no Quire of this version, or has another part in it."""

    def __init__(self) -> None:
        super().__init__("it does not speak as Quire does")


class Language(Generic[_T]):
    """The messages that one end may receive."""

    def __init__(self, kinds: Sequence[type[_T]]) -> None:
        union: Any = kinds[0]
        for kind in kinds[1:]:
            union |= kind
        self._decode = msgspec.msgpack.Decoder(union).decode

    def arriving(self, most: int) -> Generator[memoryview, None, tuple[_T, bytearray]]:
        """Yields buffers to be filled, one after the other; the message and its payload are what
        it returns. Stranger: it is none of these, or its payload is larger than ``most``.
        """
        head = bytearray(len(_MAGIC) + _SIZES.size)
        magic, sizes = memoryview(head)[: len(_MAGIC)], memoryview(head)[len(_MAGIC) :]
        yield magic
        if magic != _MAGIC:
            raise Stranger
        yield sizes
        size, along = _SIZES.unpack(sizes)
        if size > _MOST or along > most:
            raise Stranger
        body, payload = bytearray(size), bytearray(along)
        yield memoryview(body)
        yield memoryview(payload)
        try:
            message: _T = self._decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise Stranger from None
        return message, payload


def pieces(message: msgspec.Struct, payload: Buffer) -> list[memoryview]:
    """What is to be sent, without a copy of the payload."""
    body, along = _encode(message), memoryview(payload).cast("B")
    head = _MAGIC + _SIZES.pack(len(body), along.nbytes)
    return [memoryview(head + body), along] if along else [memoryview(head + body)]
