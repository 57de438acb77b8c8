"""A model's logits after every token of a text, as an engine computes them.

A text is read in steps of a few tokens, so that what is rounded is what serving rounds: weights,
activations, and the keys and values that earlier steps left in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.core.memory import BlockTable
from quire.core.protocol import Chunk
from quire.engine.llm import LLM
from quire.execution.batch import pack
from quire.execution.executor import ModelExecutor
from quire.execution.forward import Worker, nothing_sampled
from quire.execution.kv_bytes import least_blocks, some_blocks

_STEP = 64  # tokens


def worker_of(llm: LLM) -> Worker:
    """What computes in this process. ConfigError: others compute, or there is no next token."""
    executor = llm.engine.executor
    if not isinstance(executor, ModelExecutor) or not llm.capacity.kv_groups:
        raise ConfigError(
            f"{llm.capacity.model_name} cannot be evaluated: that needs a model that writes text, "
            "on one rank"
        )
    return executor.worker


@torch.inference_mode()
def next_token_logits(llm: LLM, token_ids: Sequence[int]) -> Iterator[Tensor]:
    """float32 [n, V] for n tokens after the other, on the pool of an engine that is idle.

    ConfigError: the text is longer than the pool.
    """
    worker, tables = worker_of(llm), []
    blocks = -(-len(token_ids) // worker.block_size)
    kv_groups = llm.capacity.kv_groups
    there = least_blocks(kv_groups)
    if there < blocks:
        raise ConfigError(
            f"{len(token_ids)} tokens need {blocks} blocks, and the pool has "
            f"{there}: give a larger kv_cache_memory_bytes or a smaller context"
        )
    for kv_group, own in zip(kv_groups, some_blocks(kv_groups, blocks), strict=True):
        sinks = kv_group.num_sink_blocks(worker.block_size)
        tables.append(BlockTable(own, worker.block_size, num_sink_blocks=sinks))
    table = tables[0]._replace(further=tuple(tables[1:]))
    for start in range(0, len(token_ids), _STEP):
        ids = list(token_ids[start : start + _STEP])
        batch = pack([Chunk(0, ids, start, table, 0, None)], worker.block_size, [], [], [], [])
        states = worker.compute(batch, nothing_sampled).states[: len(ids)]
        yield worker.logits(states).cpu()
