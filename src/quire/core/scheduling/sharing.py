"""How a step is shared between a long prefill and those who decode behind it in the queue.

A group that comes first by priority may come while others decode, and take many steps to prefill.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from quire.core.scheduling.sequence import SequenceGroup, by_rank


class DecodeShare:
    """Keeps half of a step's tokens for those who decode behind a prefill.

    So with R rows that decode and B tokens that those before have left, each of them decodes in
    every step if R is at most B / 2, else in turn, at least once in 2 R / B + 1 steps; and the
    prefill has half of the tokens, or more. What half a token is, or half of what a group of beams
    needs at once, is saved up.
    """

    def __init__(self) -> None:
        self._saved = 0.0  # tokens
        self._last: tuple[float, int] | None = None  # the rank of the group that had the last one
        self._kept: dict[str, int] = {}  # in this step, by request
        self._found = False  # a prefill, in this step

    def begin(self) -> None:
        """Another step."""
        self._kept.clear()
        self._found = False

    def budget(self, running: Seq[SequenceGroup], position: int, budget: int) -> int:
        """Tokens that the group at this position may compute, of what is left."""
        group = running[position]
        own = self._kept.pop(group.request.request_id, 0)
        if own:
            return own
        if not self._found and not rows_to_decode(group):
            self._found = True
            self._keep(running[position + 1 :], budget)
        return budget - sum(self._kept.values()) if self._kept else budget

    def _keep(self, behind: Seq[SequenceGroup], budget: int) -> None:
        decoding = [(group, rows) for group in behind if (rows := rows_to_decode(group))]
        if not decoding:
            return
        last, saved = self._last, min(float(budget), self._saved + budget / 2)
        if last is not None:  # after him comes the next one
            decoding.sort(key=lambda one: (by_rank(one[0]) <= last, by_rank(one[0])))
        for group, rows in decoding:
            if rows > saved:
                break
            self._kept[group.request.request_id] = rows
            self._last = by_rank(group)
            saved -= rows
        self._saved = saved


def rows_to_decode(group: SequenceGroup) -> int:
    """Tokens from which each of its branches has its next one; 0: it has to compute more."""
    rows = 0
    for branch in group.branches:
        pending = len(branch.token_ids) - branch.num_computed
        if pending > 1 or branch.fork_from is not None:
            return 0
        rows += pending
    return rows
