"""GuideLLM: a short benchmark, all of whose requests must succeed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    report = Path(folder, "report.json")
    done = subprocess.run(
        [
            Path(sys.executable).parent / "guidellm", "benchmark", "run",
            "--target", os.environ["QUIRE_URL"],
            "--model", os.environ["QUIRE_MODEL"],
            "--processor", os.environ["QUIRE_TOKENIZER"],
            "--profile", "synchronous",
            "--max-requests", "4",
            "--data", "prompt_tokens=16,output_tokens=8",
            "--output-path", report,
        ],
        cwd=folder,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.returncode
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert len(requests["successful"]) == 4 and not requests["errored"], requests["errored"]
