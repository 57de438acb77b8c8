"""What is seen of a model while it reads a text: what its keys have in common, and inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quire.engine.assembly.centring import describe_rounding, with_centred_keys
from quire.engine.config import EngineConfig
from quire.kernels.dispatch import choose_kernels
from quire.kernels.ops import CENTRED_TOGETHER, Centring, Kernels
from quire.kernels.rounded_cache import FINE, spread
from quire.models.centring import centre_keys, centring_of, centrings, shares_of
from quire.models.decoder import DecoderModel
from quire.models.demo import DEMO_MODEL
from quire.models.loader import load_model
from quire.models.observing import read_tokens
from quire.models.rope import Rope
from quire.text.tokenizer import load_tokenizer
from support.hf_reference import random_prompts
from support.paged_harness import PagedHarness
from support.small_models import make_model


def loaded() -> DecoderModel:
    model = load_model(Path(DEMO_MODEL), "float32")
    assert isinstance(model, DecoderModel)
    return model


def seen(model: DecoderModel, token_ids: list[int]) -> list[Centring]:
    found = centrings(centre_keys(model, token_ids))
    assert len(found) == len(model.kv_shapes)
    return found


def test_centres_are_what_keys_have_in_common_and_the_first_key() -> None:
    model, ids = loaded(), list(range(40, 240))
    found = seen(model, ids)
    keys = []

    class Watching:
        def __init__(self, kernels: Kernels) -> None:
            self.kernels = kernels

        def __getattr__(self, name: str) -> object:
            return getattr(self.kernels, name)

        def fuse(self, *_: object) -> None: ...

        def attend(self, *given: object) -> object:
            keys.append(given[1].double().clone())  # type: ignore[attr-defined]
            return self.kernels.attend(*given)  # type: ignore[arg-type]

    kernels = Watching(choose_kernels(torch.float32))
    read_tokens(model, torch.tensor(ids), kernels)  # type: ignore[arg-type]
    for own, key in zip(found, keys, strict=True):
        assert own.cos is not None
        assert len(own.cos) * CENTRED_TOGETHER >= model.max_positions
        for centre, expected in ((own.common, key[4:].mean(0)), (own.first, key[0])):
            assert torch.allclose(
                centre.double(), expected, atol=1e-3 * float(expected.abs().max())
            )
        assert torch.allclose(own.factors * own.query_factors, torch.ones(()))


def test_what_counts_most_comes_first_and_is_as_even_as_levels_are() -> None:
    generator = torch.Generator().manual_seed(0)
    key, query = (
        torch.randn(400, heads, 64, generator=generator, dtype=torch.float64)
        * torch.logspace(0, end, 64)
        for heads, end in ((2, 0), (6, -0.6))
    )
    own = centring_of(query, key, None, None)
    sizes = (key - own.common).square().mean(0), query.square().mean(0).view(2, 3, 64).mean(1)
    counts = (sizes[0] * sizes[1]).gather(1, own.order.long())
    assert counts[:, :FINE].min() > 0.5 * counts[:, FINE:].max()
    assert counts[:, :FINE].mean() > 3 * counts[:, FINE:].mean()
    even = (sizes[0] * own.factors.square()).gather(1, own.order.long())
    ratio = even[:, :FINE].mean(1) / even[:, FINE:].mean(1)
    assert torch.allclose(ratio, torch.tensor((38.0 / 46) ** 2).double(), rtol=0.1)


def test_shares_leave_least_of_scores_lost() -> None:
    """Rounding to whole numbers, whose loss in all directions is known."""
    energy = torch.logspace(0, -3, 32, dtype=torch.float64).expand(1, -1)
    shares = shares_of(energy, 32)[0]
    generator = torch.Generator().manual_seed(0)
    x = 20 * torch.randn(500, 32, generator=generator, dtype=torch.float64)
    left, found = x.clone(), torch.empty_like(x)
    for number in reversed(range(32)):
        found[:, number] = left[:, number].round()
        left += (left[:, number] - found[:, number])[:, None] * shares[number]
    alone, together = (
        float((spread(y - x).square() * energy).sum(1).mean()) for y in (x.round(), found)
    )
    assert abs(alone / float(energy.sum() / 12) - 1) < 0.1
    assert together < 0.45 * alone


def test_a_text_is_read_as_far_as_there_are_learned_positions(tmp_path: Path) -> None:
    model = load_model(make_model("opt", tmp_path), "float32")
    assert isinstance(model, DecoderModel)
    whole, cut = seen(model, [*range(299)]), seen(model, [*range(model.max_positions)])
    assert all(map(torch.equal, whole[-1][:4], cut[-1][:4]))


def test_how_long_texts_may_be_does_not_change_what_weights_become(tmp_path: Path) -> None:
    directory, texts = make_model("llama", tmp_path), random_prompts(30)
    found = [
        PagedHarness(load_model(directory, quantization="int4", max_model_len=length)).prefill(
            texts, 64
        )[0]
        for length in (None, 40)
    ]
    assert torch.equal(*found)


def test_they_do_not_depend_on_threads() -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(seen(loaded(), list(range(300))))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    "change",
    [{"reach": 9}, {"frequencies": lambda length: length[:, None].float()}],
    ids=["sinks", "by length"],
)
def test_where_rotation_is_no_matter_of_positions_alone_there_are_none(
    change: dict[str, object],
) -> None:
    model = loaded()
    ropes: tuple[Rope, ...] = tuple(replace(rope, **change) for rope in model.decoder.ropes)
    model = DecoderModel(replace(model.decoder, ropes=ropes), 64, (), 0)
    assert centrings(centre_keys(model, list(range(50)))) == []


def test_a_cache_of_4_bits_is_centred_and_blocks_say_about_what() -> None:
    model, tokenizer = loaded(), load_tokenizer(Path(DEMO_MODEL))
    four, auto = EngineConfig(kv_cache_dtype="int4"), EngineConfig()
    assert with_centred_keys(auto, model, tokenizer, "") is model
    centred = with_centred_keys(four, model, tokenizer, "")
    other = centre_keys(model, list(range(100)))
    said = {describe_rounding(one, torch.int4) for one in (model, centred, other)}
    assert len(said) == 3
    assert "spread" in said
    assert describe_rounding(centred, torch.int8) == "spread"
