"""llama.cpp's own server, in a wheel: what it makes of a vocabulary."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from references.packages import environment

XLLAMACPP = "xllamacpp==2026.10.11549"
_PATIENCE = 300.0  # seconds
_WIDTH = 32  # of the model around a vocabulary
_END = re.compile(r"  - (\d+) \('.*'\)")
_ASK = """
import json, sys, urllib.request
import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.n_ctx, parameters.port = sys.argv[1], 64, 0
parameters.warmup, parameters.verbosity = False, 5  # so that it tells which tokens are ends
server = xllamacpp.Server(parameters)
found = []
for text in json.load(sys.stdin):
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + "/tokenize", body, headers)
    found.append(json.load(urllib.request.urlopen(request))["tokens"])
print(json.dumps(found))
sys.stdout.flush()
"""


class Said(NamedTuple):
    """tokens: of each text. ends: the tokens by which texts end."""

    tokens: list[list[int]]
    ends: set[int]


def ask(model: Path, texts: Sequence[str]) -> Said:
    """What it makes of the texts with their marks. Raises Unreachable where it cannot be had."""
    command = [str(environment(XLLAMACPP)), "-c", _ASK, str(model)]
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, timeout=_PATIENCE
    )
    assert done.stdout, done.stderr[-2000:]
    ends = {int(id) for id in _END.findall(done.stderr)}
    return Said(json.loads(done.stdout.splitlines()[-1]), ends)


def with_a_model(vocabulary: Path, target: Path) -> Path:
    """The vocabulary of a file, in one of a Llama of a layer, since it runs no others."""
    reader = gguf.GGUFReader(vocabulary)
    writer = gguf.GGUFWriter(target, "llama")
    count = 0
    for name, field in reader.fields.items():
        if name == "general.name":
            writer.add_name(field.contents())
        if not name.startswith("tokenizer."):
            continue
        if name == "tokenizer.ggml.tokens":
            count = len(field.data)
        _add(writer, name, field)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[int, ...]] = {f"blk.0.{part}": (_WIDTH, _WIDTH) for part in square}
    shapes |= dict.fromkeys(("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"), (_WIDTH,))
    shapes["token_embd"] = (count, _WIDTH)
    for part, shape in shapes.items():
        kind: Any = np.float16 if len(shape) > 1 else np.float32
        writer.add_tensor(f"{part}.weight", np.zeros(shape, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add(writer: gguf.GGUFWriter, name: str, field: gguf.ReaderField) -> None:
    kind, *parts = field.types
    writer.add_key_value(name, field.contents(), kind, parts[-1] if parts else None)
