"""Whether two engines' blocks are the same bits, and if not, why.

A connection begins with a hello from either side::

    8 bytes   b"QUIREXF1"
    uint32    bytes of what follows, little-endian; at most 4096
    JSON      an object of texts: what decides a block's bits, part by part, each as a digest
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

MAGIC = b"QUIREXF1"
HEAD_BYTES = len(MAGIC) + 4
_MOST_BYTES = 4096


class TransferError(Exception):
    """Blocks cannot be fetched from a peer, which may be anyone; says why."""


class TooSlow(TransferError):
    """The peer has used up its time."""


@dataclass(frozen=True)
class Identity:
    """Digests of all that decides a block's bits beside its text, by part."""

    parts: Mapping[str, str]

    @property
    def hello(self) -> bytes:
        text = json.dumps(dict(self.parts), sort_keys=True).encode()
        return MAGIC + struct.pack("<I", len(text)) + text

    def compare(self, text: bytes) -> None:
        """TransferError, naming what differs, unless a peer's hello says the same."""
        try:
            theirs = json.loads(text)
        except (ValueError, RecursionError):
            raise TransferError("its hello is no JSON") from None
        if not isinstance(theirs, dict):
            raise TransferError("its hello is no JSON object")
        different = sorted(
            str(name)[:32]
            for name in {*theirs, *self.parts}
            if theirs.get(name) != self.parts.get(name)
        )
        if different:
            raise TransferError(f"its blocks are others than ours: {', '.join(different)} differ")


def hello_bytes(head: bytes) -> int:
    """Length of a hello after its head; TransferError: it is not a hello."""
    if head[: len(MAGIC)] != MAGIC:
        raise TransferError("it is no Quire of this version")
    (length,) = struct.unpack_from("<I", head, len(MAGIC))
    if length > _MOST_BYTES:
        raise TransferError("its hello is too long")
    return int(length)
