"""See ``support.torch_fixtures``."""

from support.torch_fixtures import one_thread, same_tensors

__all__ = ["one_thread", "same_tensors"]
