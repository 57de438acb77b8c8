"""What scheduler and allocator hold, for those who look: reads and changes nothing. Never torch."""

from quire.engine.dashboard.blocks import (
    BlockMap,
    BlockState,
    BlockTracker,
    Cell,
    delta,
    snapshot,
)
from quire.engine.dashboard.holders import Holder, Holding, holding, number_of
from quire.engine.dashboard.misses import MissRow, miss_row
from quire.engine.dashboard.pool import Pool, PrefixCacheFigures, pool_figures, prefix_cache
from quire.engine.dashboard.remedies import PoolBytes
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

__all__ = [
    "BlockMap",
    "BlockState",
    "BlockTracker",
    "BranchTable",
    "Cell",
    "Holder",
    "Holding",
    "MissRow",
    "Pace",
    "Pool",
    "PoolBytes",
    "PrefixCacheFigures",
    "Reasons",
    "Row",
    "Rows",
    "Wait",
    "block_tables",
    "delta",
    "holding",
    "miss_row",
    "number_of",
    "one_row",
    "pool_figures",
    "prefix_cache",
    "rows",
    "snapshot",
]
