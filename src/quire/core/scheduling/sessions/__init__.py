"""Sequences that live from turn to turn."""
