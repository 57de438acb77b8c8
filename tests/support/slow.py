"""Tests of many random lives, of which ``make check`` runs a part."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest


def random_runs(usual: int) -> int:
    """How many lives a test has: ``usual`` ones, or more on demand."""
    return max(usual, int(os.environ.get("QUIRE_RANDOM_RUNS", "0")))


def first_is_quick(cases: Iterable[Any]) -> list[Any]:
    """A test's parameters, all but the first of them marked as slow."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.slow) for case in others)]
