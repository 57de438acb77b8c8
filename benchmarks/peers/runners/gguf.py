"""Convert a model with llama.cpp's own script, whatever its tokenizer.

    python -m benchmarks.peers.runners.gguf LLAMA_CPP MODEL OUT.gguf

The script refuses tokenizers that it does not know. Ours is a byte-level one, and every prompt is
of token ids: how text would be split into words does not matter.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main() -> None:
    sources, model, out = sys.argv[1:]
    sys.path[:0] = [sources, f"{sources}/gguf-py"]
    script = importlib.import_module("convert_hf_to_gguf")
    base = importlib.import_module("conversion.base")
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    gemma = importlib.import_module("conversion.gemma")
    gemma.Gemma4Model.set_vocab = base.TextModel._set_vocab_gpt2
    config = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))
    # It takes it for granted that they come with layers that guess further tokens.
    flags = ["--no-mtp"] if config["model_type"].startswith("qwen3_5") else []
    sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", "bf16", "--outfile", out, *flags]
    script.main()


if __name__ == "__main__":
    main()
