"""What rounding costs, measured on the demonstration model and on tables with known answers."""

from __future__ import annotations

import json
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.errors import ConfigError, ModelError
from quire.engine.capacity import known_loss
from quire.engine.llm import LLM
from quire.models.demo import DEMO_MODEL
from quire.text.params import SamplingParams
from quire.tools.cli import main
from quire_lab.evaluation import Evaluator, Judging, ModelForm, Reference
from quire_lab.evaluation.distributions import next_token_logits
from support.small_encoders import make_encoder

TEXT = "The list is sorted in place, and the method returns None. " * 12
# Of which forms are timed, in texts, tokens before and tokens written.
SHORT = (2, 8, 4)
OPTIONS = {"model": None, "max_num_seqs": 8, "kv_cache_memory_bytes": "16MiB", "threads": 1}


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_lab.evaluation.evaluate._TIMED", SHORT)


def evaluated(*forms: ModelForm, questions: int = 0) -> list[tuple[ModelForm, str]]:
    found = Evaluator(OPTIONS, Judging(TEXT, 64, 120, questions), lambda _: None).run(forms)
    return [(row.form, row.refusal) for row in found.rows]


def test_measures_are_those_of_their_definitions() -> None:
    """Against float64, row by row."""
    torch.manual_seed(0)
    rows = [[3, 1, 4, 1, 5], [2, 6]]
    own, form = torch.randn(5, 9), torch.randn(5, 9)
    own[:, 8] = form[:, 8] = -math.inf  # a token that the model excludes
    reference = Reference(rows)
    reference.keep([own[:3], own[3:]])
    loss = reference.compare([form[:1], form[1:]])
    reference.close()
    p, q = (np.exp(one[:, :8].double().log_softmax(-1).numpy()) for one in (own, form))
    divergences = (p * np.log(p / q)).sum(1)
    next_ones = [1, 4, 1, 5, 6]
    assert loss.predictions == 5
    assert loss.divergence == pytest.approx(divergences.mean(), rel=1e-5)
    assert loss.most_divergence == pytest.approx(divergences.max(), rel=1e-5)
    assert loss.divergence <= loss.divergence_999 <= loss.most_divergence
    expected = math.exp(-np.log([q[i, token] for i, token in enumerate(next_ones)]).mean())
    assert loss.perplexity == pytest.approx(expected, rel=1e-5)
    assert loss.same_token == (p.argmax(1) == q.argmax(1)).mean()


def test_a_form_that_excludes_what_the_model_says_is_infinitely_far_off() -> None:
    own, form = torch.zeros(1, 4), torch.tensor([[0.0, 0.0, 0.0, -math.inf]])
    reference = Reference([[0, 1]])
    reference.keep([own])
    assert reference.compare([form]).divergence == math.inf
    reference.close()


def test_logits_are_those_that_serving_sees() -> None:
    """In steps of their own, with earlier keys in blocks."""
    llm = LLM(**{**OPTIONS, "model": None})
    ids = llm.engine.input_processor.tokenizer.encode(TEXT)[:150]
    mine = torch.cat(list(next_token_logits(llm, ids[:-1]))).log_softmax(-1)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    for row, token, table in zip(mine, ids[1:], output.prompt_logprobs[1:], strict=True):
        assert table is not None and abs(float(row[token]) - table[token].logprob) < 1e-5
    llm.close()


def test_a_server_tells_what_its_form_was_found_to_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these files in this form, and of no other."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = {**OPTIONS, "model": str(DEMO_MODEL)}
    plan, form = Judging(TEXT, 64, 120, 0), ModelForm(quantization="int4")
    row = Evaluator(options, plan, lambda _: None).run([form]).rows[1]
    assert row.loss is not None
    told = f"perplexity {row.loss.more_perplexity:+.1%}, the same likeliest token in "

    def says(**more: Any) -> str:
        with LLM(**{**options, **more}) as llm:
            return llm.capacity.describe()

    assert f"{told}{row.loss.same_token:.1%} of {row.loss.predictions}" in says(quantization="int4")
    assert "likeliest" not in says(quantization="int8")
    (file,) = (tmp_path / "cache").rglob("*.json")
    assert known_loss(file.stem) is not None
    for damaged in ("", "[]", '{"predictions": "x"}', "[" * 10**5):
        file.write_text(damaged)
        assert known_loss(file.stem) is None


def test_a_text_that_the_pool_does_not_hold_is_refused() -> None:
    llm = LLM(kv_cache_memory_bytes="128KiB", max_model_len=32, threads=1)
    with pytest.raises(ConfigError, match="200 tokens need 13 blocks, and the pool has"):
        list(next_token_logits(llm, [1] * 200))
    llm.close()


def test_what_keeps_no_keys_is_refused(tmp_path: Path) -> None:
    llm = LLM(make_encoder("Bert", tmp_path), threads=1)
    with pytest.raises(ConfigError, match="needs a model that writes text"):
        list(next_token_logits(llm, [1, 2]))
    llm.close()


def test_the_own_form_loses_least_and_four_bits_most() -> None:
    forms = (ModelForm(), ModelForm(quantization="int8"), ModelForm(quantization="int4"))
    found = Evaluator(OPTIONS, Judging(TEXT, 64, 120, 0), lambda _: None).run(forms)
    losses = [row.loss for row in found.rows]
    assert None not in losses
    divergences = [loss.divergence for loss in losses if loss]
    assert divergences[0] == 0 and divergences == sorted(divergences) and divergences[-1] > 1e-3
    weights = [row.weight_bytes for row in found.rows]
    assert weights == sorted(weights, reverse=True)
    assert all(row.tokens_per_second > 0 for row in found.rows)


def test_no_form_is_in_memory_beside_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float32 does not fit either, and where a form is refused after it was loaded."""
    living = weakref.WeakSet[LLM]()
    refused = ["float32", "bfloat16"]

    class Watched(LLM):
        def __init__(self, *given: Any, **options: Any) -> None:
            assert not living
            super().__init__(*given, **options)
            living.add(self)
            if options["dtype"] in refused:
                raise ModelError("it is too large")

    monkeypatch.setattr("quire_lab.evaluation.evaluate.LLM", Watched)
    forms = (ModelForm("bfloat16"), ModelForm(quantization="int8"))
    found = Evaluator(OPTIONS, Judging(TEXT, 64, 20, 0), lambda _: None).run(forms)
    assert [row.form.name for row in found.rows] == ["own", "bfloat16", "int8"]
    assert [row.refusal for row in found.rows] == ["", "it is too large", ""]


def test_a_form_that_cannot_be_had_is_a_row_that_says_why() -> None:
    (_, first), (form, refusal) = evaluated(ModelForm(kv_cache_dtype="fp8"))
    assert not first and form.name == "own/fp8" and "needs a GPU" in refusal


def test_the_command_says_the_same_to_people_and_programs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    picture = tmp_path / "forms.svg"
    command = ["evaluate", "--forms", "int8,own/fp8", "--text", str(text), "--predictions", "60",
               "--questions", "1", "--kv-cache-memory-bytes", "16MiB"]  # fmt: skip
    assert main([*command, "--json", "--picture", str(picture)]) == 0
    values = json.loads(capsys.readouterr().out)
    own, int8, refused = values["forms"]
    assert own["divergence"] == 0 and own["same_token"] == 1 and own["form"] == "float32/float32"
    assert int8["flags"] == "--quantization int8" and 0 < int8["divergence"] < 0.1
    assert set(int8["tasks"]) == {"copy", "sort", "arithmetic", "JSON"}, "too short for needles"
    assert refused == {"form": "own/fp8", "flags": "--kv-cache-dtype fp8",
                       "refusal": refused["refusal"]}  # fmt: skip
    assert values["advice"].startswith(("Take int8", "No form"))
    assert picture.read_text().startswith("<?xml")
    command[2] = "own/fp8"
    assert main([*command[:-3], "0", *command[-2:]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("quire-demo: 60 predictions") and "same token" in lines[1]
    assert lines[-2].startswith("  own/fp8 cannot be had: ")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--forms", "w9a9"], "forms: 'w9a9' is none"),
        (["--forms", "int8/int3"], "its KV cache must be one of"),
        (["--quantization", "int8"], "quantization is what forms replace"),
        (["--predictions", "0"], "predictions must be at least 1, got 0"),
        (["--text", "nowhere"], "text: "),
        (["--picture", "a.gif"], "must end with .png or .svg"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert main(["evaluate", *flags]) != 0
    assert words in capsys.readouterr().err
