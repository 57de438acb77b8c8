"""vLLM's own benchmark of a server, over completions and chats: every request must succeed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

for backend, path in (("openai", "completions"), ("openai-chat", "chat/completions")):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                Path(sys.executable).parent / "vllm", "bench", "serve",
                "--backend", backend, "--endpoint", f"/v1/{path}",
                "--base-url", os.environ["QUIRE_URL"],
                "--model", os.environ["QUIRE_MODEL"],
                "--tokenizer", os.environ["QUIRE_TOKENIZER"],
                "--dataset-name", "random", "--random-input-len", "16",
                "--random-output-len", "8", "--num-prompts", "4",
                "--save-result", "--result-dir", folder, "--result-filename", "result.json",
            ],
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, backend
        result = json.loads(Path(folder, "result.json").read_text())
        assert result["completed"] == 4 and result["total_output_tokens"] > 0, result
