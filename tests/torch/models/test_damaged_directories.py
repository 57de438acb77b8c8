"""A model's directory comes from anybody: it is served, or refused in one line and at no cost."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

import quire
from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, ModelError, RequestError
from quire.execution import device_runtime
from quire.execution.free_memory import memory_or_refusal
from quire.models.loader import load_model
from quire.tools.cli import main
from support.gguf_files import write_gguf
from support.gguf_vocabularies import LETTERS
from support.slow import random_runs
from support.small_models import VOCAB_SIZE

ModelDir = Callable[[str], Path]

DEMO = Path(quire.__file__).parent / "models/demo"
RUNS = random_runs(60)
GGUF_FAMILIES = ("llama", "gemma3", "deepseek_v3")
FAMILIES = ("yarn", "longrope", "opt", "gpt2", "gptj", "gemma3", "smollm3", "falcon")
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
)
PLAIN = (*JSON_FILES, "special_tokens_map.json", "chat_template.jinja", "model.safetensors")


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A copy of the demonstration model."""
    return Path(shutil.copytree(DEMO, tmp_path / "demo"))


def change(directory: Path, **fields: Any) -> Path:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return directory


def refusal(directory: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What the command line says of it."""
    capsys.readouterr()  # a checkpoint that was made for the test told how it went
    assert main(["generate", "hello", "--model", str(directory), *flags]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("quire: error: ")
    return line


def test_whatever_is_wrong_is_served_or_refused_in_one_line(model_dir: ModelDir) -> None:
    check_damaged([DEMO, *(model_dir(family) for family in FAMILIES)])


def test_so_it_is_with_gguf_files(model_dir: ModelDir, tmp_path: Path) -> None:
    paths = [tmp_path / f"{family}.gguf" for family in GGUF_FAMILIES]
    for path in paths:
        write_gguf(model_dir(path.stem), path, lambda _: gguf.GGMLQuantizationType.Q8_0, vocabulary)
    check_damaged(paths, least=0.02)  # such files are checked field by field


def vocabulary(writer: Any) -> None:
    """A tokenizer of bytes with one merge and a template."""
    tokens = [*LETTERS, "th", *(f"<{at}>" for at in range(len(LETTERS) + 1, VOCAB_SIZE))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(VOCAB_SIZE - 1)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")


def check_damaged(directories: list[Path], least: float = 0.1) -> None:
    """In a process of its own: it may neither crash nor hang nor take memory.

    least: share of them that must be harmless.
    """
    seed = random.randrange(10**6) if RUNS > 60 else 0
    command = [sys.executable, "-m", "support.damaged_models", str(seed), str(RUNS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [*command, *map(str, directories)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        timeout=120 + 2 * RUNS,
        check=True,
    )
    found = json.loads(run.stdout)
    assert not found["wrong"], (seed, found["wrong"])
    assert least * RUNS < found["served"] < RUNS * 9 / 10, "all or none of it was harmless"
    assert found["bytes"] < 200 << 20


@pytest.mark.parametrize("name", PLAIN)
def test_a_pipe_is_not_waited_for(
    name: str, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (demo / name).unlink(missing_ok=True)
    os.mkfifo(demo / name)
    assert "no plain file" in refusal(demo, capsys)


@pytest.mark.parametrize("name", PLAIN)
def test_a_device_without_end_is_not_read(
    name: str, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (demo / name).unlink(missing_ok=True)
    (demo / name).symlink_to("/dev/zero")
    assert "no plain file" in refusal(demo, capsys)


def test_a_chat_template_that_is_no_plain_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "template")
    flags = ("--chat-template", str(tmp_path / "template"))
    assert "chat_template cannot be read" in refusal(DEMO, capsys, *flags)


@pytest.mark.parametrize("name", JSON_FILES)
def test_what_is_too_large_or_too_deep_is_not_read(
    name: str, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (demo / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    line = refusal(demo, capsys)
    assert "nested too deeply" in line or "is not a tokenizer" in line
    with (demo / name).open("wb") as file:
        file.truncate(1 << 40)  # takes no space
    assert "bytes" in refusal(demo, capsys)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, but the checkpoint"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be at most"),
        ({"vocab_size": 10**9}, "has shape"),
        ({"hidden_size": 2**30}, "has shape"),
        ({"intermediate_size": 2**30}, "has shape"),
        ({"head_dim": 2**30}, "must be of at most 4,194,304 numbers in all"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings must be at most"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be finite"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be at least 0, but is -1.0"),
    ],
    ids=str,
)
def test_sizes_are_those_of_the_checkpoint(
    fields: dict[str, Any], message: str, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert message in refusal(change(demo, **fields), capsys)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_layer": 10**9}, "n_layer is 1,000,000,000"),
        ({"n_embd": 2**16}, "parameters, but the checkpoint holds"),
        ({"vocab_size": 10**9}, "parameters, but the checkpoint holds"),
        ({"n_positions": 2**30}, "parameters, but the checkpoint holds"),
    ],
    ids=str,
)
def test_sizes_of_architectures_that_transformers_has(
    fields: dict[str, Any], message: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(model_dir("gpt2"), tmp_path / "gpt2"))
    with pytest.raises(ModelError, match=message):
        load_model(change(copy, **fields))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "factor": 8.0, "beta_fast": 0.0},
        {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1.0},
        {"rope_type": "yarn", "factor": 8.0, "beta_slow": -1.0},
        {"rope_type": "linear", "factor": 1e308},
        {"rope_type": "default", "rope_theta": -1.0},
        {"rope_type": "default", "partial_rotary_factor": 1e308},
    ],
    ids=str,
)
def test_rotations_that_cannot_be_made(
    rope: dict[str, Any], demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = change(demo, rope_parameters={"rope_theta": 10_000.0, **rope})
    if rope["rope_type"] == "linear":  # so slow that all positions are alike
        assert LLM(changed, kv_cache_memory_bytes="1MiB").capacity.max_model_len
    else:
        assert "config.json: rope_parameters" in refusal(changed, capsys)


def test_a_very_long_context_is_cut_to_the_pool(demo: Path) -> None:
    llm = LLM(change(demo, max_position_embeddings=2**31 - 1), kv_cache_memory_bytes="1MiB")
    assert llm.capacity.max_model_len == 512


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../x.safetensors"])
def test_an_index_stays_in_its_directory(
    name: str, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (demo / "model.safetensors").rename(demo.parent / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (demo / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "no .safetensors file beside it" in refusal(demo, capsys)


def test_links_as_in_the_cache_of_hugging_face_are_followed(demo: Path) -> None:
    snapshot = demo.parent / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(demo.iterdir()):
        blob = demo.parent / "blobs" / str(number)
        blob.parent.mkdir(exist_ok=True)
        file.rename(blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert LLM(snapshot, kv_cache_memory_bytes="1MiB").capacity.weight_bytes


def test_a_header_larger_than_its_file(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (demo / "model.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")
    assert "not a whole safetensors file" in refusal(demo, capsys)


def test_a_file_with_holes_that_is_larger_than_any_memory(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told by its header alone: nothing of it is read or mapped."""
    size = 1 << 43
    header = json.dumps({"t": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}})
    with (demo / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(8 + len(header) + size)
    assert "the checkpoint has only 1 tensors" in refusal(demo, capsys)


def test_weights_beyond_the_free_memory_are_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch, model_dir: ModelDir, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_runtime, "free_memory", lambda: 100_000)
    monkeypatch.setattr("quire.models.weights.Weights.read", None)
    for directory in (DEMO, model_dir("gpt2")):
        line = refusal(directory, capsys)
        assert "bytes of memory, but only 100,000 are free" in line
        assert "quire doctor says what this machine has" in line


def test_rounded_weights_need_less(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LLM(kv_cache_memory_bytes="1MiB").capacity.weight_bytes
    monkeypatch.setattr(device_runtime, "free_memory", lambda: whole)
    monkeypatch.setattr("quire.engine.assembly.engine.working_bytes", lambda *_: 0)
    with pytest.raises(ModelError, match="only"):
        LLM(kv_cache_memory_bytes="1MiB")
    LLM(kv_cache_memory_bytes="1MiB", quantization="int8")


def test_memory_that_cannot_be_had_is_one_line() -> None:
    for take in (lambda: bytearray(2**62), lambda: torch.empty(2**60, dtype=torch.uint8)):
        refused = pytest.raises(ConfigError, match="not enough memory for the model")
        with refused, memory_or_refusal():
            take()
    with pytest.raises(RuntimeError, match="another matter"), memory_or_refusal():
        raise RuntimeError("another matter")


@pytest.mark.parametrize("eos", [10**9, -1, 10**30, [2**40, 1]])
def test_an_end_outside_the_vocabulary_fails_no_step(eos: Any, demo: Path) -> None:
    llm = LLM(change(demo, eos_token_id=eos), kv_cache_memory_bytes="1MiB")
    params = SamplingParams(max_tokens=4, min_tokens=3, temperature=0.0)
    (output,) = llm.generate(["the"], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4


def test_tokens_that_only_the_tokenizer_knows_fail_no_step(demo: Path) -> None:
    tokenizer = json.loads((demo / "tokenizer.json").read_text())
    size = json.loads((demo / "config.json").read_text())["vocab_size"]
    kind = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {"id": size, "content": "<|new|>", "special": True, **kind}
    tokenizer["added_tokens"].append(added)
    (demo / "tokenizer.json").write_text(json.dumps(tokenizer))
    llm = LLM(demo, kv_cache_memory_bytes="1MiB")
    params = SamplingParams(max_tokens=4, bad_words=["<|new|>"], ignore_eos=True)
    assert len(llm.generate(["the"], params, use_tqdm=False)[0].outputs[0].token_ids) == 4
    with pytest.raises(RequestError, match="outside the vocabulary"):
        llm.generate(["the<|new|>"], params, use_tqdm=False)
    with (
        llm.open_session() as session,
        pytest.raises(RequestError, match="outside the vocabulary"),
    ):
        session.append("the<|new|>")
