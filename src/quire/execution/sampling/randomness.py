"""Random numbers that depend on what is sampled, never on when or beside what."""

from __future__ import annotations

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


def splitmix64(seed: int, index: int) -> int:
    """Output number ``index`` (from 0) of the SplitMix64 stream that starts at ``seed``.

    A bijective hash of a counter, 64 bits in and out (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014).
    """
    z = (seed + (index + 1) * _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, branch: int, position: int) -> float:
    """The number in [0, 1) that draws output token ``position`` of a request's ``branch``.

    The seed is hashed first, so that seeds 1, 2, 3, ... give unrelated streams; each branch's
    stream starts from an output of the request's.
    """
    stream = splitmix64(splitmix64(seed, 0), branch)
    return (splitmix64(stream, position) >> 11) * 2.0**-53
