"""Mixtures whose experts are kept in a file: the same bits, in memory that the system can drop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, ModelError
from quire.execution.free_memory import is_memory
from quire.kernels.pages import FilePages
from quire.models.loader import load_model

ModelDir = Callable[[str], Path]


def load(directory: Path, **options: Any) -> LLM:
    return LLM(directory, **{"kv_cache_memory_bytes": "1MiB", "threads": 1, **options})


def said(llm: LLM) -> list[Any]:
    params = SamplingParams(max_tokens=12, temperature=0, logprobs=1)
    outputs = llm.generate([[3, 4, 5], list(range(3, 40))], params, use_tqdm=False)
    return [
        [(token, table[token].logprob.hex()) for token, table in zip(*tokens, strict=True)]
        for tokens in ((one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs)
    ]


def in_files() -> list[tuple[int, int]]:
    """Addresses of what is mapped from files that have no name, to be written there."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = (line.split()[0].split("-") for line in lines if "rw-s" in line and "deleted" in line)
    return [(int(start, 16), int(end, 16)) for start, end in spans]


@pytest.mark.parametrize(
    ("family", "quantization"), [("qwen3_moe", None), ("qwen3_moe", "int4"), ("gpt_oss", None)]
)
def test_they_give_the_same_bits(
    family: str, quantization: str | None, model_dir: ModelDir, tmp_path: Path
) -> None:
    options = {"quantization": quantization}
    llm = load(model_dir(family), experts_path=str(tmp_path), **options)
    assert said(llm) == said(load(model_dir(family), **options))
    assert not list(tmp_path.iterdir())
    told = llm.capacity.describe()
    assert f"They are in a file in {tmp_path}, for which" in told and "of memory are left" in told


def test_all_of_them_and_nothing_else_is_in_the_file(model_dir: ModelDir, tmp_path: Path) -> None:
    model = load_model(model_dir("qwen3_moe"), quantization="int4", experts_path=tmp_path)
    spans = in_files()

    def mapped(weight: Any) -> list[bool]:
        places = [tensor.data_ptr() for tensor in weight._tensors]
        return [any(start <= place < end for start, end in spans) for place in places]

    layer = model.decoder.layers[0]  # type: ignore[attr-defined]
    assert all(all(mapped(one)) for one in (*layer.mlp.up, *layer.mlp.down))
    assert not any(mapped(layer.mlp.router) + mapped(layer.mixer.qkv.product))
    assert model.experts is not None
    assert sum(end - start for start, end in spans) >= model.experts.weight_bytes


def test_what_they_take_is_told_and_checked_before_they_are_read(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, asked = model_dir("qwen3_moe"), list[int]()

    def admit(num_bytes: int) -> None:
        asked.append(num_bytes)
        if len(asked) == 1:
            raise ModelError(f"{num_bytes:,}")

    with pytest.raises(ModelError) as refused:
        load_model(directory, admit=admit)
    whole, _, without = asked
    assert f"With --experts-path DIR it takes {without:,}, and its experts" in str(refused.value)
    model = load_model(directory, admit=asked.append, experts_path=tmp_path)
    assert asked[3] == without
    assert model.experts is not None
    assert whole - without == model.experts.weight_bytes
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"experts take [\d,]+ bytes, but only 1,000 are free in"):
        load_model(directory, experts_path=tmp_path)
    assert len(asked) == 4


def test_where_they_cannot_be(model_dir: ModelDir, tmp_path: Path) -> None:
    for family, path, said in (
        ("qwen3", tmp_path, "experts_path is for mixtures of experts, and this model has none"),
        ("gpt2", tmp_path, "experts_path is for mixtures with code of their own here"),
        ("qwen3_moe", tmp_path / "none", "none is not a directory"),
    ):
        with pytest.raises(ConfigError, match=said):
            load(model_dir(family), experts_path=str(path))
    if is_memory(Path("/dev/shm")):
        with pytest.raises(ConfigError, match="is in main memory"):
            load(model_dir("qwen3_moe"), experts_path="/dev/shm")
    with pytest.raises(ConfigError, match="on a GPU, experts are in its memory"):
        load(model_dir("qwen3_moe"), experts_path=str(tmp_path), device="cuda")
    with pytest.raises(ModelError, match=r"experts_path: .* cannot hold"):
        FilePages(tmp_path).piece(1 << 60)
    assert not list(tmp_path.iterdir())
