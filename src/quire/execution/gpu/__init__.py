"""Steps on an NVIDIA GPU: ``inputs`` brings batches there, ``forward`` computes them.

``graphs`` records the launches of decodes, ``memory`` measures what the pool may take and has what
it is swapped to, ``kv_cache`` holds it, and ``assembly`` puts it all together.
Only ``kv_cache`` and ``assembly`` need Triton.
"""
