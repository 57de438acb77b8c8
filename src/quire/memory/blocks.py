"""Block ids, moves of whole blocks, and the chained hash that names a block's content."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

BlockHash = bytes
"""Names the content of a full block *and of everything before it*: equal hashes, equal KV."""


class MoveKind(Enum):
    COPY = "copy"  # device block -> device block (copy-on-write)
    SWAP_OUT = "swap_out"  # device block -> host block
    SWAP_IN = "swap_in"  # host block -> device block


class BlockMove(NamedTuple):
    """Copy one whole block. A list of moves is carried out in its order, kinds mixed."""

    kind: MoveKind
    source: int
    target: int
    kv_group: int = 0  # the layers whose pool it is in


def root_hash(cache_salt: str) -> BlockHash:
    """The parent of a sequence's first block: requests with different salts share nothing."""
    return hashlib.sha256(cache_salt.encode()).digest() if cache_salt else b""


def hash_blocks(parent: BlockHash, token_ids: Sequence[int], block_size: int) -> list[BlockHash]:
    """The hashes of the full blocks of ``token_ids`` that follow the block named ``parent``.

    The first block's parent is a ``root_hash``.
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
