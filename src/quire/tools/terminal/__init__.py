"""Talking with a model in a terminal, in this process or on a server. Never torch."""
