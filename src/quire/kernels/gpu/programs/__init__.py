"""What runs on the device, in Triton: pointers and numbers in, no tensors.

Names in capitals are compiled in. Shapes use the letters of ``quire.kernels.ops``.
"""
