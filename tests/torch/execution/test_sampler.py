"""The sampler against a plain Python one in float64, and what it promises beyond that."""

from __future__ import annotations

import math
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.execution.sampling.logits_processors import process_logits
from quire.execution.sampling.rows import splitmix64, uniform
from quire.execution.sampling.sampler import SampleRow, beam_candidates, token_logprobs
from quire.execution.sampling.sampler import draw as choose
from quire.kernels.cpu import CPUKernels
from quire.kernels.reference import ReferenceKernels
from quire.text.params import StructuredOutputs
from quire.text.params.sampling_params import SamplingParams
from support.capture_rules import AsksTheDeviceError, capture_rules
from support.sampling_reference import (
    EOS,
    expected_distribution,
    expected_logits,
    expected_token,
    make_row,
    sample,
)

FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0, "top_k": 4},
    {"top_p": 0.8},
    {"min_p": 0.2},
    {"temperature": 1.7, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
]


def draw(logits: list[float] | Tensor, *rows: SampleRow) -> list[int]:
    """The tokens of rows that all have the same logits."""
    batch = torch.as_tensor(logits, dtype=torch.float32).expand(len(rows), -1).contiguous()
    samples = sample(batch, rows)
    return [s.token_id for s in samples if s is not None]


VOCAB = 9
token_ids = st.integers(0, VOCAB - 1)
tokens = st.lists(token_ids, max_size=5).map(tuple)
some_tokens = st.lists(token_ids, min_size=1, max_size=3).map(tuple)
quarters = st.integers(-20, 20).map(lambda n: n / 4)  # make equal logits common
logits_rows = st.lists(quarters, min_size=VOCAB, max_size=VOCAB)
penalties = st.sampled_from([-1.5, 0.5, 2.0])
asked_edits = st.fixed_dictionaries(
    {"prompt": some_tokens, "output": tokens, "min_tokens": st.integers(0, 4)},
    optional={
        "stop_token_ids": some_tokens,
        "allowed_token_ids": some_tokens,
        "bad_word_ids": st.lists(some_tokens, max_size=2).map(tuple),
        "logit_bias": st.dictionaries(token_ids, quarters, max_size=4),
        "repetition_penalty": st.sampled_from([0.5, 1.25, 3.0]),
        "presence_penalty": penalties,
        "frequency_penalty": penalties,
    },
)
asked_filters = st.fixed_dictionaries(
    {
        "seed": st.integers(-(2**63), 2**64 - 1),
        "branch": st.integers(0, 3),
        "position": st.integers(0, 1000),
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 4, VOCAB, 100]),
        "top_p": st.sampled_from([1e-9, 0.13, 0.51, 0.9, 0.99, 1.0]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    }
)


@given(st.lists(st.tuples(asked_edits, logits_rows)))
@settings(max_examples=100, deadline=None)
def test_edits_are_those_of_the_definitions(cases: list[Any]) -> None:
    rows = [make_row(**asked) for asked, _ in cases]
    logits = torch.tensor([values for _, values in cases]).view(-1, VOCAB)
    before = logits.clone()
    want = [
        expected_logits(values, row, asked["output"])
        for (asked, values), row in zip(cases, rows, strict=True)
    ]
    torch.testing.assert_close(process_logits(logits, rows), torch.tensor(want).view(-1, VOCAB))
    assert torch.equal(logits, before)


@given(st.lists(st.tuples(asked_filters, logits_rows)))
@settings(max_examples=200, deadline=None)
def test_tokens_are_those_of_the_definitions(cases: list[Any]) -> None:
    rows = [make_row(**asked) for asked, _ in cases]
    got = sample(torch.tensor([values for _, values in cases]).view(-1, VOCAB), rows)
    for row, (_, values), choice in zip(rows, cases, got, strict=True):
        token, margin = expected_token(values, row)
        assert choice is not None
        # Nearer to a bound than float32 tells apart, either side is right.
        assert choice.token_id == token or margin < 1e-5


@pytest.mark.parametrize("vocab_size", [255, 256, 257, 6000])
def test_large_vocabularies_with_flat_and_equal_logits(vocab_size: int) -> None:
    """Some filters here keep more than any shortlist, and cut through runs of equal logits."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(36, vocab_size, generator=generator).bfloat16().float()
    logits[1::2] *= 4
    asked = [*FILTERS, {"top_p": 0.97}, {"top_k": 200}, {"top_k": 1000, "top_p": 0.8}]
    rows = [make_row(seed=i, **asked[i % 9]) for i in range(36)]
    for values, row, got in zip(logits.tolist(), rows, sample(logits, rows), strict=True):
        token, margin = expected_token(values, row)
        assert got is not None
        assert got.token_id == token or margin < 1e-6


def test_filters_keep_exactly_what_they_say_among_equals() -> None:
    def num_kept(vocab_size: int, **params: Any) -> int:
        tokens = set(draw([0.0] * vocab_size, *(make_row(seed=i, **params) for i in range(2000))))
        assert tokens == set(range(len(tokens)))
        return len(tokens)

    assert num_kept(10) == 10
    assert num_kept(10, top_p=0.5) == 5
    assert num_kept(10, top_k=3) == 3
    assert num_kept(10, top_k=4, top_p=0.5) == 2
    assert num_kept(10, top_p=1e-12) == 1
    assert num_kept(10, min_p=1.0) == 10
    assert num_kept(1000, top_k=150) == 150


@pytest.mark.parametrize("params", FILTERS, ids=str)
@pytest.mark.parametrize("vary", ["seed", "position", "branch"])
def test_frequencies_are_the_probabilities(params: dict[str, Any], vary: str) -> None:
    logits = [0.3, -1.2, 2.0, 1.1, 0.0, -0.4, 1.4, -3.0]
    n = 5000
    tokens = draw(logits, *(make_row(**{vary: i}, **params) for i in range(n)))
    distribution, _ = expected_distribution(logits, SamplingParams(**params))
    seen = Counter(tokens)
    assert seen.keys() <= {token for token, _ in distribution}
    chi_square = sum((seen[t] - n * p) ** 2 / (n * p) for t, p in distribution)
    # Mean and variance of chi-square are its degrees of freedom and twice them: 4 deviations.
    freedom = len(distribution) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("step", ["seed", "position", "branch"])
def test_neighbouring_draws_are_unrelated(step: str) -> None:
    n, other = 4096, "seed" if step == "position" else "position"
    first, second = (
        draw([0.0] * 4, *(make_row(**{step: at, other: i}) for i in range(n))) for at in (0, 1)
    )
    pairs = Counter(zip(first, second, strict=True))
    assert sum((pairs[i, j] - n / 16) ** 2 / (n / 16) for i in range(4) for j in range(4)) < 40


def test_splitmix64_is_the_published_one() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix64(1234567, i) for i in range(3)] == published
    numbers = [uniform(seed, 1, 2) for seed in (-1, 0, 1, 2**64 - 1, -(2**63))]
    assert all(0 <= number < 1 for number in numbers)
    assert numbers[0] == numbers[3]  # seeds are 64 bits
    assert len({uniform(s, b, p) for s in range(12) for b in range(12) for p in range(12)}) == 12**3


def varied_rows(vocab_size: int) -> list[SampleRow]:
    rng, rows = random.Random(5), []
    for i in range(48):
        params: dict[str, Any] = {
            "temperature": (0.0, 0.7, 1.3)[i % 3],
            "top_p": (0.5, 1.0, 0.95, 1.0)[i % 4],
            "top_k": (3, 0, 40, 0, 700)[i % 5],
            "repetition_penalty": (1.3, 1.0, 1.0)[rng.randrange(3)],
            "frequency_penalty": (0.2, 0.0, 0.0)[rng.randrange(3)],
            "logprobs": (3, None, 0, None)[rng.randrange(4)],
            "min_p": (0.01, 0.0)[rng.randrange(2)],
            "logit_bias": ({i: 5.0}, None)[rng.randrange(2)],
            "min_tokens": 2 * i if i % 7 == 0 else 0,
            "allowed_token_ids": tuple(range(i, i + 20)) if i % 11 == 0 else None,
        }
        output = tuple(rng.randrange(vocab_size) for _ in range(i))
        rows.append(make_row(seed=i // 2, branch=i % 2, output=output, **params))
    return rows


def test_a_row_gives_the_same_alone_and_in_any_batch() -> None:
    vocab_size = 1000
    rows = varied_rows(vocab_size)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(len(rows), vocab_size, generator=generator).mul(2).bfloat16().float()
    together = sample(logits, rows)
    alone = [sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(len(rows))]
    assert alone == together
    order = list(range(len(rows)))
    random.Random(1).shuffle(order)
    for some in (order, order[:7]):
        assert sample(logits[some], [rows[i] for i in some]) == [together[i] for i in some]


def test_what_masks_leave_is_chosen_by_the_row_alone() -> None:
    """However few that is: those are looked at by themselves."""
    vocab_size, rng = 1_000, random.Random(5)
    rows, masks = list[SampleRow](), list[list[int]]()
    for i in range(48):
        asked = {"temperature": (0.0, 0.7, 1.3)[i % 3], "top_p": (0.8, 1.0)[i % 2]}
        asked |= {"top_k": (0, 0, 3, 900)[i % 4], "logit_bias": {7: 3.0} if i % 13 == 0 else None}
        left = sorted(rng.sample(range(vocab_size), (1, 5, 64, 65, 700)[i % 5]))
        row = make_row(seed=i, structured_outputs=StructuredOutputs(regex="a"), **asked)
        bits = np.zeros(-(-vocab_size // 32) * 32, dtype=bool)
        bits[left] = True
        mask = np.packbits(bits, bitorder="little").view(np.uint32)
        guide = SimpleNamespace(mask=lambda length, mask=mask: mask)
        rows.append(row._replace(past=SimpleNamespace(guide=guide)))  # type: ignore[arg-type]
        masks.append(left)
    rows[40:42] = [make_row(seed=3), make_row(temperature=0.0)]  # which nothing guides
    masks[40:42] = [[*range(vocab_size)]] * 2
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(len(rows), vocab_size, generator=generator).mul(2)
    for kernels in (ReferenceKernels(), CPUKernels()):
        together = sample(logits, rows, kernels)
        alone = [sample(logits[i : i + 1], rows[i : i + 1], kernels)[0] for i in range(len(rows))]
        assert alone == together
        order = rng.sample(range(len(rows)), len(rows))
        for some in (order, order[:7]):
            found = sample(logits[some], [rows[i] for i in some], kernels)
            assert found == [together[i] for i in some]
        for row, left, values, one in zip(rows, masks, logits.tolist(), together, strict=True):
            forbidden = [v if i in left else -math.inf for i, v in enumerate(values)]
            forbidden[7] += (row.request.params.logit_bias or {}).get(7, 0.0)
            token, margin = expected_token(forbidden, row)
            assert one is not None and one.token_id in left
            assert one.token_id == token or margin < 1e-5
    logits[0, masks[0][0] - 1] = math.nan
    logits[1, masks[1]] = -math.inf
    assert sample(logits, rows)[:2] == [None, None]  # though the one may not be chosen


def test_branches_of_a_request_differ() -> None:
    rows = [[make_row(branch=branch, position=i) for i in range(8)] for branch in range(20)]
    assert len({tuple(draw([0.0] * 50, *branch)) for branch in rows}) == 20


def test_greedy_takes_the_lowest_id_of_equals_and_draws_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("an all-greedy batch needs no more than argmax")

    for name in ("exp_", "sort", "topk", "clone", "softmax"):
        monkeypatch.setattr(Tensor, name, refuse)
    logits = torch.zeros(3, 700)
    logits[1, [400, 300, 699]] = 1.0
    logits[2, [5, 4]] = -1.0
    chosen = sample(logits, [make_row(temperature=0.0, seed=i) for i in range(3)])
    assert [s.token_id for s in chosen if s] == [0, 300, 0]


@pytest.mark.parametrize(("bias", "took", "told"), [
    (None, 0.0, False), (None, 30e-6, False), (None, 50e-6, True), ({1: 0.5}, 1e-9, True),
])  # fmt: skip
def test_masks_that_take_next_to_nothing_are_not_told(
    monkeypatch: pytest.MonkeyPatch, bias: dict[int, float] | None, took: float, told: bool
) -> None:
    now = iter([0.0, took])
    monkeypatch.setattr("quire.execution.sampling.sampler.time.thread_time", lambda: next(now))
    guided = {"structured_outputs": StructuredOutputs(regex="a")}
    rows = [make_row(temperature=0.0, **guided), make_row(temperature=0.0, logit_bias=bias)]
    seconds = choose(torch.zeros(2, 9), rows[: 2 if bias else 1] * (1 if bias else 2)).seconds
    assert bool(seconds) is told
    assert sum(seconds.values()) == pytest.approx(took if told else 0.0)


def test_min_tokens_holds_back_the_end() -> None:
    logits = [0.0, 1.0, 9.0, 8.0, 2.0]  # EOS, then 3, are the likeliest
    for output, want in [((), 4), ((1,), 4), ((1, 1), EOS)]:
        row = make_row(output=output, temperature=0.0, min_tokens=2, stop_token_ids=[3])
        assert draw(logits, row) == [want]


def test_logprobs_are_the_models_own() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(150, 90, generator=generator) * 5
    rows = [
        make_row(seed=i, temperature=0.5, top_k=30, logit_bias={3: 20.0}, logprobs=i % 4)
        for i in range(149)
    ]
    rows.append(make_row())
    want = logits.double().log_softmax(-1)
    *samples, last = sample(logits, rows)
    assert last is not None and last.logprobs is None
    for i, got in enumerate(samples):
        assert got is not None and got.logprobs is not None
        logprob, rank, top = got.logprobs
        assert logprob == pytest.approx(want[i, got.token_id].item(), abs=1e-5)
        assert rank == 1 + int((want[i] > want[i, got.token_id]).sum())
        values, ids = want[i].topk(i % 4)
        assert [token for token, _ in top] == ids.tolist()
        assert [value for _, value in top] == pytest.approx(values.tolist(), abs=1e-5)
    assert any(got and got.logprobs and got.logprobs.rank > 1 for got in samples)


@given(st.lists(st.tuples(asked_filters, logits_rows), min_size=1))
@settings(max_examples=200, deadline=None)
def test_logprobs_of_the_draw_are_those_of_the_definitions(cases: list[Any]) -> None:
    told: dict[str, Any] = {"logprobs": VOCAB, "logprobs_of_draw": True}
    rows = [make_row(**asked, **told) for asked, _ in cases]
    got = sample(torch.tensor([values for _, values in cases]), [*rows])
    for row, (_, values), choice in zip(rows, cases, got, strict=True):
        assert choice is not None and choice.logprobs is not None
        found = {token: math.exp(logprob) for token, logprob in choice.logprobs.top}
        assert found[choice.token_id] == math.exp(choice.logprobs.logprob) > 0
        want, margin = {values.index(max(values)): 1.0}, 1.0
        if not row.request.params.greedy:
            distribution, margin = expected_distribution(values, row.request.params)
            want = dict(distribution)
        kept = {token: found[token] for token in found if found[token]}
        assert kept == pytest.approx(want, abs=1e-5) or margin < 1e-5


def test_a_request_with_logprobs_of_the_draw_leaves_others_their_own() -> None:
    logits, asked = torch.randn(3, 300) * 3, {"temperature": 0.5, "logprobs": 5}
    edited: dict[str, Any] = {"logit_bias": {7: 50.0}, "logprobs_of_draw": True}
    rows = [make_row(**asked), make_row(**asked, **edited), make_row(**asked)]
    alone = [sample(logits[[i]], [row])[0] for i, row in enumerate(rows)]
    assert sample(logits, rows) == alone
    biased = alone[1]
    assert biased is not None and biased.logprobs is not None
    assert biased.token_id == 7 and biased.logprobs.logprob == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("equals", [3, 9, 40, 300])
def test_what_others_ask_for_does_not_choose_among_equals(equals: int) -> None:
    logits = torch.randn(1, 400)
    logits[0, 50 : 50 + equals] = 6.0
    both, row = logits.expand(2, -1), make_row(use_beam_search=True, n=2)
    for few, many in ((2, 4), (2, 30), (12, 13), (30, 100)):
        (expected,) = token_logprobs(logits, [7], [few])
        assert token_logprobs(both, [7, 7], [few, many])[0] == expected
        (alone,) = beam_candidates(logits, [row], [few])
        beside, others = beam_candidates(both, [row, row], [few, many])
        assert beside == alone is not None
        assert others is not None and list(others)[:few] == list(alone)
        count = min(few, equals)
        assert [token for token, _ in alone][:count] == list(range(50, 50 + count))


def test_token_logprobs_of_equals_and_of_the_impossible() -> None:
    logits = torch.tensor([[1.0, 3.0, -torch.inf, 3.0], [0.0, 0.0, 0.0, 0.0], [1e30, 0, 0, 0]])
    first, second, third = token_logprobs(logits, [2, 3, 0], [3, 2, 50])
    assert first[:2] == (-math.inf, 4)
    assert [token for token, _ in first.top] == [1, 3, 0]
    assert second.logprob == pytest.approx(-math.log(4))
    assert second[1:] == (1, ((0, second.logprob), (1, second.logprob)))
    assert third.logprob == 0.0
    assert [value for _, value in third.top] == [0.0, *[pytest.approx(-1e30)] * 3]
    equals = torch.zeros(1, 700)
    equals[0, 300:320] = 1.0
    assert [t for t, _ in token_logprobs(equals, [0], [15])[0].top] == list(range(300, 315))
    assert token_logprobs(torch.zeros(0, 4), [], []) == []


def test_extreme_values_choose_what_they_mean() -> None:
    logits = [0.0, 1.0, -1.0, 0.5]
    for temperature in (1e-6, 1e-300, 5e-324):
        for more in ({}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}):
            assert draw(logits, make_row(temperature=temperature, **more)) == [1]
    for boundless in ({"temperature": 1e300}, {"top_k": 10**6}):
        rows = [make_row(seed=i, **boundless) for i in range(200)]
        assert set(draw(logits, *rows)) == {0, 1, 2, 3}
    assert draw([3e38, -3e38, 2.9e38], make_row(), make_row(top_p=0.9)) == [0, 0]
    assert draw([-3e38, -3e38, -torch.inf], make_row(temperature=1e300, seed=4)) in ([0], [1])
    assert draw(logits, make_row(logit_bias={2: 100.0})) == [2]
    assert draw(logits, make_row(logit_bias={1: -100, 0: -100, 3: -100, 77: 100})) == [2]
    for penalty in (1e-300, 1e-40, 1e300):
        row = make_row(prompt=(1, 2), repetition_penalty=penalty, temperature=0.0)
        assert draw([0.0, 10.0, -10.0, 5.0], row) == [1 if penalty < 1 else 3]


@pytest.mark.parametrize(
    ("number", "whole", "narrow"), [(0.0, 1, 2), (1 - 2**-53, 2, 1)], ids=["0", "almost 1"]
)
def test_the_ends_of_the_random_numbers(
    monkeypatch: pytest.MonkeyPatch, number: float, whole: int, narrow: int
) -> None:
    monkeypatch.setattr("quire.execution.sampling.rows.uniform", lambda *_: number)
    logits = [-torch.inf, 0.0, 1.0, -torch.inf]
    assert draw(logits, make_row(), make_row(top_k=3)) == [whole, narrow]


def test_a_vocabulary_of_one_token() -> None:
    rows = [make_row(), make_row(top_p=0.1), make_row(top_k=5), make_row(temperature=0.0)]
    assert draw([-7.0], *rows) == [0] * 4
    (only,) = sample(torch.tensor([[-7.0]]), [make_row(logprobs=3)])
    assert only is not None and only.logprobs == (0.0, 1, ((0, 0.0),))


def test_masked_logits_are_never_drawn() -> None:
    logits = torch.full((500,), -torch.inf)
    logits[[0, 257, 499]] = torch.tensor([0.0, 1.0, 0.5])
    for params in ({}, {"top_k": 40}, {"top_p": 0.99999}, {"temperature": 1e300}):
        tokens = draw(logits, *(make_row(seed=i, **params) for i in range(200)))
        assert set(tokens) == {0, 257, 499}


def test_bans_yield_where_they_would_forbid_everything() -> None:
    logits = [5.0, 1.0, 2.0, 0.0]
    cornered = make_row(allowed_token_ids=[EOS, 1], min_tokens=5, bad_word_ids=((1,),))
    free = make_row(temperature=0.0)
    before, chosen, after = draw(logits, free, cornered, free)
    assert (before, after) == (0, 0) and chosen in (EOS, 1)
    assert draw([0.0], make_row(bad_word_ids=((0,),))) == [0]


def test_a_row_without_a_distribution_is_none_and_harms_no_other() -> None:
    inf, nan = torch.inf, torch.nan
    bad = [[nan, 0, 1], [nan] * 3, [-inf] * 3, [0, inf, 1], [-nan, -nan, 0]]
    edits = {"logit_bias": {0: 1.0}, "allowed_token_ids": [1, 2], "repetition_penalty": 2.0}
    kinds = [*FILTERS, {"temperature": 0.0, "logprobs": 2}, {"top_k": 2}, edits]
    good = [0.0, 1.0, 3.0]
    for params in kinds:
        rows = [make_row(seed=i, **params) for i in range(10)]
        (want,) = sample(torch.tensor([good]), rows[9:])
        batch = [values for pair in zip(bad, [good] * 5, strict=True) for values in pair]
        got = sample(torch.tensor(batch), rows)
        assert got[::2] == [None] * 5
        assert None not in got[1::2]
        assert got[9] == want
    outside = make_row(allowed_token_ids=[3, 2**31 - 1])
    assert sample(torch.tensor([good]), [outside]) == [None]


def test_a_token_that_means_nothing_can_still_be_looked_up() -> None:
    """The next step may begin with it before anybody knows."""
    inf, nan = torch.inf, torch.nan
    for bad in ([nan] * 300, [-inf] * 300, [0.0] * 299 + [inf], [0.0] * 299 + [nan]):
        for params in [*FILTERS, {"temperature": 0.0}, {"top_k": 2}]:
            draws = choose(torch.tensor([bad]), [make_row(**params)])
            assert draws.read() == [None]
            assert 0 <= draws.tokens.item() < 300


# -- on a device -------------------------------------------------------------------------------

# Edits of logits are listed in main memory, which cannot be told from a device's here.
ANSWERED_WITHOUT_WAITING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "min_p": 0.1},
    {"temperature": 0.0, "logprobs": 3},
    {"logprobs": 0},
    {"logprobs": 2, "logprobs_of_draw": True},
]


def test_choosing_does_not_wait_for_the_device() -> None:
    rows = [make_row(**params) for params in ANSWERED_WITHOUT_WAITING]
    logits = torch.randn(len(rows), 300)
    with capture_rules(bringing=True):
        draws = choose(logits, rows)
    assert all(draws.read())


def test_a_filter_that_has_to_count_waits() -> None:
    with capture_rules(bringing=True), pytest.raises(AsksTheDeviceError):
        choose(torch.randn(1, 300), [make_row(top_p=0.5)])
