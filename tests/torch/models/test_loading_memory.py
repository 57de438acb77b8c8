"""What loading takes besides what it leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
import transformers

from quire.kernels.heap import give_memory_back, keep_what_steps_take
from quire.models import experts
from quire.models.loader import load_model
from support.small_models import save_model


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.skipif(sys.platform != "linux", reason="others give memory back by themselves")
def test_what_experts_took_while_they_were_rounded_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales lie in between, so glibc can neither use it for the next expert nor return it."""
    shape = {"hidden_size": 512, "moe_intermediate_size": 256, "num_experts": 24, "vocab_size": 512}
    few = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Qwen3MoeConfig(**shape, **few, num_experts_per_tok=2, head_dim=32)
    directory = save_model(config, tmp_path / "model")
    keep_what_steps_take()  # as engines do first
    given_back: list[int] = []

    def noting() -> None:
        before = resident()
        give_memory_back()
        given_back.append(before - resident())

    monkeypatch.setattr(experts, "give_memory_back", noting)
    give_memory_back()
    model = load_model(directory, "bfloat16", quantization="int8")
    assert len(given_back) == 2, "of each layer, or the next one's come on top of it"
    assert min(given_back) > 1 << 20
    left = resident()
    give_memory_back()
    assert left - resident() < 2 << 20
    assert model.weight_bytes > 2 * 24 * 3 * 512 * 256


@pytest.mark.skipif(sys.platform != "linux", reason="others give memory back by themselves")
def test_what_rounding_took_is_given_back_before_the_pool_is_measured(tmp_path: Path) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 1408, "vocab_size": 4096}
    few = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    directory = save_model(transformers.LlamaConfig(**shape, **few), tmp_path / "model")
    keep_what_steps_take()
    give_memory_back()
    model = load_model(directory, "bfloat16", quantization="int8")
    left = resident()
    give_memory_back()
    assert left - resident() < 1 << 20
    assert model.weight_bytes > 4 * 512 * 1408 * 3
