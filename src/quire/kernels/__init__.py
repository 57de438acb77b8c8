"""Attention over block tables: ``ops`` says what it is, ``reference`` does it in plain torch."""
