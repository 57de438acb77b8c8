"""Worker processes for what a client can shape: a crash, a loop or gigabytes end one of them."""

from quire.capabilities.box.box import Box, BoxBroken, Worker

__all__ = ["Box", "BoxBroken", "Worker"]
