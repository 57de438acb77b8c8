"""A bug that is planted on purpose, and the test that finds it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """what: the bug, in words. old: occurs once in ``file``; ``new`` takes its place.

    test: a pytest node id, narrow, so that it runs in seconds.
    """

    what: str
    file: str
    old: str
    new: str
    test: str
