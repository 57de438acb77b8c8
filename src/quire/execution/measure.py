"""What moving a block and computing a token cost on this machine, measured at start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quire.core.errors import EngineError
from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, BlockTable, MoveKind
from quire.core.protocol import Chunk, Opened, RecoveryCosts, Request, Step
from quire.execution.executor import ModelExecutor
from quire.execution.kv_bytes import least_blocks, some_blocks
from quire.text.params import SamplingParams

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

    A step and a sequence may have ``max_tokens``. ``settle`` waits for work that was begun.
    """
    paged = [kv_group for kv_group in kv_groups if kv_group.state is None]
    num_blocks = least_blocks(paged) if paged else max_tokens
    tokens = min(_PROMPT_TOKENS, num_blocks * block_size, max_tokens)
    blocks = some_blocks(kv_groups, -(-tokens // block_size))
    first, *further = (
        BlockTable(own, block_size, num_sink_blocks=kv_group.num_sink_blocks(block_size))
        if kv_group.state is None
        else BlockTable((0,), block_size, keeps_state=True)
        for kv_group, own in zip(kv_groups, blocks, strict=True)
    )
    table = first._replace(further=tuple(further))
    request = Request("measure", (0,) * tokens, SamplingParams(), 1, seed=0)
    opened, chunk = Opened(0, request, 0, tokens), Chunk(0, [0] * tokens, 0, table, tokens, None)
    step, end = Step(chunks=[chunk], opened=[opened]), Step(closed=[0])
    move = executor.worker.move

    def seconds_to_swap(first: int, groups: Sequence[KVGroup]) -> float:
        """Seconds for a block, one way; the mean over ``groups``, numbered from ``first`` on."""
        count = min(
            (min(_BLOCKS, one.num_blocks, one.num_host_blocks) for one in groups), default=0
        )
        if not count:
            return 0.0
        there, back = (
            [
                BlockMove(kind, block, block, kv_group)
                for kv_group in range(first, first + len(groups))
                for block in range(count)
            ]
            for kind in (MoveKind.SWAP_OUT, MoveKind.SWAP_IN)
        )

        def swap() -> None:
            if move(there) or move(back):
                raise EngineError("the swap space cannot be written and read")
            settle()

        return _seconds(swap) / (2 * count * len(groups))

    def compute() -> None:
        executor.submit(step).collect()
        settle()
        executor.submit(end)

    return RecoveryCosts(
        swap_per_block=seconds_to_swap(0, paged),
        recompute_per_token=_seconds(compute) / tokens,
        swap_per_state=seconds_to_swap(len(paged), kv_groups[len(paged) :]),
    )


def _seconds(work: Callable[[], object]) -> float:
    """The shortest of some repeats: the time it takes when nothing else gets in the way."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
