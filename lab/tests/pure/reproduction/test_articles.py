"""The worked examples of articles, to the last digit."""

from __future__ import annotations

import pytest

from quire_lab.reproduction.articles import UTILISATION, scattered_table, worked_examples
from quire_lab.reproduction.experiment import QUICK, Finding


@pytest.fixture(scope="module")
def found() -> dict[str, Finding]:
    return {one.what: one for one in worked_examples(QUICK).findings}


@pytest.mark.parametrize(
    ("what", "figure"),
    [
        ("keys and values of a token, 32 layers × 32 heads × 128, fp16", 512),
        ("slots used by a request of 120 tokens in 2,048", 100 * 120 / 2048),
        ("slots used by a request of 800 tokens in 2,048", 100 * 800 / 2048),
        ("slots used by a request of 2,000 tokens in 2,048", 100 * 2000 / 2048),
        ("slots used by a request of 500 tokens in 2,048", 100 * 500 / 2048),
        ("memory wasted by a request of 120 tokens in 2,048", 964),
        ("memory wasted by a request of 2,000 tokens in 2,048", 24),
        ("pages of a pool that the five hold", 100 * 56 / 512),
        ("pages of a pool that the five hold, once the second has ended", 100 * 53 / 512),
        ("pages of ten system prompts of 200 tokens, each its own", 130),
        ("the same, shared", 13),
        ("memory saved", 936),
        ("pages copied when request 3 diverges", 1),
        ("pages that request 3 still shares then", 12),
        ("blocks of five requests of 320, 48, 160, 96 and 272 tokens", 56),
        ("slots empty in them", 0),
        ("blocks of a sixth of 144 tokens, in the holes that the second and fourth left", 9),
        ("blocks of a request of 825 tokens", 52),
        ("slots empty in the last one", 7),
        ("41 tokens in blocks 7, 3, 12: slots filled in block 7", 16),
        ("41 tokens in blocks 7, 3, 12: slots filled in block 3", 16),
        ("41 tokens in blocks 7, 3, 12: slots filled in block 12", 9),
        ("the same: where position 0 is in the pool", 7 * 16),
        ("the same: where position 20 is in the pool", 3 * 16 + 4),
        ("the same: where position 40 is in the pool", 12 * 16 + 8),
    ],
)
def test_arithmetic_is_exact(found: dict[str, Finding], what: str, figure: float) -> None:
    assert found[what].ours == pytest.approx(figure, rel=1e-12)


def test_batches_are_drawn_as_the_article_draws_them(found: dict[str, Finding]) -> None:
    for count, published in UTILISATION.items():
        for name, share in zip(("naive", "paged"), published, strict=True):
            one = found[f"utilisation, {count} requests, {name}"]
            assert one.published == (share,) and round(one.ours, 1) == share


OWN_LIMIT = "copilot: users of 50 whose requests run, 2,048 slots for each"


def test_all_agree_with_what_was_published_but_the_copilots_limit(
    found: dict[str, Finding],
) -> None:
    assert [one.what for one in found.values() if one.agrees is False] == [OWN_LIMIT]


def test_fifty_users_of_a_copilot(found: dict[str, Finding]) -> None:
    """The article's limit gives twice its figure; a limit of twice as much gives it."""
    longer = found["copilot: users of 50 whose requests run, 4,096 slots for each"]
    after = found["copilot: users of 50 whose requests run, paged"]
    assert 20 <= found[OWN_LIMIT].ours <= 24 and found[OWN_LIMIT].published == (8, 12)
    assert 8 <= longer.ours <= 12 and longer.agrees is None
    assert 40 <= after.ours <= 50


def test_blocks_are_where_the_article_says() -> None:
    assert scattered_table().block_ids == (7, 3, 12)


def test_a_figure_agrees_within_ten_percent_and_a_range_is_what_it_says() -> None:
    def agrees(published: tuple[float, ...], ours: float) -> bool | None:
        return Finding("", published, ours, "").agrees

    assert agrees((), 5.0) is None
    assert agrees((10.0,), 10.9) is True and agrees((10.0,), 11.1) is False
    assert agrees((2.7, 8.0), 2.54) is False and agrees((2.7, 8.0), 2.7) is True
    assert agrees((2.7, 8.0), 8.1) is False
