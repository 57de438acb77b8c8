"""Settings of the test process that must be made before torch is loaded."""

import os

# Threads that spin while they wait make torch crawl when the tests share their cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
