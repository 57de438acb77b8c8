"""What pages name and do not make: models, adapters, traces, keys."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import quire.models.demo
from support.gguf_files import Kind, add_tokenizer, write_gguf
from support.lora import save_adapter
from support.pages import ROOT
from support.small_encoders import make_encoder
from support.small_models import make_model

DEMO = Path(quire.models.demo.__file__).parent


def cached(hub: Path, name: str, make: Callable[[Path], object]) -> None:
    """Make a model as Hugging Face's cache would have it."""
    repository = hub / "hub" / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0" * 40)
    make(repository / "snapshots" / ("0" * 40))


def long_demo(directory: Path) -> None:
    """The demonstration model, that takes longer texts."""
    shutil.copytree(DEMO, directory, ignore=shutil.ignore_patterns("*.py", "*.md", "draft"))
    config = directory / "config.json"
    values = {**json.loads(config.read_text()), "max_position_embeddings": 32768}
    config.write_text(json.dumps(values))


def instead(folder: Path) -> Mapping[str, str]:
    """What is written here for what pages have: models, memory, places, times."""
    return {
        r"\bMODEL(?= --experts-path)": str(folder / "mixture"),
        r"\bMODEL\b": str(DEMO),
        r"\bNAME:": f"{folder}:",
        r"(--(?:kv-cache-memory-bytes|swap-space)) \d+GiB": r"\1 32MiB",
        r"(--kv-(?:offloading|store)-size) \d+": r"\1 1",
        r"/(run/secrets|var/cache|fast/disk)": str(folder / "places"),
        r"--seconds 60": "--seconds 2",
        r"^quire top(?= +#)": "quire top http://127.0.0.1:8000",
    }


def furnish(folder: Path, text: str) -> None:
    """Make what the page names and does not make."""
    (folder / "places").mkdir()
    for keys in (folder / "places/quire-keys", folder / "keys"):
        keys.write_text("a-key\n")
        keys.chmod(0o600)
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    (folder / "prompt.txt").write_text("A list is")
    rows = "".join(f"2024-01-01 00:00:{n:02}.5000000,{100 + n},{20 + n}\n" for n in range(40))
    for name in set(re.findall(r"[\w-]+\.csv", text)) - {"s.csv", "day.csv"}:
        (folder / name).write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    if "--experts-path" in text:
        make_model("mixtral", folder / "mixture")
    if "model-Q4_K_M.gguf" in text:
        llama = make_model("llama", folder / "llama")
        file = folder / "model-Q4_K_M.gguf"
        write_gguf(llama, file, lambda _: Kind.Q4_0, lambda writer: add_tokenizer(writer, llama))
    for name in set(re.findall(r"adapters/(?:sql|chat)", text)):
        save_adapter(folder / name, DEMO)
    models: dict[str, Callable[[Path], object]] = {
        "Qwen/Qwen2.5-0.5B-Instruct": long_demo,
        "HuggingFaceTB/SmolLM-135M": lambda path: shutil.copytree(DEMO / "draft", path),
        "sentence-transformers/all-MiniLM-L6-v2": lambda path: make_encoder("Bert", path),
    }
    for name, make in models.items():
        if name in text:
            cached(folder / "hub", name, make)
