"""GGUF files byte by byte, without any library: what may be in them, and what may not."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Parts = dict[str, Any]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return struct.pack("<IQ", 10, value)


def string(value: str) -> bytes:
    return struct.pack("<I", 8) + text(value)


def strings(count: int, *values: str) -> bytes:
    return struct.pack("<IIQ", 9, 8, count) + b"".join(map(text, values))


def floating(value: float) -> bytes:
    return struct.pack("<If", 6, value)


def truth(value: bool) -> bytes:
    return struct.pack("<IB", 7, value)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<IIQ{len(values)}i", 9, 5, len(values), *values)


def tensor(shape: Sequence[int], kind: int, offset: int) -> bytes:
    form = f"<I{len(shape)}QIQ"
    return struct.pack(form, len(shape), *reversed(shape), kind, offset)


def parts() -> Parts:
    """Of a small model: F32 is type 0, Q4_0 type 2."""
    return {
        "magic": b"GGUF",
        "version": 3,
        "fields": {
            "general.architecture": string("qwen3"),
            "qwen3.block_count": number(1),
            "qwen3.context_length": number(64),
            "qwen3.embedding_length": number(32),
            "qwen3.feed_forward_length": number(32),
            "qwen3.attention.head_count": number(2),
            "qwen3.attention.layer_norm_rms_epsilon": struct.pack("<If", 6, 1e-6),
            "tokenizer.ggml.tokens": strings(3, "a", "b", "c"),
        },
        "tensors": {
            "token_embd.weight": tensor((4, 32), 2, 0),
            "output_norm.weight": tensor((32,), 0, 96),
        },
        "num_fields": None,
        "num_tensors": None,
        "data": bytes(96 + 128),
    }


def written(parts: Parts, path: Path) -> Path:
    path.write_bytes(joined(parts))
    return path


def joined(parts: Parts) -> bytes:
    fields, tensors = parts["fields"], parts["tensors"]
    counts = (parts["num_tensors"], parts["num_fields"])
    counts = tuple(
        len(there) if told is None else told
        for told, there in zip(counts, (tensors, fields), strict=True)
    )
    content = parts["magic"] + struct.pack("<IQQ", parts["version"], *counts)
    for name, value in [*fields.items(), *tensors.items()]:
        content += text(name) + value
    return bytes(content + bytes(-len(content) % 32) + parts["data"])


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class _Reading:
    """A place in a file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 24

    def number(self, form: str) -> int:
        self.at += struct.calcsize(form)
        return int(struct.unpack_from(f"<{form}", self.data, self.at - struct.calcsize(form))[0])

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def skip(self, kind: int, count: int = 1) -> None:
        for _ in range(count if kind == 8 else 0):
            self.text()
        self.at += 0 if kind == 8 else _SIZES[kind] * count

    def field(self) -> bytes:
        begin, kind = self.at, self.number("I")
        if kind == 9:
            kind = self.number("I")
            self.skip(kind, self.number("Q"))
        else:
            self.skip(kind)
        return self.data[begin : self.at]

    def tensor(self) -> bytes:
        begin, dimensions = self.at, self.number("I")
        self.at += 8 * dimensions + 12
        return self.data[begin : self.at]


def taken_apart(path: Path) -> Parts:
    """Of a good file without an alignment of its own."""
    file = _Reading(path.read_bytes())
    version, num_tensors, num_fields = struct.unpack_from("<IQQ", file.data, 4)
    fields = {file.text(): file.field() for _ in range(num_fields)}
    tensors = {file.text(): file.tensor() for _ in range(num_tensors)}
    start = file.at + -file.at % 32
    return {
        "magic": b"GGUF", "version": version, "fields": fields, "tensors": tensors,
        "num_fields": None, "num_tensors": None, "data": file.data[start:],
    }  # fmt: skip
