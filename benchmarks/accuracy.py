"""What rounding costs: bits per byte and agreement of greedy tokens with float32.

    python benchmarks/accuracy.py                              # the demonstration model
    python benchmarks/accuracy.py --model DIR --text FILE      # any other

An engine reads the text in chunks, so what is rounded is what it rounds: weights, activations, and
the keys and values that chunks leave for later ones. The demonstration model is judged by the text
that it was not trained on (scripts/demo_model), each document on its own and with its end, as when
it was trained; another model by FILE. Agreement is the share of positions at which the most likely
next token is the one of float32, given the same text before it.
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

from demo_model import corpus

from quire.core.protocol import SamplingParams
from quire.engine.capacity import Capacity
from quire.engine.llm import LLM
from quire.engine.outputs import RequestOutput
from quire.models.demo import DEMO_MODEL

SEED = 1  # of the split, as in scripts/train_demo_model.py
CHUNK = 64  # tokens
VARIANTS = (  # dtype, quantization, kv_cache_dtype
    ("float32", None, "auto"),
    ("float32", None, "bfloat16"),
    ("float32", None, "int8"),
    *product(["bfloat16"], [None, "int8", "w8a8", "int4", "w4a8"], ["auto", "int8"]),
)


class Score(NamedTuple):
    """Of a model on the windows of a text."""

    nats: float
    greedy: list[int]  # the likeliest token at each place


def documents(file: Path | None) -> list[str]:
    """The texts to judge by."""
    if file is not None:
        return [file.read_text(encoding="utf-8")]
    _, held_out = corpus.split(corpus.gather(), SEED)
    return [document.plain() for document in held_out]


def windows(texts: list[str], directory: Path, length: int) -> list[list[int]]:
    """Token ids of at most ``length`` + 1, the first of each only to begin with."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    end = tokenizer.token_to_id("<|endoftext|>")
    edge = [] if end is None else [end]
    rows = []
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids = [*edge, *encoding.ids, *edge]
        rows += [ids[i : i + length + 1] for i in range(0, len(ids) - 1, length)]
    return rows


def judge(
    directory: Path, rows: list[list[int]], dtype: str, quantization: str | None, kv_dtype: str
) -> tuple[Score, Capacity]:
    """Score every token of the rows after the first, each row one request."""
    llm = LLM(
        directory,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_dtype,
        max_num_batched_tokens=CHUNK,
        max_num_seqs=1,
    )
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": row} for row in rows], params, use_tqdm=False)
    scores = [score(output) for output in outputs]
    greedy = [token for one in scores for token in one.greedy]
    return Score(sum(one.nats for one in scores), greedy), llm.capacity


def score(output: RequestOutput) -> Score:
    """How well the model foresaw the prompt."""
    nats, greedy = 0.0, []
    for token, table in zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=True):
        if table is not None:  # the first token is not foreseen
            nats -= table[token].logprob
            greedy.append(min(table, key=lambda token: (table[token].rank, token)))
    return Score(nats, greedy)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="what rounding costs in accuracy"
    )
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="directory of the model")
    parser.add_argument("--text", type=Path, help="UTF-8 text to judge by")
    parser.add_argument("--window", type=int, default=1024, help="most tokens before a token")
    args = parser.parse_args()
    texts = documents(args.text)
    num_bytes = sum(len(text.encode()) for text in texts)
    rows = windows(texts, args.model, args.window)
    print(f"{num_bytes:,} bytes, {sum(map(len, rows)) - len(rows):,} tokens")
    print(f"{'dtype':<10}{'weights':<9}{'MB':>6}  {'KV cache':<9}{'bytes/token':>12}", end="")
    print(f"{'bits/byte':>11}{'perplexity':>12}{'agreement':>11}")
    reference: list[int] | None = None
    for variant in VARIANTS:
        (nats, greedy), held = judge(args.model, rows, *variant)
        reference = reference or greedy
        agreement = sum(map(int.__eq__, greedy, reference)) / len(reference)
        print(
            f"{held.dtype:<10}{held.quantization or '-':<9}{held.weight_bytes / 1e6:>6.2f}  "
            f"{held.kv_dtype:<9}{held.kv_bytes_per_token:>12,}"
            f"{nats / math.log(2) / num_bytes:>11.4f}{math.exp(nats / len(greedy)):>12.3f}"
            f"{agreement:>11.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
