"""What simulated steps have to do: the same figures as those of real ones."""

from __future__ import annotations

from quire.core.kv_groups import sights_of
from quire.core.protocol import EVERYTHING, Sight, Work, work_of

__all__ = ["EVERYTHING", "Sight", "Work", "beside", "decoding", "sights_of", "work_of"]


def decoding(num_seqs: int, context: int) -> Work:
    """The work of a step that only decodes."""
    return Work(0, 0, 0, num_seqs, context, num_seqs, 0, 0)


def beside(work: Work, num_seqs: int, context: int) -> Work:
    """What others do, and as many sequences that decode beside them."""
    return work._replace(
        decode_seqs=work.decode_seqs + num_seqs,
        decode_context=work.decode_context + context,
        samples=work.samples + num_seqs,
    )
