"""A package, so that its browser ends with its last test."""
