"""Blocks from engine to engine: one computes prompts, another continues them. Loads no torch."""

from quire.blocks.transfer.client import BlockFetcher, Missing, Prefiller
from quire.blocks.transfer.key import SharedKey
from quire.blocks.transfer.server import BlockServer, Identity
from quire.blocks.transfer.shelves import FetchedBlocks

__all__ = [
    "BlockFetcher",
    "BlockServer",
    "FetchedBlocks",
    "Identity",
    "Missing",
    "Prefiller",
    "SharedKey",
]
