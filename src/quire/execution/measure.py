"""What moving a block and computing a token cost on this machine, measured at start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quire.execution.executor import ModelExecutor
from quire.execution.swap_file import SwapFile
from quire.memory import BlockTable
from quire.scheduling import Chunk, RecoveryCosts, Request, SamplingParams, Step

_PROMPT_TOKENS = 256
_BLOCKS = 16
_REPEATS = 3


def measure_recovery(
    executor: ModelExecutor,
    swap_files: Sequence[SwapFile],
    num_blocks: int,
    block_size: int,
    num_sink_blocks: int,
) -> RecoveryCosts:
    """Time swaps and a prefill on lanes of ``num_blocks`` or more that nobody uses yet.

    A block's cost is the mean over the lanes, each of which has a swap file.
    """
    count = min(_BLOCKS, num_blocks, *(swap_file.num_blocks for swap_file in swap_files))
    tokens = min(_PROMPT_TOKENS, num_blocks * block_size)
    blocks = tuple(range(-(-tokens // block_size)))
    table = BlockTable(blocks, tokens, num_sink_blocks=num_sink_blocks)
    table = table._replace(further=(table,) * (len(swap_files) - 1))
    request = Request("measure", (0,) * tokens, SamplingParams(), 1, seed=0)
    step = Step([], [Chunk(0, request, 0, [0] * tokens, 0, table, 0, (), tokens)], [])

    def swap() -> None:
        for swap_file in swap_files:
            for block in range(count):
                swap_file.write(block, block)
            for block in range(count):
                swap_file.read(block, block)

    return RecoveryCosts(
        swap_per_block=_seconds(swap) / (2 * count * len(swap_files)),
        recompute_per_token=_seconds(lambda: executor.execute(step)) / tokens,
    )


def _seconds(work: Callable[[], object]) -> float:
    """The best of some repeats: what it costs when nothing else gets in the way."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
