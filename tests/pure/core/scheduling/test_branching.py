"""How a preempted tree of branches is planned to grow back, and who may compute what."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hypothesis import given
from hypothesis import strategies as st

from quire.capabilities.beams import BeamSearch
from quire.core.protocol.request import Request
from quire.core.scheduling.chunking import tokens_to_compute
from quire.core.scheduling.preemption import plan_regrowth, shared_length
from quire.core.scheduling.sequence import Sequence, SequenceGroup, Status
from quire.text.params.sampling_params import SamplingParams

PROMPT = [1, 2, 3]


def group_of(outputs: Seq[Seq[int]], *, beams: bool = False) -> SequenceGroup:
    params = SamplingParams(n=len(outputs), use_beam_search=beams, max_tokens=50)
    request = Request("r", tuple(PROMPT), params, 50, seed=0)
    branches = [Sequence(i, i, PROMPT) for i in range(len(outputs))]
    for branch, output in zip(branches, outputs, strict=True):
        branch.token_ids.extend(output)
        branch.num_computed = len(branch.token_ids) - 1
    group = SequenceGroup(request, branches[0], BeamSearch(request) if beams else None, (0.0, 0))
    group.branches, group.expanded, group.status = branches, True, Status.RUNNING
    return group


def plan(outputs: Seq[Seq[int]]) -> list[tuple[int | None, int]]:
    group = group_of(outputs)
    plan_regrowth(group)
    assert all(branch.num_computed == 0 for branch in group.branches)
    return [
        (None if b.fork_from is None else b.fork_from.seq_id, b.fork_at) for b in group.branches
    ]


def test_branches_fork_again_where_they_parted() -> None:
    outputs = [[4, 5, 6], [4, 5, 7, 7], [8], [4, 5, 7, 9]]
    assert plan(outputs) == [(None, 0), (0, 5), (0, 3), (1, 6)]


def test_equal_branches_still_compute_a_token_each() -> None:
    assert plan([[4, 5], [4, 5]]) == [(None, 0), (0, 4)]
    assert plan([[4, 5], [4, 5, 6]]) == [(None, 0), (0, 4)]


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=5))
def test_every_fork_leaves_both_a_token_to_compute(outputs: list[list[int]]) -> None:
    group = group_of(outputs)
    plan_regrowth(group)
    for branch in group.branches[1:]:
        parent = branch.fork_from
        assert parent is not None
        assert branch.token_ids[: branch.fork_at] == parent.token_ids[: branch.fork_at]
        assert branch.fork_at < min(len(branch.token_ids), len(parent.token_ids))
        assert branch.fork_at >= len(PROMPT)
        assert branch.fork_at > parent.fork_at or parent.fork_from is None


@given(st.lists(st.integers(0, 1), max_size=8), st.lists(st.integers(0, 1), max_size=8))
def test_shared_length(a: list[int], b: list[int]) -> None:
    length = shared_length(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


def test_a_branch_pauses_where_another_forks_off() -> None:
    group = group_of([[4, 5, 6, 7], [4, 9]])
    plan_regrowth(group)
    assert tokens_to_compute(group, 100) == {0: 4}
    assert tokens_to_compute(group, 3) == {0: 3}


def test_samples_take_what_the_budget_leaves_them() -> None:
    group = group_of([[4], [5], [6]])
    assert tokens_to_compute(group, 100) == {0: 1, 1: 1, 2: 1}
    assert tokens_to_compute(group, 2) == {0: 1, 1: 1}


def test_beams_go_on_together_or_not_at_all() -> None:
    group = group_of([[4], [5], [6]], beams=True)
    assert tokens_to_compute(group, 3) == {0: 1, 1: 1, 2: 1}
    assert tokens_to_compute(group, 2) == {}
    group.branches[1].num_computed = 1  # behind: 3 tokens to go, all but the last for now
    assert tokens_to_compute(group, 100) == {1: 2}
