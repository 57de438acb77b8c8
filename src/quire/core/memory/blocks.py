"""Block ids, moves of whole blocks, and the chained hash that names a block's content."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

BlockHash = bytes
"""Names the content of a full block *and of everything before it*: equal hashes, equal KV."""


OUTSIDE = -1
"""The number of a block that is in a source of blocks and not in the pool."""


class MoveKind(Enum):
    COPY = "copy"  # device block -> device block (copy-on-write)
    SWAP_OUT = "swap_out"  # device block -> host block
    SWAP_IN = "swap_in"  # host block -> device block
    FETCH = "fetch"  # OUTSIDE -> device block
    STORE = "store"  # device block -> OUTSIDE; nobody relies on it


class Content(NamedTuple):
    """What a full block holds: its name, and its own tokens, by which it is known once more."""

    name: BlockHash
    token_ids: tuple[int, ...]


class BlockMove(NamedTuple):
    """Copy one whole block. A list of moves is carried out in its order, kinds mixed."""

    kind: MoveKind
    source: int
    target: int
    kv_group: int = 0  # the layers whose pool it is in
    content: Content | None = None  # of a block that comes from OUTSIDE, or goes there


def root_hash(cache_salt: str, adapter: bytes = b"") -> BlockHash:
    """The parent of a sequence's first block: who differs in any of these shares nothing.

    adapter: the fingerprint of what the weights are changed by, if they are. Each field has its
    tag and its length before it, so no pair of values can look like another.
    """
    if not cache_salt and not adapter:
        return b""
    root = hashlib.sha256()
    for tag, value in ((b"salt", cache_salt.encode()), (b"adapter", adapter)):
        root.update(tag + len(value).to_bytes(8, "little") + value)
    return root.digest()


def rooted(parent: BlockHash, facts: bytes) -> BlockHash:
    """The parent of a block whose keys depend on ``facts`` beside all tokens before it.

    facts: of a length that only facts of their kind have.
    """
    return hashlib.sha256(b"facts" + len(parent).to_bytes(8, "little") + parent + facts).digest()


def name_of_state(name: BlockHash) -> BlockHash:
    """The name of the state after the block of that name, in a source that keeps both."""
    return hashlib.blake2b(b"state" + name, digest_size=len(name)).digest()


def hash_blocks(parent: BlockHash, token_ids: Sequence[int], block_size: int) -> list[BlockHash]:
    """The hashes of the full blocks of ``token_ids`` that follow the block named ``parent``.

    The first block's parent is a ``root_hash``; one that depends on more is ``rooted``.
    Keys depend on every earlier token, so the parent's hash is part of the child's. A
    cryptographic digest, because a crafted collision would show one user another user's prompt.
    """
    tokens = array("I", token_ids)
    content, stride = tokens.tobytes(), tokens.itemsize * block_size
    hashes = []
    for start in range(0, len(content) - stride + 1, stride):
        digest = hashlib.blake2b(parent + content[start : start + stride], digest_size=16)
        parent = digest.digest()
        hashes.append(parent)
    return hashes
