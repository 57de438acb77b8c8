"""Traces of what was served, as ``--record-trace`` writes them."""
