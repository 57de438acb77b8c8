"""Costs of a server anywhere, by its timings as a client sees them."""
