"""Blocks from engine to engine: one computes prompts, another goes on from them. Never torch."""

from quire.transfer.client import BlockFetcher, Prefiller
from quire.transfer.identity import Identity
from quire.transfer.server import BlockServer
from quire.transfer.shelves import FetchedBlocks

__all__ = ["BlockFetcher", "BlockServer", "FetchedBlocks", "Identity", "Prefiller"]
