"""The log-probabilities of prompts' tokens, of all that a step computes of them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from quire.core.protocol import Chunk, Opened, TokenLogprobs
from quire.execution.forward import Hidden, Worker
from quire.execution.sampling.rows import to_device
from quire.execution.sampling.sampler import token_logprobs

_ROWS = 256  # bounds the logits held at once


def prompt_logprobs(
    chunks: Sequence[Chunk], known: Sequence[Opened], hidden: Hidden, worker: Worker
) -> Iterator[tuple[int, Sequence[TokenLogprobs]]]:
    """Log-probabilities by sequence, of the tokens after those of its chunk in a scored prompt.

    Rows of short chunks pass the LM head together.
    """
    first, rows, successors, counts = 0, list[int](), list[int](), list[int]()
    found: list[tuple[int, int]] = []
    for chunk, whose in zip(chunks, known, strict=True):
        num_top, end = whose.request.params.prompt_logprobs, chunk.start + len(chunk.token_ids)
        if num_top is not None:
            following = whose.request.prompt_token_ids[chunk.start + 1 : end + 1]
            found.append((chunk.seq_id, len(following)))
            rows += range(first, first + len(following))
            successors += following
            counts += [num_top] * len(following)
        first += len(chunk.token_ids)
    entries: list[TokenLogprobs] = []
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        states = hidden.states[to_device(torch.tensor(rows[part]), hidden.states.device)]
        logits = worker.logits(states, hidden.heads(rows[part]))
        entries += token_logprobs(logits, successors[part], counts[part])
    start = 0
    for seq_id, count in found:
        yield seq_id, entries[start : start + count]
        start += count
