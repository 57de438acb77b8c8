"""The command, and what it does beside serving."""
