"""A block manager's life by hand: blocks on demand, where each token is, out to the host and back.

No model and no tensors: whoever computes is told block tables and moves.
"""

from quire.core.memory import Demand, PagedAllocator

pool = PagedAllocator(num_blocks=8, block_size=4, num_host_blocks=4)
prompt = ["Four", "score", "and", "seven", "years", "ago", "our"]

# 1. can_allocate: is there room now, later, or never?
demand = Demand(num_tokens=len(prompt))
fit = pool.fit(demand)
print(f"{len(prompt)} tokens take {fit.needed} of {fit.free} free blocks: {fit.when.value}")

# 2. allocate: room for the prompt, and no more; fill: its tokens are computed in this step
pool.admit(0, demand, fill=True)
print(f"{len(prompt)} tokens are in blocks {pool.table(0).block_ids}")

# 3. append_slot: a block is taken when the last one is full
for word in ("fathers", "brought"):
    before = pool.num_free_blocks
    pool.append({0: 1})
    taken, last = before - pool.num_free_blocks, pool.num_tokens(0) - 1
    print(f"{word!r} takes {taken} new blocks, and slot {pool.table(0).slot(last)}")

# 4. what it costs
usage = pool.usage()
print(f"of {usage.capacity} slots {usage.used} hold tokens, {usage.internal} are empty ends")

# 5. to the host and back, where others need the memory
out = pool.swap_out([0])
print(f"to the host: {[(move.source, move.target) for move in out or []]}")
pool.admit(1, Demand(8))  # somebody else takes the first blocks
back = pool.swap_in([0])
print(f"and back: {[(move.source, move.target) for move in back or []]}")
print(f"the table is {pool.table(0).block_ids} now, and position 8 in slot {pool.table(0).slot(8)}")

# 6. free: the blocks go back to the pool
pool.free(0)
pool.free(1)
print(f"{pool.num_free_blocks} of 8 blocks are free")
