"""``Kernels`` in Triton, for NVIDIA GPUs. Import only where there is one, or in its interpreter.

``programs`` runs on the device; ``kernels`` launches it, over the ``work`` of a step; ``tiles``
says in which sizes, by device; ``moves`` carries whole blocks. ``support`` imports no Triton and
says what will run at all.
"""
