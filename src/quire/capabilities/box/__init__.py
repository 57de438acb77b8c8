"""Worker processes for what a client can shape: a crash, a loop or gigabytes end one of them."""

from quire.capabilities.box.box import Allowance, Box, BoxBroken, BoxWorker

__all__ = ["Allowance", "Box", "BoxBroken", "BoxWorker"]
