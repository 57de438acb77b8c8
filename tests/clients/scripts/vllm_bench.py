"""vLLM's own benchmark of a server, over completions and chats: every request must succeed.

``vllm bench serve`` without its command, which builds of vLLM under other names do not have.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from vllm.benchmarks.serve import add_cli_args, main

parser = argparse.ArgumentParser(allow_abbrev=False)
add_cli_args(parser)
for backend, path in (("openai", "completions"), ("openai-chat", "chat/completions")):
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "backend": backend,
            "endpoint": f"/v1/{path}",
            "base-url": os.environ["QUIRE_URL"],
            "model": os.environ["QUIRE_MODEL"],
            "tokenizer": os.environ["QUIRE_TOKENIZER"],
            "dataset-name": "random",
            "random-input-len": "16",
            "random-output-len": "8",
            "num-prompts": "4",
            "result-dir": folder,
            "result-filename": "result.json",
        }
        given = [word for name, value in flags.items() for word in (f"--{name}", value)]
        main(parser.parse_args([*given, "--save-result"]))
        result = json.loads(Path(folder, "result.json").read_text())
        assert result["completed"] == 4 and result["total_output_tokens"] > 0, result
