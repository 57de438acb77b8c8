"""Drafts by prediction: from the beginning, on while the output agrees, and again after an edit."""

from __future__ import annotations

import random
from array import array

import pytest

from quire.capabilities.speculation.prediction import PredictionDrafter
from quire.core.scheduling.sequence import Sequence
from support.guessing import Served, request_of

PREDICTED = list(range(1000, 2000))


def asked(output: list[int], predicted: list[int], most: int = 4) -> list[int]:
    served = Served(PredictionDrafter(), most)
    one = served.begin([1, 2], prediction=tuple(predicted))
    drafts: list[int] = []
    for token in [*output, None]:
        proposal = served.ask(one)
        drafts = [] if proposal is None else list(proposal.tokens)
        if token is not None:
            one[1].token_ids.append(token)
    assert served.drafter.num_bytes > 0
    served.drafter.close(one[1].seq_id)
    assert served.drafter.num_bytes == 0
    return drafts


P = PREDICTED
EDITS = {
    "nothing yet": ([], P[:4]),
    "agreed": (P[:10], P[10:14]),
    "all of it": (P, []),
    "other": ([7, 8, 9], []),
    "replaced": ([*P[:10], 7, P[11]], P[12:16]),
    "inserted": ([*P[:10], 7, 8, 9, P[10]], P[11:15]),
    "deleted": ([*P[:10], P[17]], P[18:22]),
    "deleted far": ([*P[:5], *P[190:192]], P[192:196]),
    "deleted farther": ([*P[:5], *P[900:904]], P[904:908]),
    "far, by one token": ([*P[:10], P[20]], []),
    "moved back": ([*P[300:310], *P[20:24]], P[24:28]),
    "begun elsewhere": (P[50:52], P[52:56]),
    "strayed for one token": ([*P[:100], 7, P[102], 8, P[101]], P[102:106]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_the_place_is_found_again_after_an_edit(edit: str) -> None:
    output, drafts = EDITS[edit]
    assert asked(output, PREDICTED) == drafts


def test_of_places_that_agree_alike_the_nearest_is_taken() -> None:
    block = [1, 2, 3, 4]  # as empty lines and brackets are: all over the text
    predicted = [token for i in range(40) for token in [*block, 100 + i]]
    assert asked([*predicted[:50], 7, *block], predicted, 1) == [110]
    assert asked([*predicted[:52], 7, *block[2:]], predicted, 1) == [110]


def test_branches_have_places_of_their_own_and_one_index() -> None:
    drafter = PredictionDrafter()
    request = request_of([1], prediction=tuple(PREDICTED))
    branches = [Sequence(number, number, [1, *PREDICTED[: 5 * number]]) for number in range(3)]
    for branch in branches:
        branch.num_prompt_tokens = 1
        proposal = drafter.propose(request, branch, 2)
        assert proposal is not None and proposal.evidence == 5 * branch.index
        assert list(proposal.tokens) == PREDICTED[5 * branch.index :][:2]
    alone = PredictionDrafter()
    alone.propose(request, branches[0], 2)
    assert drafter.num_bytes == alone.num_bytes
    for branch in branches:
        drafter.close(branch.seq_id)
    assert drafter.num_bytes == 0


def test_an_output_that_begins_anew_is_followed_anew() -> None:
    served = Served(PredictionDrafter(), 2)
    one = served.begin([1], prediction=tuple(PREDICTED))
    one[1].token_ids.extend(PREDICTED[:50])
    served.ask(one)
    one[1].token_ids = array("I", [1, *PREDICTED[:3]])
    proposal = served.ask(one)
    assert proposal is not None and list(proposal.tokens) == PREDICTED[3:5]


def test_without_a_prediction_it_says_nothing() -> None:
    served = Served(PredictionDrafter())
    assert served.drafts_after([1, 2, 1, 2]) == []
    assert served.drafter.num_bytes == 0


def test_most_of_an_edited_text_is_drafted() -> None:
    rng, output = random.Random(2), list[int]()
    predicted = [rng.randrange(300) for _ in range(3000)]
    for token in predicted:
        chance = rng.random()
        output += (
            [token] if chance > 0.02 else [rng.randrange(300) for _ in range(rng.randint(0, 3))]
        )
    served = Served(PredictionDrafter())
    one = served.begin([1], prediction=tuple(predicted))
    steps = at = 0
    while at < len(output):
        proposal = served.ask(one)
        right = 0
        for draft, token in zip(proposal.tokens if proposal else (), output[at:], strict=False):
            if draft != token:
                break
            right += 1
        one[1].token_ids.extend(output[at : at + right + 1])
        at, steps = at + right + 1, steps + 1
    assert len(output) / steps > 9
