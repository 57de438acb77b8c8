"""Texts in, vectors and scores out, by the names of several APIs."""
