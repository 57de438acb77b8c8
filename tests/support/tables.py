"""Reading block tables that have blocks missing."""

from __future__ import annotations

from collections.abc import Iterator

from quire.memory import BlockTable


def physical_block(table: BlockTable, logical: int) -> int:
    """The block that holds a logical block, which must not have been given back."""
    if logical < table.num_sink_blocks:
        return table.block_ids[logical]
    first_kept = table.num_sink_blocks + table.num_dropped
    assert logical >= first_kept, "it has been given back"
    return table.block_ids[logical - table.num_dropped]


def visible(position: int, window: int | None, sinks: int = 0) -> Iterator[int]:
    """The positions that the token at ``position`` sees, itself included."""
    first = 0 if window is None else max(0, position - window + 1)
    yield from range(min(sinks, first))
    yield from range(first, position + 1)
