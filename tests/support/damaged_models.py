"""Models' directories with something wrong in them: what does an engine make of each?

Run as a program, in a process of its own, so that whoever waits for it sees crashes, hangs and how
much memory it took: ``python -m support.damaged_models SEED COUNT DIRECTORY...`` prints a JSON
object.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.raw_gguf import (
    floating,
    joined,
    number,
    numbers,
    string,
    strings,
    taken_apart,
    tensor,
    truth,
)

_DEEP: Any = []
for _ in range(500):
    _DEEP = [_DEEP]

HOSTILE: tuple[Any, ...] = (
    None, 0, -1, 1, 2, 3, 8, 10**5, 10**9, 10**12, 10**30, -(10**30), 2**63, 1e308, 1e-308, -0.5,
    0.5, float("inf"), float("nan"), True, False, "", "x" * 1000, "\0", "../../x", [], [1], [None],
    [[]] * 5, {}, {"a": 1}, _DEEP,
)  # fmt: skip

# Fields that a checkpoint may have beside those that it has.
_ABSENT = {
    "config.json": (
        "head_dim", "sliding_window", "use_sliding_window", "layer_types", "rope_scaling",
        "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings",
        "quantization_config", "n_layer", "num_key_value_heads", "attention_bias", "auto_map",
        "is_encoder_decoder", "text_config",
    ),
    "generation_config.json": ("eos_token_id", "top_k", "top_p", "temperature", "min_p"),
    "tokenizer_config.json": ("chat_template", "bos_token"),
}  # fmt: skip
_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F4", "I64", "I32", "U8", "BOOL")


_ENDLESS = "{% for a in range(10**9) %}x{% endfor %}"
_HOSTILE_FIELDS = (
    *map(number, (0, 1, 2, 3, 7, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1)),
    *map(floating, (0.0, -1.0, 1e-38, 1e38, float("inf"), float("nan"))),
    *map(string, ("", "x" * 1000, "\0", "{{ x", "\x1b[2J", _ENDLESS)),
    truth(True), truth(False), strings(0), strings(1, ""), strings(3, "a", "a", "\ufeff"),
    strings(2, "a b c", " "), numbers(), numbers(-1, 0, 2**31 - 1), numbers(*range(300)),
)  # fmt: skip
_HOSTILE_TENSORS = (
    tensor((), 0, 0), tensor((0,), 0, 0), tensor((1,), 0, 0), tensor((2**63, 2), 0, 0),
    tensor((64, 64), 99, 0), tensor((32,), 8, 0), tensor((4, 4, 4, 4, 4), 0, 0),
    tensor((8, 8), 1, 2**62), tensor((1, 1), 0, 1),
)  # fmt: skip


class Damage(NamedTuple):
    """A file of a directory, or the only one, and what stands in it now."""

    file: str
    what: str
    content: bytes


def damages(directory: Path, rng: random.Random) -> Iterator[Damage]:
    """For ever: one field of one of the JSON files, or anything of the binary ones."""
    while True:
        if directory.is_file():
            yield _gguf(directory, rng)
        elif rng.random() < 0.75:
            yield _field(directory, rng.choice(list(_ABSENT)), rng)
        else:
            yield rng.choice((_bytes, _header, _tensor))(directory, rng)


def _field(directory: Path, name: str, rng: random.Random) -> Damage:
    file = directory / name
    values = json.loads(file.read_text()) if file.exists() else {}
    places = [*_places(values), *((field,) for field in _ABSENT[name])]
    place, value = rng.choice(places), rng.choice(HOSTILE)
    inside = values
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return Damage(name, f"{place} = {repr(value)[:60]}", json.dumps(values).encode())


def _places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything inside a JSON value."""
    if not isinstance(value, (dict, list)):
        return
    for key in value if isinstance(value, dict) else range(len(value)):
        yield (*above, key)
        yield from _places(value[key], (*above, key))


def _bytes(directory: Path, rng: random.Random) -> Damage:
    name = rng.choice(("model.safetensors", "tokenizer.json", "config.json"))
    content = bytearray((directory / name).read_bytes())
    if rng.random() < 0.5:
        return Damage(name, "cut", bytes(content[: rng.randrange(len(content))]))
    for _ in range(rng.randint(1, 20)):
        content[rng.randrange(min(len(content), 5000))] = rng.randrange(256)
    return Damage(name, "garbled", bytes(content))


def _gguf(path: Path, rng: random.Random) -> Damage:
    """A field or a tensor of a GGUF file is another, or missing; or its header is garbled."""
    parts = taken_apart(path)
    fields, tensors = parts["fields"], parts["tensors"]
    what, name = rng.choice(("field", "field", "field", "tensor", "bytes")), rng.choice([*fields])
    if what == "field":
        value = rng.choice((None, *_HOSTILE_FIELDS, fields[rng.choice([*fields])]))
        fields[name] = value
        if value is None:
            del fields[name]
    elif what == "tensor":
        name = rng.choice([*tensors])
        value = rng.choice((None, tensors[rng.choice([*tensors])], *_HOSTILE_TENSORS))
        tensors[name] = value
        if value is None:
            del tensors[name]
    else:
        whole = bytearray(path.read_bytes())
        size = len(whole) - len(parts["data"])
        if rng.random() < 0.3:
            return Damage("", "cut", bytes(whole[: rng.randrange(len(whole))]))
        for _ in range(rng.randint(1, 20)):
            whole[rng.randrange(size)] = rng.randrange(256)
        return Damage("", "garbled", bytes(whole))
    return Damage("", f"{what} {name} = {value!r:.60}", joined(parts))


def _header(directory: Path, rng: random.Random) -> Damage:
    content = (directory / "model.safetensors").read_bytes()
    size = rng.choice((0, 1, 10**8 - 1, 10**9, 2**63, 2**64 - 1))
    return Damage("model.safetensors", f"header of {size}", struct.pack("<Q", size) + content[8:])


def _tensor(directory: Path, rng: random.Random) -> Damage:
    """One tensor of another type, shape or place."""
    content = (directory / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    name = rng.choice([name for name in header if name != "__metadata__"])
    field = rng.choice(("dtype", "shape", "data_offsets", None))
    value: Any = None
    if field is None:
        del header[name]
    else:
        value = rng.choice(_DTYPES if field == "dtype" else (*HOSTILE, [2**62, 4], [0], [1, 2, 3]))
        header[name][field] = value
    text = json.dumps(header).encode()
    changed = struct.pack("<Q", len(text)) + text + content[8 + size :]
    return Damage("model.safetensors", f"{name} {field} = {repr(value)[:60]}", changed)


def try_all(originals: list[Path], seed: int, count: int) -> dict[str, Any]:
    """How many were served and refused, and what is wrong with those that were neither."""
    rng = random.Random(seed)
    served, wrong = 0, []
    with tempfile.TemporaryDirectory() as place:
        for number in range(count):
            original = originals[number % len(originals)]
            copy = Path(place) / f"model{original.suffix}"
            if original.is_dir():
                shutil.copytree(original, copy)
            damage = next(damages(original, rng))
            (copy / damage.file).write_bytes(damage.content)
            try:
                served += _serve(copy)
            except Exception as error:  # what must not be
                told = f"{original.name} {damage.file} {damage.what}: {error!r}"
                wrong.append(told[:1000])
            if original.is_dir():
                shutil.rmtree(copy)
    return {"served": served, "wrong": wrong}


def _serve(directory: Path) -> bool:
    """Whether the model is served; otherwise it is refused, in one line."""
    from quire import LLM, SamplingParams
    from quire.core.errors import EngineError, ModelError, QuireError, RequestError

    params = SamplingParams(max_tokens=3, min_tokens=2, temperature=0.0)
    try:
        llm = LLM(directory, kv_cache_memory_bytes="4MiB", max_num_seqs=4)
        llm.generate(["the text"], params, use_tqdm=False)
        with contextlib.suppress(RequestError):  # its template is another's, or it is too short
            llm.chat([{"role": "user", "content": "hi"}], params, use_tqdm=False)
    except QuireError as error:
        message = str(error)
        if isinstance(error, EngineError):
            raise ModelError(f"a step failed: {message}") from error
        if not message or "\n" in message or len(message) > 800:
            raise ModelError(f"not one line: {message}") from error
        return False
    return True


def main() -> None:
    seed, count, *directories = sys.argv[1:]
    originals = [Path(directory) for directory in directories]
    for original in originals:  # what they all need is loaded
        _serve(original)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = try_all(originals, int(seed), int(count))
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    print(json.dumps({**found, "bytes": taken}))


if __name__ == "__main__":
    main()
