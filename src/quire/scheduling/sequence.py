"""The sequences that grow from a request, and the group in which they are scheduled."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from quire.memory import BlockHash, hash_block
from quire.scheduling.beam_search import BeamSearch
from quire.scheduling.request import Request


class Sequence:
    """One branch of a request: its tokens, and how many of them are in the KV cache."""

    __slots__ = (
        "block_hashes",
        "fork_at",
        "fork_from",
        "index",
        "num_computed",
        "num_prompt_tokens",
        "seq_id",
        "token_ids",
    )

    def __init__(self, seq_id: int, index: int, prompt_token_ids: Seq[int]) -> None:
        self.seq_id = seq_id
        self.index = index  # which of the request's outputs this is
        self.token_ids = list(prompt_token_ids)  # prompt and output
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed = 0
        self.block_hashes: list[BlockHash] = []  # of the full blocks of token_ids, in order
        # A dormant branch has no block table: it waits for a sibling to have computed the
        # tokens both share, and forks from it then.
        self.fork_from: Sequence | None = None
        self.fork_at = 0

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not computed; 1 in steady decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def hash_blocks(self, block_size: int) -> None:
        """Extend ``block_hashes`` to all the full blocks there are."""
        hashes = self.block_hashes
        for start in range(len(hashes) * block_size, len(self.token_ids), block_size):
            block = self.token_ids[start : start + block_size]
            if len(block) == block_size:
                hashes.append(hash_block(hashes[-1] if hashes else b"", block))

    def child(self, seq_id: int, index: int) -> Sequence:
        """A copy that goes its own way from here."""
        child = Sequence(seq_id, index, ())
        child.token_ids = self.token_ids.copy()
        child.num_prompt_tokens = self.num_prompt_tokens
        child.num_computed = self.num_computed
        child.block_hashes = self.block_hashes.copy()
        return child


@dataclass
class MemoryStory:
    """What a request cost in memory so far."""

    blocks: int = 0  # held now
    peak_blocks: int = 0
    block_seconds: float = 0.0
    cached_tokens: int = 0  # of the prompt, found computed at the first admission
    num_preemptions: int = 0

    def hold(self, blocks: int) -> None:
        self.blocks = blocks
        if blocks > self.peak_blocks:
            self.peak_blocks = blocks


class SequenceGroup:
    """A request and its live branches, scheduled, preempted and restored together."""

    __slots__ = ("beams", "branches", "ever_admitted", "expanded", "memory", "request", "running")

    def __init__(self, request: Request, trunk: Sequence, beams: BeamSearch | None) -> None:
        self.request = request
        self.beams = beams
        self.branches = [trunk]  # live ones, in order of index
        self.expanded = False  # whether the trunk's prompt is done, and it has forked
        self.running = False  # admitted, and not preempted since
        self.ever_admitted = False
        self.memory = MemoryStory()

    @property
    def width(self) -> int:
        """Sequences that this group runs, or will once its trunk has forked."""
        if self.expanded and self.beams is None:
            return len(self.branches)
        return self.request.params.width

    def tables(self) -> list[int]:
        """Ids of the branches that have a block table now."""
        if not self.running:
            return []
        return [branch.seq_id for branch in self.branches if branch.fork_from is None]
