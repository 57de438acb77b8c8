"""What a step has to do, in the figures on which its time depends."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from quire.core.kv_groups import KVGroup
from quire.core.memory import MoveKind
from quire.core.protocol import Step


class Work(NamedTuple):
    """A step's work. A chunk of one token, and drafts after it, is decoding; others are prefill.

    Tokens that are seen, and whose keys and values are read, are counted as in the mean over
    layers: a layer with a window sees no more than that.
    """

    prefill_tokens: int = 0
    prefill_pairs: float = 0  # (token, token it sees): what attention computes
    prefill_context: float = 0  # tokens whose keys and values the chunks read, themselves included
    decode_seqs: int = 0
    decode_context: float = 0  # tokens whose keys and values they read, all their own included
    samples: int = 0  # rows that pass the LM head
    copied_blocks: int = 0  # and states that are left on the way
    swapped_blocks: int = 0  # to the host or back
    woken: int = 0  # 1 if nothing had run before the step: caches are cold, and cores asleep
    draft_tokens: int = 0  # that decoding sequences have verified
    draft_pairs: float = 0  # (draft, token it sees); what is read for them is read once

    @property
    def num_tokens(self) -> int:
        return self.prefill_tokens + self.decode_seqs + self.draft_tokens


class Sight(NamedTuple):
    """How far some of the layers see."""

    share: float  # of all layers
    tokens: int | None  # that a token sees at most, itself included; None: all that are before it

    def pairs(self, start: int, count: int) -> int:
        """(token, token it sees) of ``count`` tokens from position ``start`` on."""
        whole, most = count, self.tokens
        if most is not None:
            whole = max(0, min(count, most - start))  # of them see all that are before them
        limited = 0 if most is None else (count - whole) * most
        return whole * start + whole * (whole + 1) // 2 + limited

    def context(self, start: int, count: int) -> int:
        """Tokens that any of them sees."""
        end = start + count
        return end if self.tokens is None else min(end, count + self.tokens - 1)


EVERYTHING = (Sight(1, None),)


def sights_of(kv_groups: Sequence[KVGroup], layers: range | None = None) -> tuple[Sight, ...]:
    """Of a model with these KV groups.

    layers: those that are its own, where a draft model has the others.
    """
    kv_groups = [kv_group for kv_group in kv_groups if kv_group.state is None]
    counts = [
        len(kv_group.layers) if layers is None else sum(one in layers for one in kv_group.layers)
        for kv_group in kv_groups
    ]
    own = [(one.kept.sight, n) for one, n in zip(kv_groups, counts, strict=True) if n]
    if all(sight is None for sight, _ in own):
        return EVERYTHING
    return tuple(Sight(n / sum(counts), sight) for sight, n in own)


class Decoders(NamedTuple):
    """Sequences that decode in a step, and are not among its chunks."""

    num_seqs: int
    contexts: Sequence[int]  # tokens that they see, by sight


NOBODY = Decoders(0, ())


def seen(sights: Sequence[Sight], contexts: Sequence[int]) -> float:
    """Tokens that are seen, in the mean over layers; ``contexts`` by sight."""
    return sum(sight.share * one for sight, one in zip(sights, contexts, strict=True))


def work_of(step: Step, sights: Sequence[Sight] = EVERYTHING, others: Decoders = NOBODY) -> Work:
    prefill_tokens = draft_tokens = 0
    decode_seqs = samples = others.num_seqs
    pairs = prefill_context = 0.0 if sights is not EVERYTHING else 0
    draft_pairs = 0.0
    # Whole numbers, so that the order of the sequences does not matter.
    contexts = [*others.contexts] or [0] * len(sights)
    copied = swapped = 0
    for chunk in step.chunks:
        start, count, readout = chunk.start, len(chunk.token_ids), chunk.readout
        if readout is not None:
            samples += readout.rows
        own = [sight.context(start, count) for sight in sights]
        if count == 1:
            decode_seqs += 1
            contexts = [*map(add, contexts, own)]
        elif readout is not None and readout.rows == count:
            decode_seqs += 1
            contexts = [*map(add, contexts, own)]
            draft_tokens += count - 1
            draft_pairs += sum(sight.share * sight.pairs(start + 1, count - 1) for sight in sights)
        else:
            prefill_tokens += count
            pairs += sum(sight.share * sight.pairs(start, count) for sight in sights)
            prefill_context += seen(sights, own)
            copied += len(chunk.left)
    for move in step.moves:
        if move.kind is MoveKind.COPY:
            copied += 1
        else:
            swapped += 1
    return Work(
        prefill_tokens, pairs, prefill_context, decode_seqs, seen(sights, contexts), samples,
        copied, swapped, 0, draft_tokens, draft_pairs,
    )  # fmt: skip
