"""Decoding as (parent, sample) choices, and how a preempted tree of branches grows back."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import takewhile

from quire.core.scheduling.sequence import Sequence, SequenceGroup

SCORED_AT_ONCE = 128
"""Most tokens of a prompt with ``prompt_logprobs`` that one step computes: to find up to a hundred
likeliest tokens for each takes longer than the step, and all other requests wait for it."""


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


def tokens_to_compute(group: SequenceGroup, budget: int) -> dict[int, int]:
    """{seq_id: tokens} that the group's branches can compute now, within a budget of tokens.

    Beams are compared with each other, so all of them take their next token in one step: one that
    is behind catches up to its last token but one, and the last is computed when all are ready.
    """
    branches = group.branches
    if len(branches) == 1:  # most groups
        branch = branches[0]
        pending = len(branch.token_ids) - branch.num_computed
        if pending > SCORED_AT_ONCE and group.request.params.prompt_logprobs is not None:
            pending = SCORED_AT_ONCE
        if branch.stops:
            pending = branch.upto_stop(branch.num_computed, pending)
        return {branch.seq_id: pending if pending < budget else budget}
    if group.beams is not None:
        if all(b.fork_from is None and b.num_pending == 1 for b in branches):
            return {b.seq_id: 1 for b in branches} if budget >= len(branches) else {}
        return _tokens_of_each(group, budget, keep=1)
    return _tokens_of_each(group, budget, keep=0)


def _tokens_of_each(group: SequenceGroup, budget: int, keep: int) -> dict[int, int]:
    """Hand out the budget branch by branch, leaving ``keep`` tokens of each for later."""
    found: dict[int, int] = {}
    for branch in group.branches:
        if branch.fork_from is not None:
            continue
        tokens = branch.num_pending - keep
        if tokens > 1 - keep:
            pause = next_fork(group, branch)
            if pause is not None:
                tokens = pause - branch.num_computed
        if branch.stops:
            tokens = branch.upto_stop(branch.num_computed, tokens)
        tokens = min(tokens, budget)
        if tokens:
            found[branch.seq_id] = tokens
            budget -= tokens
    return found
