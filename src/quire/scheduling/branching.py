"""Decoding as (parent, sample) choices, and how a preempted tree of branches grows back."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import takewhile

from quire.scheduling.sequence import Sequence, SequenceGroup


def shared_length(a: Seq[int], b: Seq[int]) -> int:
    """How many tokens two sequences have in common from the start."""
    shortest = min(len(a), len(b))
    if a[:shortest] == b[:shortest]:
        return shortest
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def plan_regrowth(group: SequenceGroup) -> None:
    """Forget what is computed and note where each branch forks from an earlier one.

    The first branch recomputes its tokens; each other one waits, dormant, for the branch it
    shares most with to arrive where they part. So what was shared before is shared again.
    """
    for i, branch in enumerate(group.branches):
        branch.num_computed = 0
        branch.fork_from, branch.fork_at = None, 0
        for earlier in group.branches[:i]:
            # Each branch must compute a token of its own after the fork: its logits are needed.
            most = min(len(branch.token_ids), len(earlier.token_ids)) - 1
            shared = min(shared_length(branch.token_ids, earlier.token_ids), most)
            if shared > branch.fork_at:
                branch.fork_from, branch.fork_at = earlier, shared


def next_fork(group: SequenceGroup, branch: Sequence) -> int | None:
    """The position where ``branch`` must pause because a dormant sibling forks off there."""
    points = [b.fork_at for b in group.branches if b.fork_from is branch]
    return min(points, default=None)
