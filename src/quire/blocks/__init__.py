"""Blocks outside the pool: in main memory, on disk, in other engines; and the events about cached
ones.
"""
