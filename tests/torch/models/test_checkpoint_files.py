"""Checkpoints are found by the names that savers give their files, or it is said which is missing.

Each model must be the one that transformers saved, whatever its files are called since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.core.errors import ModelError
from quire.models import loader
from quire.models.checkpoint_files import find_files
from quire.models.encoder import TextBatch
from quire.models.loader import load_encoder, load_model
from support.paged_harness import PagedHarness
from support.small_encoders import make_encoder
from support.small_models import make_model

Files = Mapping[str, list[str]]

WHOLE = "model.safetensors"
INDEX = f"{WHOLE}.index.json"


def halves(directory: Path) -> tuple[list[str], list[str]]:
    names = sorted(load_file(directory / WHOLE))
    return names[::2], names[1::2]


def divide(directory: Path, files: Files) -> None:
    """The checkpoint's tensors in other files."""
    tensors = load_file(directory / WHOLE)
    (directory / WHOLE).unlink()
    for name, own in files.items():
        save_file({one: tensors[one] for one in own}, directory / name)


def index(directory: Path, files: Files, name: str = INDEX) -> None:
    places = {tensor: file for file, tensors in files.items() for tensor in tensors}
    (directory / name).write_text(json.dumps({"weight_map": places}))


def one_file(name: str) -> Callable[[Path], None]:
    return lambda directory: divide(directory, {name: sorted(load_file(directory / WHOLE))})


def numbered(stem: str, indexed_by: str | None = None) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        names = (f"{stem}-{number:05}-of-00002.safetensors" for number in (1, 2))
        files = dict(zip(names, halves(directory), strict=True))
        divide(directory, files)
        if indexed_by is not None:
            index(directory, files, indexed_by)

    return change


def stale_index(directory: Path) -> None:
    """Of shards that were put together into one file since."""
    index(directory, {"model-00001-of-00002.safetensors": ["a"]})


def copies_of_other_types(directory: Path) -> None:
    numbered("model")(directory)
    for number in (1, 2):
        (directory / f"model.fp16-{number:05}-of-00002.safetensors").touch()


def beside_an_adapter(directory: Path) -> None:
    one_file("weights.safetensors")(directory)
    (directory / "adapter_model.safetensors").touch()
    (directory / "consolidated.safetensors").touch()


def hidden_files(directory: Path) -> None:
    """As macOS leaves one beside each file that it copies to other disks."""
    one_file("weights.safetensors")(directory)
    (directory / "._weights.safetensors").write_bytes(b"Mac OS X")


def twice(directory: Path) -> None:
    """A tensor in both files, of which the index tells the right one."""
    first, second = halves(directory)
    name, tensor = first[0], load_file(directory / WHOLE)[first[0]]
    divide(directory, {"a.safetensors": first, "b.safetensors": second})
    others = load_file(directory / "b.safetensors")
    save_file({**others, name: torch.zeros_like(tensor)}, directory / "b.safetensors")
    index(directory, {"a.safetensors": first, "b.safetensors": second})


FOUND = {
    "AutoGPTQ's name": one_file("gptq_model-4bit-128g.safetensors"),
    "another name": one_file("llama-7b-4bit.safetensors"),
    "shards without an index": numbered("model"),
    "AutoGPTQ's shards": numbered("gptq_model-4bit-128g"),
    "AutoGPTQ's shards and their index": numbered(
        "gptq_model-4bit-128g", "gptq_model-4bit-128g.safetensors.index.json"
    ),
    "another index": numbered("pytorch_model", "pytorch_model.safetensors.index.json"),
    "an index that is left over": stale_index,
    "copies of other types": copies_of_other_types,
    "an adapter beside it": beside_an_adapter,
    "hidden files": hidden_files,
    "a tensor in two files": twice,
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("through", ["Quire", "transformers"])
def test_what_is_found(
    name: str, through: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if through == "transformers":
        monkeypatch.setattr(loader, "_NATIVE", {})
    directory = make_model("qwen2", tmp_path)
    before = PagedHarness(load_model(directory)).prefill([list(range(3, 33))], chunk=30)[0]
    FOUND[name](directory)
    after = PagedHarness(load_model(directory)).prefill([list(range(3, 33))], chunk=30)[0]
    assert torch.equal(after, before)


def test_encoders_too(tmp_path: Path) -> None:
    directory, batch = make_encoder("Bert", tmp_path), TextBatch(torch.tensor([[2, 5, 6, 3]]))

    def states() -> torch.Tensor:
        return load_encoder(directory, "auto", None, None, lambda _: None).forward(batch)

    before = states()
    numbered("model")(directory)
    assert torch.equal(states(), before)


def touch(*names: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        for name in names:
            (directory / name).touch()

    return change


def wrong_index(directory: Path) -> None:
    index(directory, {"one.safetensors": ["a"], "two.safetensors": ["b"]})
    (directory / "one.safetensors").touch()


NOT_FOUND: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a shard is missing": (
        touch("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"),
        r"of 3 numbered files there are 2; model-00002-of-00003\.safetensors is missing",
    ),
    "most shards are missing": (
        touch("model-00001-of-99999.safetensors"), r"model-00002-of-99999\.safetensors is missing"
    ),
    "a file of an index is missing": (wrong_index, r"that are not there: two\.safetensors"),
    "two sets of shards": (
        touch("model-00001-of-00001.safetensors", "model-00001-of-00002.safetensors"),
        r"several safetensors files .*model-00001-of-00001\.safetensors, model-00001-of-00002",
    ),
    "two files": (touch("a.safetensors", "b.safetensors"), r"several .*: a\.safetensors, b\.safe"),
    "two indices": (
        touch("a.safetensors.index.json", "b.safetensors.index.json"), "neither model.safetensors"
    ),
    "Mistral's own": (touch("consolidated.safetensors"), "consolidated files are of Mistral's"),
    "Mistral's shards": (
        touch("consolidated-00001-of-00002.safetensors"), "consolidated files are of Mistral's"
    ),
    "an adapter": (touch("adapter_model.safetensors"), "but an adapter: .* --lora-modules"),
    "pickled": (touch("pytorch_model.bin"), "pickled weights"),
    "pickled shards": (touch("pytorch_model-00001-of-00002.bin"), "pickled weights"),
    "Meta's own": (touch("consolidated.00.pth"), "pickled weights"),
    "GGUF": (touch("a-Q4_K_M.gguf"), r"but GGUF files: name one of them \(a-Q4_K_M\.gguf\)"),
    "nothing": (touch(), r"has neither model\.safetensors nor"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_is_not_found_is_said(name: str, tmp_path: Path) -> None:
    change, message = NOT_FOUND[name]
    change(tmp_path)
    with pytest.raises(ModelError, match=message):
        find_files(tmp_path)


def test_a_tensor_that_is_in_two_shards(tmp_path: Path) -> None:
    directory = make_model("qwen2", tmp_path)
    numbered("model")(directory)
    paths = sorted(directory.glob("*.safetensors"))
    tensors = load_file(paths[1])
    save_file({**tensors, **load_file(paths[0])}, paths[1])
    with pytest.raises(ModelError, match=r"is in model-00001-of-00002\.safetensors as well"):
        load_model(directory)
