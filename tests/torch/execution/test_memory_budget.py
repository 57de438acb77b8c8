from __future__ import annotations

import pytest

from quire.errors import ConfigError
from quire.execution.memory_budget import FREE_MEMORY_SHARE, free_memory, pool_blocks


def test_the_default_pool_is_a_share_of_what_is_free() -> None:
    assert pool_blocks(1000, 10**9, None, free=100_000) == 100 * FREE_MEMORY_SHARE


def test_the_default_pool_is_no_larger_than_a_full_load() -> None:
    assert pool_blocks(1000, 7, None, free=100_000) == 7


def test_a_requested_pool_is_given_in_whole_blocks() -> None:
    assert pool_blocks(1000, 7, 9999, free=100_000) == 9


def test_more_than_is_free_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"100,001.*100,000"):
        pool_blocks(1000, 7, 100_001, free=100_000)


def test_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block, 1,000"):
        pool_blocks(1000, 7, 999, free=100_000)


def test_some_memory_is_free() -> None:
    assert 0 < free_memory() < 2**50
