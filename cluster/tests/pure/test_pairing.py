"""Which prompts are computed by a prefill replica."""

from __future__ import annotations

from quire_cluster.rules import Pairing


def test_what_is_short_or_known_is_computed_where_it_is_answered() -> None:
    pairing = Pairing(256)
    assert [pairing.pays(new, 0.0) for new in (0, 256, 257, 4096)] == [False, False, True, True]
    assert Pairing(0).pays(16, 0.0)


def test_nobody_waits_for_long_for_those_who_are_gone() -> None:
    """They are asked again after 5 seconds, 10, 20 ... and at most a minute."""
    pairing, now, rests = Pairing(0), 100.0, list[float]()
    for _ in range(6):
        assert pairing.pays(16, now)
        pairing.unanswered(now)
        pairing.unanswered(now + 0.5)  # who has asked at the same time
        begun = now
        while not pairing.pays(16, now):
            now += 0.25
        rests.append(now - begun)
    assert rests == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    pairing.answered()
    pairing.unanswered(now)
    assert not pairing.pays(16, now + 4.9)
    assert pairing.pays(16, now + 5.0)
