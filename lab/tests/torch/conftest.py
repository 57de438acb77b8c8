"""See ``support.torch_fixtures``."""

from support.torch_fixtures import one_thread, same_tensors, threads_as_before

__all__ = ["one_thread", "same_tensors", "threads_as_before"]
