"""The sequences that grow from a request, and the group in which they are scheduled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from quire.core.memory import BlockHash, hash_blocks
from quire.core.protocol.request import FinishReason, Request, VectorSpan
from quire.core.protocol.soft_cut import SoftCut
from quire.core.scheduling.scores import PromptScores

_T = TypeVar("_T")


class Sequence:
    """One branch of a request: its tokens, and how many of them are in the KV cache."""

    __slots__ = (
        "block_hashes",
        "cuts",
        "fork_at",
        "fork_from",
        "given_hashes",
        "index",
        "num_computed",
        "num_prompt_tokens",
        "places",
        "root_hash",
        "seq_id",
        "spans",
        "token_ids",
    )

    def __init__(
        self,
        seq_id: int,
        index: int,
        prompt_token_ids: Seq[int],
        root_hash: BlockHash = b"",
        given_hashes: Seq[BlockHash] = (),
        spans: Seq[VectorSpan] = (),
    ) -> None:
        self.seq_id = seq_id
        self.index = index  # which of the request's outputs this is
        self.token_ids = array("I", prompt_token_ids)  # prompt and output, four bytes each
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed = 0
        self.root_hash = root_hash  # parent of the first block's
        self.given_hashes = given_hashes  # of the first blocks, where they are known beforehand
        self.spans = spans  # of vectors in its prompt, in their order
        self.cuts: Seq[SoftCut] = ()  # in their order; none of an earlier token can come
        self.block_hashes: list[BlockHash] = []  # of the full blocks of token_ids, in order
        self.places: Seq[int] = ()  # ends of blocks after which its state is left, ascending
        # A dormant branch has no block table: it waits for a sibling to have computed the
        # tokens both share, and forks from it then.
        self.fork_from: Sequence | None = None
        self.fork_at = 0

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not computed; 1 in steady decoding."""
        return len(self.token_ids) - self.num_computed

    def places_between(self, start: int, end: int) -> Seq[int]:
        """Those that a chunk from ``start`` to ``end`` comes by."""
        places = self.places
        return places[bisect_right(places, start) : bisect_left(places, end)]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def hash_blocks(self, block_size: int) -> None:
        """Extend ``block_hashes`` to all the full blocks there are."""
        hashes = self.block_hashes
        if len(hashes) < len(self.given_hashes):
            hashes += self.given_hashes[len(hashes) : len(self.token_ids) // block_size]
        full = len(self.token_ids) // block_size
        for end in (*self.cut_blocks(block_size), full):
            start = len(hashes)
            if start < min(end, full):
                parent = self.parent_hash(start, block_size) or self.root_hash
                tokens = self.token_ids[start * block_size : end * block_size]
                hashes += hash_blocks(parent, tokens, block_size)

    def cut_blocks(self, block_size: int) -> list[int]:
        """The blocks with which names begin anew, in order: those in which soft cuts are, and
        those with vectors.
        """
        blocks = [cut.position // block_size for cut in self.cuts]
        for span in self.spans:
            blocks += range(span.start // block_size, (span.end - 1) // block_size + 1)
        return sorted(blocks) if self.spans else blocks

    def parent_hash(self, block: int, block_size: int) -> BlockHash | None:
        """That of a block whose predecessors are named; None: the root."""
        parent = self.block_hashes[block - 1] if block else None
        for cut in self.cuts:
            if cut.position // block_size == block:
                parent = cut.root(self.root_hash if parent is None else parent)
        start, end = block * block_size, (block + 1) * block_size
        for span in self.spans:
            if span.start < end and start < span.end:
                parent = span.root(self.root_hash if parent is None else parent, start, end)
        return parent

    def child(self, seq_id: int, index: int) -> Sequence:
        """A copy that goes its own way from here."""
        child = Sequence(seq_id, index, (), self.root_hash, spans=self.spans)
        child.token_ids = self.token_ids[:]
        child.num_prompt_tokens = self.num_prompt_tokens
        child.num_computed = self.num_computed
        child.block_hashes = self.block_hashes.copy()
        child.cuts = self.cuts
        return child


@dataclass
class MemoryStory:
    """What a request cost in memory so far."""

    blocks: int = 0  # device blocks held now
    peak_blocks: int = 0
    shared_blocks: int = 0  # most blocks saved at once because branches share them
    copied_blocks: int = 0  # copies on write
    block_seconds: float = 0.0  # each block's time, divided among those who share it
    cached_tokens: int = 0  # of the prompt, found computed at the first admission
    fetched_tokens: int = 0  # of those, fetched from a source
    num_swaps: int = 0  # preemptions by swap
    num_recomputes: int = 0  # preemptions by recompute
    swapped_blocks: int = 0  # moved to the host or back
    miss: object = None  # why the cache had no more of the prompt, for who looks into that
    read_since: float | None = None  # when the rest began to be computed

    def hold(self, blocks: int, saved: int) -> None:
        self.blocks = blocks
        if blocks > self.peak_blocks:
            self.peak_blocks = blocks
        if saved > self.shared_blocks:
            self.shared_blocks = saved


class Status(Enum):
    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"
    SWAPPED = "swapped"  # its blocks are on the host
    RESIDENT = "resident"  # holds blocks but does not run: an idle session, or its next turn


class Extension(NamedTuple):
    """Extend a live beam by a token."""

    beam: int  # its number among the live beams
    token_id: int
    score: float  # sum of the log-probabilities of the output so far


class Hypothesis(NamedTuple):
    """A finished beam."""

    score: float
    cumulative_logprob: float
    token_ids: tuple[int, ...]


class Search(ABC):
    """Chooses which branches of a request go on, and by which tokens, all of them at once.

    finished: the beams that have ended, best first.
    """

    finished: list[Hypothesis]

    @property
    @abstractmethod
    def num_candidates(self) -> int:
        """Likeliest tokens to look at for each beam."""

    @abstractmethod
    def advance(
        self,
        length: int,
        candidates: Seq[Seq[tuple[int, float]]],
        output_of: Callable[[int], Seq[int]],
    ) -> list[Extension]:
        """The beams to go on with, best first; empty when the search is over.

        length: output tokens of each beam once the next is chosen.
        candidates: for each live beam, its likeliest next tokens and their log-probabilities, the
            likeliest first.
        output_of: the output so far of a live beam, by its number; for those that end.
        """

    @abstractmethod
    def finish_reason(self, hypothesis: Hypothesis) -> FinishReason: ...


class SequenceGroup:
    """A request and its live branches, scheduled, preempted and restored together."""

    __slots__ = (
        "beams", "begun", "branches", "ever_admitted", "expanded", "may_fetch", "memory", "rank",
        "request", "scores", "status",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        trunk: Sequence,
        beams: Search | None,
        rank: tuple[float, int],
        scores: PromptScores | None = None,
    ) -> None:
        self.request = request
        self.beams = beams
        self.scores = scores  # of its prompt, if the request wants them
        self.rank = rank  # the lower, the sooner; different from all others'
        self.branches = [trunk]  # live ones, in order of index
        self.expanded = False  # whether the trunk's prompt is done, and it has forked
        self.status = Status.WAITING
        self.begun = False  # whether it has been let in, if only once
        self.ever_admitted = False
        self.may_fetch = True  # until that has failed: it is tried once
        self.memory = MemoryStory()

    @property
    def width(self) -> int:
        """Sequences that this group runs, or will once its trunk has forked."""
        if self.expanded and self.beams is None:
            return len(self.branches)
        return self.request.params.width

    def tables(self) -> list[int]:
        """Ids of the branches that have a block table now, on the device or on the host."""
        if self.status is Status.WAITING:
            return []
        return [branch.seq_id for branch in self.branches if branch.fork_from is None]

    def next_fork(self, branch: Sequence) -> int | None:
        """The position where ``branch`` must pause because a dormant sibling forks off there."""
        points = [one.fork_at for one in self.branches if one.fork_from is branch]
        return min(points, default=None)


def by_rank(group: SequenceGroup) -> tuple[float, int]:
    """The key of a queue's order."""
    return group.rank


def discard(items: list[_T], item: _T, key: Callable[[_T], Any]) -> bool:
    """Take ``item`` out of a list in order of unequal keys; False if it is not there."""
    index = bisect_left(items, key(item), key=key)
    if index == len(items) or items[index] is not item:
        return False
    del items[index]
    return True
