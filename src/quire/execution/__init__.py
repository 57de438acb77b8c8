"""A Step becomes tokens: one forward pass over a mixed batch, and what is made of it."""
