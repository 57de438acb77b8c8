"""A vector of a text, or what a model says of it, in place of tokens."""
