"""Blocks beyond the pool: in main memory, on disk, with other engines; and who is told of them."""
