"""``Kernels`` in Triton, for NVIDIA GPUs. Needs one to be imported, or Triton's interpreter.

``programs`` runs on the device. ``kernels`` launches it, over the ``work`` of a step. ``tiles`` has
the sizes of tiles, by device. ``moves`` copies whole blocks. ``support`` imports no Triton, and
knows what will run.
"""
