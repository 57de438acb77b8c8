"""GGUF files without tensors, whose vocabularies are what a test says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

LETTERS = sorted(ByteLevel.alphabet())
NORMAL, UNKNOWN, CONTROL, ADDED = 1, 2, 3, 4
FIRST = len(LETTERS)  # id of the first token after those of one byte


def write_vocabulary(
    path: Path,
    kind: str,
    tokens: Sequence[str],
    types: Sequence[int],
    architecture: str = "llama",
    **fields: Any,
) -> Path:
    """fields: by their names after ``tokenizer.ggml``; ``chat_template`` has none before it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(types))
    for name, value in fields.items():
        adds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        add: Any = adds.get(type(value), writer.add_array)
        add(f"tokenizer.{'' if name == 'chat_template' else 'ggml.'}{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_bytes(
    path: Path, whole: Mapping[str, int], words: Sequence[str] = ("th",), **fields: Any
) -> Path:
    """Tokens of one byte each, of ``words``, and those found ``whole``, by their types."""
    letters = [letter for letter in LETTERS if letter not in whole]
    tokens = [*letters, *words, *whole]
    types = [whole.get(token, NORMAL) for token in tokens]
    told = {"merges": ["t h"], "pre": "gpt-2", **fields}
    kept = {name: value for name, value in told.items() if value is not None}
    return write_vocabulary(path, "gpt2", tokens, types, **kept)


def write_pieces(path: Path, pieces: Mapping[str, int], **fields: Any) -> Path:
    """A vocabulary as SentencePiece's; pieces that come first are merged first."""
    scores = [-float(at) for at in range(len(pieces))]
    told = {"scores": scores, **fields}
    return write_vocabulary(path, "llama", list(pieces), list(pieces.values()), **told)


def write_like(path: Path, original: Tokenizer, kind: str, **fields: Any) -> Path:
    """The vocabulary of ``original``."""
    parts = json.loads(original.to_str())
    vocabulary = original.get_vocab()
    added = {token["id"]: token for token in parts["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    types = [(3 if added[i]["special"] else 4) if i in added else 1 for i in range(len(tokens))]
    merges = [" ".join(pair) for pair in parts["model"]["merges"]]
    if kind == "gpt2":
        fields["merges"] = merges
    else:  # by scores: what is merged first has most
        ranks = {merge.replace(" ", ""): -float(rank) for rank, merge in enumerate(merges)}
        fields["scores"] = [ranks.get(token, -1e6) for token in tokens]
    return write_vocabulary(path, kind, tokens, types, **fields)
