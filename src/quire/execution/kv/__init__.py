"""The pool's tensors, and where their blocks are swapped to."""
