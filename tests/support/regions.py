"""A real engine over contiguous memory, which only comparisons have."""

from __future__ import annotations

from functools import partial

import pytest

from quire_lab.contiguous import limits_under


def engines_under(monkeypatch: pytest.MonkeyPatch, kv_allocator: str) -> None:
    """Engines that are built from now on give their KV memory out in this way."""
    limits_of = partial(limits_under, kv_allocator)
    monkeypatch.setattr("quire.engine.assembly.engine.limits_of", limits_of)
