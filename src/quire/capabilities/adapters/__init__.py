"""Adapters (LoRA) as PEFT writes them."""
