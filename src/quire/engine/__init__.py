"""Requests in, text out: the loop, its thread, its queues, and where an engine is put together."""
