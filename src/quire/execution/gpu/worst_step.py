"""The step that takes the most memory to compute."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.memory import BlockTable
from quire.core.protocol import Chunk, Opened, Readout, Request, SamplingParams, Step

# Nearly all of the vocabulary is kept, so the sampler has to sort it.
_SAMPLING = SamplingParams(temperature=100.0, top_p=0.9999)


def worst_step(
    max_tokens: int,
    max_seqs: int,
    max_positions: int,
    block_size: int,
    sink_blocks: Sequence[int],
) -> Step:
    """As many tokens as a step may have, of as many sequences as run, each of them sampled.

    All of them are in block 0 of every KV group, so a pool of one block will do: what is computed
    means nothing. ``sink_blocks``: ``BlockTable.num_sink_blocks`` of each KV group.
    """
    num_seqs = min(max_tokens, max_seqs)
    spare = max_tokens - num_seqs
    chunks, opened = [], []
    for seq_id in range(num_seqs):
        more = min(spare, max_positions - 1)
        spare -= more
        tokens = [0] * (1 + more)
        blocks = (0,) * -(-len(tokens) // block_size)
        first, *further = (
            BlockTable(blocks, block_size, num_sink_blocks=sinks) for sinks in sink_blocks
        )
        table = first._replace(further=tuple(further))
        request = Request(f"worst-{seq_id}", tuple(tokens), _SAMPLING, 1, seed=seq_id)
        opened.append(Opened(seq_id, request, 0, len(tokens)))
        chunks.append(Chunk(seq_id, tokens, 0, table, len(tokens), Readout()))
    return Step(chunks=chunks, opened=opened)
