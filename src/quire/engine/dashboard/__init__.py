"""What scheduler and allocator hold, for those who look: reads and changes nothing. Never torch."""

from quire.engine.dashboard.block_map import BlockMap, BlockState, Cell
from quire.engine.dashboard.frames import delta, snapshot
from quire.engine.dashboard.holders import number_of
from quire.engine.dashboard.holding import Holder, Holding, holding
from quire.engine.dashboard.pool import Pool, PrefixCacheFigures, pool_figures, prefix_cache
from quire.engine.dashboard.requests import (
    BranchTable,
    Pace,
    Reasons,
    Row,
    Rows,
    Wait,
    block_tables,
    one_row,
    rows,
)
from quire.engine.dashboard.tracker import BlockTracker

__all__ = [
    "BlockMap",
    "BlockState",
    "BlockTracker",
    "BranchTable",
    "Cell",
    "Holder",
    "Holding",
    "Pace",
    "Pool",
    "PrefixCacheFigures",
    "Reasons",
    "Row",
    "Rows",
    "Wait",
    "block_tables",
    "delta",
    "holding",
    "number_of",
    "one_row",
    "pool_figures",
    "prefix_cache",
    "rows",
    "snapshot",
]
