"""One prompt, three continuations: what they share, what is copied, and what is found again."""

from quire.core.memory import Demand, PagedAllocator, hash_blocks, root_hash

pool = PagedAllocator(num_blocks=12, block_size=4)
prompt = list(range(100, 110))  # token ids: two full blocks and a half
names = hash_blocks(root_hash(""), prompt, 4)  # of full blocks: their content, and all before it

pool.admit(0, Demand(len(prompt), names))
pool.append({0: len(prompt)})
pool.commit(0, names, count=len(names))  # full, so they may be found
pool.settle()  # the step has been computed
pool.fork(0, 1)
pool.fork(0, 2)
held, saved = pool.blocks_held([0, 1, 2])
print(f"three sequences hold {held} blocks; {saved} more without sharing")

moves = pool.append({0: 1, 1: 1, 2: 1}) or []
copies = [(move.source, move.target) for move in moves]
print(f"each adds a token: {len(copies)} of 3 copy the last block first, {copies}")
for seq_id in range(3):
    print(f"sequence {seq_id}: {pool.table(seq_id).block_ids}")

for seq_id in range(3):
    pool.free(seq_id)
question = [*prompt[:8], 7, 7, 7]
found = pool.admit(3, Demand(len(question), hash_blocks(root_hash(""), question, 4)))
print(f"a later prompt that begins alike finds {found} of its {len(question)} tokens")
