"""The experiments of the PagedAttention paper and of articles, on a virtual clock. Never torch."""

from quire_lab.reproduction.run import EXPERIMENTS, reproduce

__all__ = ["EXPERIMENTS", "reproduce"]
