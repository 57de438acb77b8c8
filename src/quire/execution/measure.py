"""What moving a block and computing a token cost on this machine, measured at start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quire.core.errors import EngineError
from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, BlockTable, MoveKind
from quire.core.protocol import Chunk, Opened, RecoveryCosts, Request, SamplingParams, Step
from quire.execution.executor import ModelExecutor

_PROMPT_TOKENS = 256
_BLOCKS = 16
_REPEATS = 3


def measure_recovery(
    executor: ModelExecutor,
    kv_groups: Sequence[KVGroup],
    block_size: int,
    max_tokens: int,
    settle: Callable[[], None] = lambda: None,
) -> RecoveryCosts:
    """Time a prefill, and swaps where each has host blocks, on KV groups that nobody uses yet.

    A block's cost is the mean over the KV groups. A step and a sequence may have ``max_tokens``.
    ``settle`` waits for work that was begun.
    """
    num_blocks = min(kv_group.num_blocks for kv_group in kv_groups)
    count = min(_BLOCKS, num_blocks, *(kv_group.num_host_blocks for kv_group in kv_groups))
    swaps = count * len(kv_groups)
    tokens = min(_PROMPT_TOKENS, num_blocks * block_size, max_tokens)
    blocks = tuple(range(-(-tokens // block_size)))
    first, *further = (
        BlockTable(blocks, block_size, num_sink_blocks=kv_group.num_sink_blocks(block_size))
        for kv_group in kv_groups
    )
    table = first._replace(further=tuple(further))
    request = Request("measure", (0,) * tokens, SamplingParams(), 1, seed=0)
    opened, chunk = Opened(0, request, 0, tokens), Chunk(0, [0] * tokens, 0, table, tokens, None)
    step, end = Step(chunks=[chunk], opened=[opened]), Step(closed=[0])
    there, back = (
        [
            BlockMove(kind, block, block, kv_group)
            for kv_group in range(len(kv_groups))
            for block in range(count)
        ]
        for kind in (MoveKind.SWAP_OUT, MoveKind.SWAP_IN)
    )

    move = executor.worker.move

    def swap() -> None:
        if move(there) or move(back):
            raise EngineError("the swap space cannot be written and read")
        settle()

    def compute() -> None:
        executor.submit(step).collect()
        settle()
        executor.submit(end)

    return RecoveryCosts(
        swap_per_block=_seconds(swap) / (2 * swaps) if swaps else 0.0,
        recompute_per_token=_seconds(compute) / tokens,
    )


def _seconds(work: Callable[[], object]) -> float:
    """The best of some repeats: what it costs when nothing else gets in the way."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
