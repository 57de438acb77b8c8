"""Steps on an NVIDIA GPU: ``inputs`` brings batches there, ``forward`` computes them.

``graphs`` records the launches of decodes, ``memory`` measures what the pool may take,
``kv_cache`` holds it, ``pinned`` is where it is swapped to, and ``assembly`` puts it all together.
Only ``kv_cache`` and ``assembly`` need Triton.
"""
