"""Asks llama.cpp's server for the tokens of texts and their pieces, in an environment of its own.

Of a vocabulary it makes a model that is as small as can be, for the server loads no vocabulary
alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

ENVIRONMENT = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy")
_WIDTH, _INNER = 32, 64


def main() -> None:
    """Reads {vocabulary, texts} from standard input; writes the answers' tokens."""
    asked = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        _write_model(asked["vocabulary"], model)
        url = _serve(model)
        answers = [_tokens(url, text) for text in asked["texts"]]
    print(json.dumps(answers), flush=True)


def _write_model(vocabulary: str, model: Path) -> None:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(model, "llama")
    for field in gguf.GGUFReader(vocabulary).fields.values():
        if field.name.startswith("tokenizer."):
            kinds = field.types
            writer.add_key_value(
                field.name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None
            )
            if field.name.endswith("ggml.tokens"):
                count = len(field.contents())
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(_WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(count)
    shapes = {
        "token_embd": (count, _WIDTH), "output": (count, _WIDTH), "output_norm": (_WIDTH,),
        "blk.0.attn_norm": (_WIDTH,), "blk.0.ffn_norm": (_WIDTH,),
        **{f"blk.0.attn_{name}": (_WIDTH, _WIDTH) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (_INNER, _WIDTH), "blk.0.ffn_up": (_INNER, _WIDTH),
        "blk.0.ffn_down": (_WIDTH, _INNER),
    }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _serve(model: Path) -> str:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.warmup, params.n_ctx, params.port = False, 512, 0
    _serve.server = xllamacpp.Server(params)  # type: ignore[attr-defined]  # as long as we ask
    return str(_serve.server.listening_address)  # type: ignore[attr-defined]


def _tokens(url: str, text: str) -> Any:
    body = json.dumps({"content": text, "with_pieces": True}).encode()
    request = urllib.request.Request(url + "/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["tokens"]


if __name__ == "__main__":
    main()
