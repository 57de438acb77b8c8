"""Text to tokens and back, and what a text means."""
