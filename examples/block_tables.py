"""A block manager's life by hand: blocks on demand, where each token is, out to the host and back.

No model and no tensors: whoever computes is told block tables and moves.
"""

from quire.core.memory import Demand, PagedAllocator

pool = PagedAllocator(num_blocks=8, block_size=4, num_host_blocks=4)
prompt = ["Four", "score", "and", "seven", "years", "ago", "our"]

pool.admit(seq_id=0, demand=Demand(num_tokens=len(prompt)))  # room for the prompt, and no more
pool.append({0: len(prompt)})  # the step that computes it
print(f"{len(prompt)} tokens are in blocks {pool.table(0).block_ids}")

for word in ("fathers", "brought"):
    before = pool.num_free_blocks
    pool.append({0: 1})
    taken, last = before - pool.num_free_blocks, pool.num_tokens(0) - 1
    print(f"{word!r} takes {taken} new blocks, and slot {pool.table(0).slot(last)}")

usage = pool.usage()
print(f"of {usage.capacity} slots {usage.used} hold tokens, {usage.internal} are empty ends")

out = pool.swap_out([0])
print(f"to the host: {[(move.source, move.target) for move in out or []]}")
pool.admit(1, Demand(8))  # somebody else takes the first blocks
back = pool.swap_in([0])
print(f"and back: {[(move.source, move.target) for move in back or []]}")
print(f"the table is {pool.table(0).block_ids} now, and position 8 in slot {pool.table(0).slot(8)}")

pool.free(0)
pool.free(1)
print(f"{pool.num_free_blocks} of 8 blocks are free")
