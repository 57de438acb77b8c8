"""Ranks that hold a part of a model each compute together what one computes alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.capabilities.adapters.checkpoint import check_adapter
from quire.core.errors import ConfigError
from quire.kernels.ranks import Ranks
from quire.models import loader
from quire.models.adaptable import adaptable
from quire.models.decoder import DecoderModel, Vocabulary
from quire.models.linear import PlainLinear
from quire.models.loader import load_model
from quire.models.shard import Divided, Shard
from quire.models.streaming import Streaming
from quire.models.weights import Weights
from support import lora
from support.gguf_files import Kind, write_gguf
from support.hf_reference import random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import gptq, is_projection, rewritten
from support.small_models import FAMILIES, GEMMAS, RECORDS
from support.thread_ranks import on_ranks

ModelDir = Callable[[str], Path]
Run = Callable[[Ranks | None], Tensor]

FALLBACK = ("gpt2",)
# Which differ from llama3 in how positions turn, and there is nothing to divide.
TURNED = ("linear", "dynamic", "yarn", "longrope", "qwen2.5", "qwen2_window")
NATIVE = [family for family in (*FAMILIES, *RECORDS) if family not in (*FALLBACK, *TURNED)]
STATES = (
    "qwen3_next",
    "qwen3_5",
    "lfm2",
    "lfm3",
    "granite_hybrid",
    "falcon_h1",
    "mamba2",
    "kimi_linear",
)
# Several heads to a rank.
TWO = (*STATES, *GEMMAS, "llama3", "gpt_neox", "falcon", "olmo2", "qwen2_moe")
CHUNK = 7


def logits(directory: Path, **options: Any) -> Run:
    texts = random_prompts(5, 19)

    def run(ranks: Ranks | None) -> Tensor:
        model = load_model(directory, ranks=ranks, **options)
        return torch.cat(PagedHarness(model).prefill(texts, CHUNK))

    return run


def check(run: Run, size: int) -> None:
    """That ranks give what one does."""
    alone, (first, *others) = run(None), on_ranks(size, run)
    assert (first - alone).abs().max() < 2e-4
    assert torch.equal(first.argmax(1), alone.argmax(1))
    assert all(other.shape == (len(alone), 0) for other in others)


@pytest.mark.parametrize(
    ("family", "size"), [*((name, 4) for name in NATIVE), *((name, 2) for name in TWO)]
)
def test_every_family(family: str, size: int, model_dir: ModelDir) -> None:
    check(logits(model_dir(family)), size)


@pytest.mark.parametrize(
    ("family", "quantization"),
    [("biases", "int8"), ("qwen2_moe", "int4"), ("gptj", "int4"), ("opt-350m", "int8")],
)
def test_weights_that_are_rounded(family: str, quantization: str, model_dir: ModelDir) -> None:
    check(logits(model_dir(family), quantization=quantization), 2)


def test_a_rounded_checkpoint(model_dir: ModelDir, tmp_path: Path) -> None:
    def pack(name: str, tensor: Tensor) -> dict[str, Tensor]:
        if not is_projection(name):
            return {name: tensor}
        return gptq(name.removesuffix(".weight"), tensor, 32, True, 1)

    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    check(logits(rewritten(model_dir("phi3"), tmp_path / "gptq", pack, config)), 4)


def test_gguf(model_dir: ModelDir, tmp_path: Path) -> None:
    write_gguf(model_dir("biases"), tmp_path / "a.gguf", lambda name: Kind.Q8_0)
    check(logits(tmp_path / "a.gguf", dtype="float32"), 4)


@pytest.mark.parametrize(
    ("family", "targets"),
    [("biases", lora.ALL), ("gptj", (*lora.ATTENTION[:3], "out_proj", "fc_in", "fc_out"))],
)
def test_adapters(
    family: str, targets: tuple[str, ...], model_dir: ModelDir, tmp_path: Path
) -> None:
    directory, texts = model_dir(family), random_prompts(5, 19)
    adapter = lora.save_adapter(tmp_path / "adapter", directory, targets=targets)

    def run(ranks: Ranks | None) -> Tensor:
        model = load_model(directory, ranks=ranks)
        assert isinstance(model, DecoderModel)
        updates = check_adapter(adapter, adaptable(model), 8).read().updates
        return torch.cat(PagedHarness(model, updates=updates).prefill(texts, CHUNK))

    check(run, 4)
    assert (run(None) - logits(directory)(None)).abs().max() > 0.1, "the adapter must show"


def test_sinks_and_a_window(model_dir: ModelDir) -> None:
    check(logits(model_dir("qwen3"), streaming=Streaming(6, 2)), 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["olmo2", "qwen2_moe"])
def test_a_row_does_not_depend_on_others(family: str, dtype: str, model_dir: ModelDir) -> None:
    short, long = random_prompts(5, 19)

    def run(ranks: Ranks | None) -> bool:
        model = load_model(model_dir(family), dtype, ranks=ranks)
        both = PagedHarness(model).prefill([short, long], CHUNK)
        alone = [PagedHarness(model).prefill([text], 1)[0] for text in (short, long)]
        return all(map(torch.equal, both, alone))

    assert all(on_ranks(2, run))


def test_states_are_the_same_on_all_ranks(model_dir: ModelDir) -> None:
    def run(ranks: Ranks | None) -> Tensor:
        harness = PagedHarness(load_model(model_dir("gemma2"), ranks=ranks))
        return torch.cat(harness.states(random_prompts(9), CHUNK))

    alone, ranks = run(None), on_ranks(4, run)
    assert (ranks[0] - alone).abs().max() < 1e-4
    assert all(torch.equal(ranks[0], other) for other in ranks[1:])


@pytest.mark.parametrize("family", ["llama", "phi3", "mixtral", "gpt_neox"])
def test_a_rank_reads_and_keeps_its_part_alone(
    family: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Weights] = []
    kept: list[int] = []

    class Noted(Weights):
        def finish(self) -> None:
            opened.append(self)
            super().finish()

    def run(ranks: Ranks | None) -> int:
        return load_model(model_dir(family), ranks=ranks, admit=kept.append).weight_bytes

    monkeypatch.setattr(loader, "Weights", Noted)
    whole, parts = run(None), on_ranks(4, run)
    read = [weights.bytes_read for weights in opened]
    for first, *others in (read, kept, [whole, *parts]):
        assert len(others) == 4
        assert max(others) < 0.34 * first, "a quarter, norms, and keys that two share"
    assert sum(read[1:]) >= read[0]


DIVIDED = Divided(num_heads=12, num_kv_heads=4, vocab_size=300, inner={"intermediate_size": 96})


@pytest.mark.parametrize(
    ("divided", "size", "message"),
    [
        (DIVIDED, 5, r"that many ranks do not divide num_attention_heads \(12\) in x.json; "
                     "allowed: 1, 2, 4, 12$"),
        (DIVIDED, 3, r"neither divide num_key_value_heads \(4\) nor are a multiple of it"),
        (DIVIDED._replace(inner={"ffn_dim": 90}), 4, r"do not divide ffn_dim \(90\).*: 1, 2$"),
        (DIVIDED._replace(vocab_size=3), 4, r"are more than vocab_size \(3\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_named(divided: Divided, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^tensor_parallel_size is {size}, but .*{message}"):
        divided.check(size, "x.json")
    divided.check(2, "x.json")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_ranks_are_for_cpus(family: str, model_dir: ModelDir) -> None:
    device = torch.device("meta")
    with pytest.raises(ConfigError, match="2; allowed on meta: 1"):
        on_ranks(2, lambda ranks: load_model(model_dir(family), ranks=ranks, device=device))


def test_vocabularies_and_heads_are_held_in_order() -> None:
    runs = [[*Shard(rank, 4).run(10)] for rank in range(4)]
    assert runs == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert [[*Shard(rank, 4).kv_heads(2)] for rank in range(4)] == [[0], [0], [1], [1]]
    assert [[*Shard(rank, 2).kv_heads(4)] for rank in range(2)] == [[0, 1], [2, 3]]


def test_a_vocabulary_that_does_not_divide() -> None:
    table, states = torch.randn(10, 6), torch.randn(3, 6)

    def run(ranks: Ranks) -> tuple[Tensor, Tensor]:
        held = Shard(ranks.rank, ranks.size).run(10)
        own = PlainLinear(table[held.start : held.stop])
        vocabulary = Vocabulary(own, own, 10, ranks)
        return vocabulary.rows(torch.arange(10), torch.float32), vocabulary.logits(states)

    for rank, (rows, logits) in enumerate(on_ranks(4, run)):
        assert torch.equal(rows, table)
        expected = states @ table.T if rank == 0 else torch.empty(3, 0)
        torch.testing.assert_close(logits, expected)
