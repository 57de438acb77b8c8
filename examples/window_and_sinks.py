"""A text that goes on for ever in a fixed number of blocks: a window, and attention sinks."""

from quire.core.memory import Demand, PagedAllocator, Window

window = Window(tokens=5, step_tokens=1, sinks=2)  # each token sees 0, 1 and the last five
pool = PagedAllocator(num_blocks=6, block_size=4, window=window)
pool.admit(0, Demand(1))
for _position in range(1000):
    pool.append({0: 1})  # gives back first what this token and all later ones do not see

table = pool.table(0)
print(
    f"1,000 tokens are in {len(table.block_ids)} of 6 blocks; {table.num_dropped} were given back"
)
print(
    f"position 999 is in slot {table.slot(999)}, the sinks in {table.slot(0)} and {table.slot(1)}"
)
try:
    table.slot(500)
except IndexError as error:
    print(f"position 500: {error}")
