"""Settings of the test process that must be made before torch is loaded."""

import os

from quire.threads import wait_briefly

wait_briefly()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
