"""What rounding costs: bits per byte and agreement of greedy tokens with float32.

    python benchmarks/accuracy.py                              # the demonstration model
    python benchmarks/accuracy.py --model DIR --text FILE      # any other

The demonstration model is judged by the text that it was not trained on (scripts/demo_model), each
document on its own and with its end, as when it was trained; another model by FILE. Agreement is
the share of positions at which the most likely next token is the one of float32, given the same
text before it.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

from demo_model import corpus

from quire.build import DEMO_MODEL
from quire.kernels.dispatch import choose_kernels
from quire.kernels.ops import AttentionBatch, LaneTables, LayerKV
from quire.model import Model, load_model

SEED = 1  # of the split, as in scripts/train_demo_model.py
BLOCK_SIZE = 16
VARIANTS = (  # dtype, quantization
    ("float32", None),
    ("bfloat16", None),
    ("bfloat16", "int8"),
    ("bfloat16", "w8a8"),
    ("bfloat16", "int4"),
    ("float32", "int8"),
    ("float32", "w8a8"),
    ("float32", "int4"),
)


class Score(NamedTuple):
    """Of a model on the windows of a text."""

    nats: float
    greedy: Tensor  # [predicted tokens]


def documents(file: Path | None) -> list[str]:
    """The texts to judge by."""
    if file is not None:
        return [file.read_text(encoding="utf-8")]
    _, held_out = corpus.split(corpus.gather(), SEED)
    return [document.plain() for document in held_out]


def windows(texts: list[str], directory: Path, length: int) -> list[Tensor]:
    """Token ids of at most ``length`` + 1, the first of each only to begin with."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    end = tokenizer.token_to_id("<|endoftext|>")
    edge = [] if end is None else [end]
    rows = []
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids = [*edge, *encoding.ids, *edge]
        rows += [torch.tensor(ids[i : i + length + 1]) for i in range(0, len(ids) - 1, length)]
    return rows


@torch.inference_mode()
def judge(model: Model, rows: list[Tensor]) -> Score:
    """One window after the other."""
    kernels = choose_kernels(model.dtype)
    longest = max(map(len, rows))
    num_blocks = -(-longest // BLOCK_SIZE)
    kv = [
        LayerKV(
            torch.empty(num_blocks, s.num_kv_heads, BLOCK_SIZE, s.key_dim, dtype=model.dtype),
            torch.empty(num_blocks, s.num_kv_heads, BLOCK_SIZE, s.value_dim, dtype=model.dtype),
        )
        for s in model.kv_shapes
    ]
    nats, greedy = 0.0, []
    for row in rows:
        hidden = model.forward(row[:-1], one_sequence(len(row) - 1), kv, kernels)
        logits = model.logits(hidden)
        nats += float(functional.cross_entropy(logits, row[1:], reduction="sum"))
        greedy.append(logits.argmax(dim=1))
    return Score(nats, torch.cat(greedy))


def one_sequence(length: int) -> AttentionBatch:
    """A prompt in the first blocks."""
    positions = torch.arange(length)
    table = torch.arange(-(-length // BLOCK_SIZE))[None]
    return AttentionBatch(
        positions=positions,
        query_starts=(0, length),
        context_lens=torch.tensor([length]),
        prompt_lens=torch.tensor([length]),
        lanes=(LaneTables(positions, table, torch.zeros(1, dtype=torch.long)),),
        block_size=BLOCK_SIZE,
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="what rounding costs in accuracy")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="directory of the model")
    parser.add_argument("--text", type=Path, help="UTF-8 text to judge by")
    parser.add_argument("--window", type=int, default=1024, help="most tokens before a token")
    args = parser.parse_args()
    texts = documents(args.text)
    num_bytes = sum(len(text.encode()) for text in texts)
    rows = windows(texts, args.model, args.window)
    print(f"{num_bytes:,} bytes, {sum(map(len, rows)) - len(rows):,} tokens")
    print(
        f"{'dtype':<10}{'weights':<10}{'bits/byte':>10}{'perplexity':>12}{'agreement':>11}", end=""
    )
    print(f"{'MB':>8}")
    reference: Tensor | None = None
    for dtype, quantization in VARIANTS:
        model = load_model(args.model, dtype, quantization=quantization)
        score = judge(model, rows)
        reference = score.greedy if reference is None else reference
        agreement = float((score.greedy == reference).double().mean())
        print(
            f"{dtype:<10}{quantization or '-':<10}{score.nats / math.log(2) / num_bytes:>10.4f}"
            f"{math.exp(score.nats / len(score.greedy)):>12.3f}{agreement:>11.2%}"
            f"{model.weight_bytes / 1e6:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
