"""Every block of the pages is run, but for those that say why not.

The tutorial has a test of its own. All pages take minutes: ``make test-docs``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import quire.models.demo
from support.gguf_files import Kind, add_tokenizer, write_gguf
from support.lora import save_adapter
from support.pages import DOCS, PAGES, ROOT, blocks
from support.reading import Reader
from support.small_encoders import make_encoder
from support.small_models import make_model

ALL = "QUIRE_DOCS" in os.environ
BY_OTHERS = {"tutorial.md"}  # tests/torch/test_tutorial.py
SOME = {"README.md", "docs/howto/sessions.md"}
DEMO = Path(quire.models.demo.__file__).parent

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="Quire runs without its docs")


def pages() -> Iterator[str]:
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        run = any(block.why is None and block.kind not in ("", "text") for block in blocks(page))
        if run and page.name not in BY_OTHERS and (ALL or name in SOME):
            yield name


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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [*pages()])
def test_every_block_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    furnish(tmp_path, (ROOT / page).read_text(encoding="utf-8"))
    reader = Reader(tmp_path, instead(tmp_path))
    try:
        for block in blocks(ROOT / page):
            if block.why is None and block.kind not in ("", "text"):
                printed = reader.do(block)
                assert block.prints in (None, printed)
    finally:
        reader.leave()
