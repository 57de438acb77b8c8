"""GGUF files as checkpoints: their tensors by the families' names, their blocks as they are."""
