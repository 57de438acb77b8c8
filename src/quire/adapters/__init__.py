"""Adapters (LoRA; Hu et al., 2022) as PEFT writes them, read without trust."""

from quire.adapters.checkpoint import AdapterCheckpoint, check_adapter

__all__ = ["AdapterCheckpoint", "check_adapter"]
