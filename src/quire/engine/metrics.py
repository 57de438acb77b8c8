"""Latency and memory of a request, defined once for engine, server, benchmarks and simulator."""

from __future__ import annotations

from dataclasses import dataclass

from quire.capabilities.misses import Miss


@dataclass(frozen=True)
class RequestMetrics:
    """The story of one finished request. Times in seconds on one clock, memory in KV blocks."""

    arrival_time: float
    first_token_time: float | None  # None if it ended before a token came
    finished_time: float
    num_prompt_tokens: int
    num_output_tokens: int  # over all outputs
    cached_tokens: int  # prompt tokens found in the prefix cache
    peak_blocks: int  # most blocks held at once, shared ones counted once
    block_seconds: float  # each block's time in seconds, divided among those who shared it
    shared_blocks: int = 0  # most blocks saved at once because its outputs shared them
    copied_blocks: int = 0  # copies on write
    num_swaps: int = 0  # preemptions by swap
    num_recomputes: int = 0  # preemptions by recompute
    swapped_bytes: int = 0  # moved to the host or back
    num_drafts: int = 0  # times that it was drafted for in a step
    num_draft_tokens: int = 0  # guessed, and computed to see whether they are right
    num_accepted_tokens: int = 0  # of its output, that had been guessed
    fetched_tokens: int = 0  # of the cached ones, that were fetched from the block store
    grammar_seconds: float = 0.0  # of a processor, to find out what its text may go on with
    beside_seconds: float = 0.0  # of steps: log-probabilities, edits of logits, stop strings
    miss: Miss | None = None  # why no more of its prompt was cached; None: all of it was
    expected_ttft: float | None = None  # when it came, by what else there was to do
    expected_e2e_latency: float | None = None

    @property
    def num_preemptions(self) -> int:
        return self.num_swaps + self.num_recomputes

    @property
    def ttft(self) -> float | None:
        """Time to first token: from arrival, so waiting is in it."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def e2e_latency(self) -> float:
        """From arrival to the last token."""
        return self.finished_time - self.arrival_time

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first one; None below two tokens."""
        if self.first_token_time is None or self.num_output_tokens < 2:
            return None
        return (self.finished_time - self.first_token_time) / (self.num_output_tokens - 1)

    @property
    def normalized_latency(self) -> float | None:
        """End-to-end latency per output token (Orca; PagedAttention, section 6.1)."""
        return self.e2e_latency / self.num_output_tokens if self.num_output_tokens else None
