"""What a step has to do, in the figures on which its time depends."""

from __future__ import annotations

from typing import NamedTuple

from quire.memory import MoveKind
from quire.scheduling import Step


class Work(NamedTuple):
    """A step's work. A chunk of one token is decoding, a longer one is prefill."""

    prefill_tokens: int = 0
    prefill_pairs: int = 0  # (token, token it sees): what attention computes
    prefill_context: int = 0  # tokens whose keys and values the chunks read, themselves included
    decode_seqs: int = 0
    decode_context: int = 0  # tokens whose keys and values they read, themselves included
    samples: int = 0  # rows that pass the LM head
    copied_blocks: int = 0
    swapped_blocks: int = 0  # to the host or back
    woken: int = 0  # 1 if nothing had run before the step: caches are cold, and cores asleep

    @property
    def num_tokens(self) -> int:
        return self.prefill_tokens + self.decode_seqs


def decoding(num_seqs: int, context: int) -> Work:
    """The work of a step that only decodes."""
    return Work(0, 0, 0, num_seqs, context, num_seqs, 0, 0)


def work_of(step: Step) -> Work:
    prefill_tokens = pairs = prefill_context = decode_seqs = decode_context = samples = 0
    for chunk in step.chunks:
        count = len(chunk.token_ids)
        end = chunk.start + count
        if count == 1:
            decode_seqs += 1
            decode_context += end
        else:
            prefill_tokens += count
            pairs += count * chunk.start + count * (count + 1) // 2
            prefill_context += end
        if chunk.readout is not None:
            samples += chunk.readout.rows
    copied = swapped = 0
    for move in step.moves:
        if move.kind is MoveKind.COPY:
            copied += 1
        else:
            swapped += 1
    return Work(
        prefill_tokens, pairs, prefill_context, decode_seqs, decode_context, samples, copied,
        swapped,
    )  # fmt: skip
