"""Ways of giving out contiguous memory, to compare paging with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from quire.engine.traces.request import TraceRequest
from quire_lab.workload.clipping import asking_pow2


@dataclass(frozen=True)
class Baseline:
    """One region of consecutive slots for each sequence.

    asks_pow2: requests ask for a power of two of output tokens, at least as many as they need, and
    the allocator reserves that many. Otherwise they ask for what they will need.
    """

    key: str
    name: str
    reserves: str
    kv_allocator: str
    asks_pow2: bool = False

    def asks(self, workload: Iterable[TraceRequest], max_model_len: int) -> Iterator[TraceRequest]:
        """The workload's requests with the limits that they ask for."""
        for request in workload:
            if self.asks_pow2:
                yield asking_pow2(request, max_model_len)
            else:
                yield replace(request, max_tokens=None)


BASELINES = (
    Baseline("max", "contiguous, Max", "the model's length", "max"),
    Baseline("pow2", "contiguous, Pow2", "a power of two above the output", "oracle", True),
    Baseline("oracle", "contiguous, Oracle", "the true length", "oracle"),
    Baseline("doubling", "contiguous, doubling", "twice as much when outgrown", "pow2"),
)
"""The PagedAttention paper's "Orca" (Kwon et al., section 6.1), and one that moves."""

POLICY_NAMES = {"paged": "paged", **{one.key: one.name for one in BASELINES}}
"""By the key under which a plan has them."""
