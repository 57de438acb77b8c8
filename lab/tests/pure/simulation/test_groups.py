"""Tensor-parallel groups, and weights that are rounded: bytes and seconds by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.errors import ConfigError
from quire.models.shape import LatentShape, ModelShape
from quire.tools.cli import main
from quire_lab.simulation import MACHINES, MODELS, Deployment, Roofline, Work

LLAMA, H100 = MODELS["llama-3-8b"], MACHINES["h100"]
US = 1e-6


def test_heads_that_are_too_few_are_kept_by_several_machines() -> None:
    """Sixteen machines keep eight heads twice: all have room for half of what they hold together,
    and every one of them reads its own copy."""
    eight, sixteen = (Deployment(LLAMA, H100, count) for count in (8, 16))
    assert (eight.copies, sixteen.copies) == (1, 2)
    keys_and_values = 32 * 2 * 4096 * 8 * 128 * 2  # projections, which there are twice
    assert LLAMA.weight_bytes_over(16) - LLAMA.weight_bytes == keys_and_values
    total = 16 * int(H100.memory * 0.9)
    left = total - LLAMA.weight_bytes_over(16) - 16 * sixteen.working_bytes
    assert sixteen.kv_bytes == left // 2
    work = Work(decode_seqs=1, decode_context=10**6)
    cache = []
    for count in (8, 16):
        _, seconds = Roofline(LLAMA, H100, count, 16).parts(work)
        cache.append(seconds - LLAMA.weight_bytes_read(1) / (count * H100.bandwidth * 0.8))
    assert cache[1] == pytest.approx(cache[0])


def test_small_blocks_are_read_as_slowly_as_a_machine_says() -> None:
    work = Work(decode_seqs=1, decode_context=10**6, prefill_context=10**6, prefill_tokens=50)
    traffic = {}
    for tokens, size in ((0.0, 1), (4.0, 1), (4.0, 16), (4.0, 64)):
        machine = replace(H100, block_tokens=tokens)
        _, seconds = Roofline(LLAMA, machine, 1, size).parts(work)
        traffic[tokens, size] = seconds * H100.bandwidth * 0.8 - LLAMA.weight_bytes_read(51)
    kv = LLAMA.kv_bytes_per_token
    # Writing is not slower.
    expected = [(2e6 * slower + 51) * kv for slower in (1, 5, 1.25, 1.0625)]
    assert list(traffic.values()) == pytest.approx(expected)


def test_latents_are_kept_by_every_machine() -> None:
    model = replace(LLAMA, latent=LatentShape(512, 1536, 128, 64, 128))
    assert [model.kv_copies(count) for count in (1, 2, 16)] == [1, 2, 16]
    assert model.weight_bytes_over(2) - model.weight_bytes == 32 * 4096 * (512 + 64 + 1536) * 2


@pytest.mark.parametrize(
    ("machine", "count", "seconds"),
    [
        # 1 MiB of each: seven eighths of it twice over NVLink, 450 GB/s one way.
        ("h100", 8, 2 * 2**20 * 7 / 8 / 450e9 + 10 * US),
        # On two nodes as well half of an eighth, twice, over the machine's own 50 GB/s.
        ("h100", 16, 2 * 2**20 * 7 / 8 / 450e9 + 10 * US + 2 * 2**17 / 2 / 50e9 + 20 * US),
        ("a100-80", 16, 2 * 2**20 * 7 / 8 / 300e9 + 10 * US + 2 * 2**17 / 2 / 25e9 + 20 * US),
        # No NVLink: 25 GB/s of PCIe.
        ("l4", 4, 2 * 2**20 * 3 / 4 / 25e9 + 10 * US),
        # 72 in one node.
        ("gb200", 32, 2 * 2**20 * 31 / 32 / 900e9 + 10 * US),
    ],
)
def test_sums_go_over_the_links_that_there_are(machine: str, count: int, seconds: float) -> None:
    roofline = Roofline(LLAMA, MACHINES[machine], count, 16)
    assert roofline.all_reduce(2**20, roofline.tensor_parallel) == pytest.approx(seconds, rel=1e-12)


def test_nodes_are_whole() -> None:
    shape = replace(LLAMA, num_heads=48, num_kv_heads=12)
    with pytest.raises(ConfigError, match=r"above 8, the h100 of a node, must be a multiple"):
        Deployment(shape, H100, 12)
    assert Deployment(shape, MACHINES["gb200"], 12).slots > 0


def rounded(name: str) -> ModelShape:
    return LLAMA.rounded(name)


_QUERIES, _KEYS, _INNER = 32 * 4096 * 4096, 32 * 4096 * 1024, 32 * 4096 * 14336
_ATTENTION, _MLP = 2 * (_QUERIES + _KEYS), 3 * _INNER
_HEAD = 128256 * 4096
_NORMS = 32 * 2 * 4096
_BYTE = 1 + 2 / 64  # of 8 bits, with a scale of 2 bytes for 64 of them
# 4 bits for most, 5 for keys and down, 6 for values and the head; a scale for 32 weights.
_IN_4_BITS = (
    (2 * _QUERIES + 2 * _INNER + _HEAD) * 18 / 32
    + (_KEYS + _INNER) * 22 / 32
    + (_KEYS + _HEAD) * 26 / 32
    + 2 * _NORMS
)


@pytest.mark.parametrize(
    ("name", "weight_bytes"),
    [
        ("int8", (_ATTENTION + _MLP + _HEAD) * _BYTE + 2 * (_HEAD + _NORMS)),
        ("w8a8", (_ATTENTION + _MLP + _HEAD) * _BYTE + 2 * (_HEAD + _NORMS)),
        ("int4", _IN_4_BITS),
        ("w4a8", _IN_4_BITS),
        ("fp8", _ATTENTION + _MLP + 2 * (2 * _HEAD + _NORMS)),
    ],
)
def test_rounded_weights_take_and_are_read_in_their_bytes(name: str, weight_bytes: float) -> None:
    assert rounded(name).weight_bytes == round(weight_bytes)
    plain, small = (Roofline(one, H100, 1, 16) for one in (LLAMA, rounded(name)))
    decode, prefill = Work(decode_seqs=1, samples=1), Work(prefill_tokens=4096)
    assert small.parts(decode)[1] < 0.62 * plain.parts(decode)[1]
    twice = 2 if name in ("w8a8", "w4a8", "fp8") else 1  # products of 8 bits
    assert plain.parts(prefill)[0] / small.parts(prefill)[0] == pytest.approx(twice, rel=1e-3)


def test_no_fp8_units_no_gain_but_in_bytes() -> None:
    plain, small = (Roofline(one, MACHINES["a100-80"], 1, 16) for one in (LLAMA, rounded("fp8")))
    prefill = Work(prefill_tokens=4096)
    assert small.parts(prefill)[0] == plain.parts(prefill)[0]


def test_simulate_is_told_how_weights_are_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--machine", "h100", "--dataset", "alpaca", "--requests", "20"]
    assert main(["simulate", "llama-3-8b", *flags, "--quantization", "int4"]) == 0
    assert "4.595 GiB of weights in int4, " in capsys.readouterr().out
    assert main(["simulate", "llama-3-8b", *flags, "--dtype", "float32"]) == 0
    assert "29.92 GiB of weights in float32, 256 KiB of KV cache a token" in capsys.readouterr().out


def test_an_index_leaves_attention_what_it_chooses() -> None:
    """By hand: 61 layers, 128 heads over latents of 512 beside 64 that are turned; indexes of 64
    heads of 128 score all that is seen.
    """
    model = MODELS["deepseek-v3.2"]
    roofline, pair, score = Roofline(model, H100, 8, 16), 61 * 2 * 128 * (576 + 512), 61 * 64 * 258
    dense = 61 * 2 * 128 * (192 + 128)  # with keys and values of all heads

    def work(**figures: float) -> float:
        plain = model.flops_per_token * figures.get("tokens", 3)
        asked = {name: value for name, value in figures.items() if name != "tokens"}
        seconds, _ = roofline.parts(Work(**asked))  # type: ignore[arg-type]
        return seconds * H100.compute_share * 8 * H100.flops - plain * H100.flops / roofline._peak

    for context, attended in ((1_000, 1_000), (2_048, 2_048), (100_000, 2_048)):
        found = work(decode_seqs=3, decode_context=3 * context)
        assert found == pytest.approx(3 * (attended * pair + context * score))
        drafts = work(tokens=5, draft_tokens=5, draft_pairs=5 * context)
        assert drafts == pytest.approx(5 * (attended * pair + context * score))
        shape = Work(decode_seqs=3, decode_context=3 * context)
        more = roofline.parts(shape)[1] - roofline.parts(shape._replace(decode_context=0))[1]
        read = attended * 61 * 576 * 2 + context * 61 * 128 * 2
        shared = 8 * H100.bandwidth * H100.bandwidth_share
        found_at = 1 + H100.block_tokens / 16
        assert more * shared == pytest.approx(3 * read * 8 * found_at)
    for count, each in ((1_000, dense), (100_000, None)):
        pairs = count * (count + 1) / 2
        found = work(tokens=count, prefill_tokens=count, prefill_pairs=pairs, prefill_context=count)
        own = pairs * dense if each else count * 2_048 * pair
        assert found == pytest.approx(own + pairs * score, rel=1e-6)
