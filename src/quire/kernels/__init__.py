"""Attention over block tables: ``ops`` defines it, ``reference`` computes it in plain torch."""
