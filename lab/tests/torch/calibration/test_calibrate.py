from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire_lab.calibration.calibrate import calibrate, coarse_first, undisturbed
from quire_lab.calibration.fit import fit, non_negative_least_squares
from quire_lab.calibration.grid import serve
from quire_lab.calibration.stages import Stages
from quire_lab.calibration.steps import TimedStep
from quire_lab.simulation import Work
from quire_lab.simulation.calibrated import CalibratedCosts, Calibration, read_calibration

TRUE = CalibratedCosts(
    knots=(1, 8, 64, 512),
    token_seconds=(3e-3, 4e-3, 8e-3, 40e-3),
    per_seq=2e-5,
    context_knots=(0, 8192),
    per_context=(1e-7, 4e-7),
    per_prefill_pair=1e-7,
    per_draft=1e-5,
    per_draft_pair=3e-8,
    per_wake=2e-3,
    per_woken_token=1e-5,
    per_copied_block=1e-5,
    per_swapped_block=2e-5,
)


def works(random: Random, count: int) -> list[Work]:
    found = []
    while len(found) < count:
        seqs, tokens = random.choice([0, 1, 3, 8, 20, 64]), random.choice([0, 8, 30, 64, 200, 448])
        context, woken = seqs * random.randrange(1, 500), random.random() < 0.1
        if seqs + tokens:
            drafts = seqs * random.choice([0, 0, 1, 4, 16])
            work = Work(
                tokens, tokens * tokens, tokens, seqs, context, seqs + drafts, woken=int(woken),
                draft_tokens=drafts, draft_pairs=context * drafts / max(1, seqs),
            )  # fmt: skip
            found.append(work)
    return found


def test_a_fit_finds_the_costs_that_made_the_times() -> None:
    measured = works(Random(0), 500)
    costs = fit([TimedStep(work, TRUE.seconds(work)) for work in measured])
    for work in measured:
        assert costs.seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.02)


def test_a_fit_gives_the_mean_time_though_some_steps_were_held_up() -> None:
    random = Random(1)
    measured = works(random, 4000)
    # Noise of 10 % in the mean, and one step in a hundred that takes ten times as long.
    steps = [
        TimedStep(
            work,
            TRUE.seconds(work)
            * (10.0 if random.random() < 0.01 else 1.0 + random.choice([0.0, 0.0, 0.0, 0.4])),
        )
        for work in measured
    ]
    costs = fit(steps)
    ratio = sum(map(costs.seconds, measured)) / sum(map(TRUE.seconds, measured))
    assert ratio == pytest.approx(1.1, abs=0.02)


def test_runs_that_others_slowed_down_are_left_out() -> None:
    quick, noisy, usual = ([TimedStep(Work(1), seconds)] for seconds in (1.0, 2.0, 1.1))
    assert undisturbed([quick, noisy, usual]) == [*quick, *usual]


def test_least_squares_keep_to_what_is_not_negative() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    free = non_negative_least_squares(matrix, np.array([3.0, 5.0, 7.0]))
    assert free == pytest.approx([1.0, 2.0], rel=1e-6)
    bound = non_negative_least_squares(matrix, np.array([3.0, 2.0, 1.0]))  # wants a slope of -1
    assert bound == pytest.approx([2.0, 0.0], abs=1e-9)


@pytest.mark.parametrize(("kv_dtype", "kv_bytes"), [("auto", 2048), ("int8", 1088)])
def test_a_calibration_of_the_demo_model_is_written_and_read(
    kv_dtype: str, kv_bytes: int, tmp_path: Path
) -> None:
    limits = {"max_model_len": 80, "max_num_seqs": 2, "kv_cache_memory_bytes": "1MiB"}
    drafted = {"speculative_config": {"method": "draft"}} if kv_dtype == "int8" else {}
    config = EngineConfig.create({"kv_cache_dtype": kv_dtype, **limits, **drafted})
    seen: list[str] = []
    calibration = calibrate(config, lambda text, share: seen.append(text))
    users = [line.partition(": ")[2] for line in seen if line.startswith("pass 1, ")]
    users = users[: len(users) // 2] if drafted else users
    assert users[:3] == [
        "one user, prompts of about 8 tokens",
        "2 users, prompts of about 8 tokens",
        "a user who pauses, prompts of about 8 tokens",
    ]
    if drafted:
        assert seen[4 * len(users)] == "passes of quire-demo's draft"
        assert calibration.draft is not None
        passes = calibration.draft.costs.token_seconds
        assert 0 < passes[0] < calibration.costs.token_seconds[0]
        assert calibration.draft.model.kv_bytes_per_token == 2 * 2 * (32 + 4)
        shape = replace(calibration.draft.model, name="as I call it")
        assert calibration.draft_costs(shape) == calibration.draft.costs
        with pytest.raises(ConfigError, match="do not tell what passes of a take, but only those"):
            calibration.draft_costs(replace(shape, name="a", num_layers=3))
    else:
        assert calibration.draft is None and len(seen) == 4 * len(users)
    assert calibration.model.name == "quire-demo"
    assert calibration.model.kv_bytes_per_token == kv_bytes
    assert calibration.pool_bytes == 2**20 // (16 * kv_bytes) * 16 * kv_bytes
    costs = calibration.costs
    assert min(costs.token_seconds) > 0
    assert costs.per_copied_block > 0 and costs.per_swapped_block == 0.0
    calibration.write(tmp_path / "costs.json")
    assert read_calibration(tmp_path / "costs.json") == calibration


SMALL = {"max_model_len": 400, "max_num_seqs": 2, "kv_cache_memory_bytes": "1MiB"}


class Stopped(Exception):
    """Somebody has had enough."""


def test_what_was_measured_is_taken_up_again(tmp_path: Path) -> None:
    config = EngineConfig.create({**SMALL, "max_model_len": 80})
    path = tmp_path / "costs.json.part"
    seen: list[str] = []

    def stop(text: str, share: float) -> None:
        seen.append(text)
        if text.startswith("pass 1, 6 of"):
            raise Stopped

    with pytest.raises(Stopped):
        calibrate(config, stop, path=path)
    known = path.read_text().splitlines()
    assert len(known) == 1 + 5
    path.write_text("\n".join(known) + '\n["model", 1, "cut')  # while a line was written
    calls: list[tuple[str, float]] = []
    served: list[str] = []

    def serve_noted(watched: Any, scenario: Any, random: Any) -> Any:
        served.append(str(scenario))
        return serve(watched, scenario, random)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quire_lab.calibration.calibrate.serve", serve_noted)
        calibrate(config, lambda *told: calls.append(told), path=path)
    assert [text for text, _ in calls if text.endswith(", kept")] == [
        f"{text}, kept" for text in seen[:5]
    ]
    count = len(calls) // 4
    assert len(served) == 1 + 4 * count - 5  # and one to warm up
    shares = [share for _, share in calls]
    assert shares[0] == 0 and shares == sorted(shares) and shares[-1] < 1
    assert not path.exists()


def test_what_another_calibration_has_left_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "part"
    run = [TimedStep(Work(1), 0.5)]
    stages = Stages(path, {"config": 1})
    stages.keep("model", 1, "a", run)
    stages.keep("model", 2, "a", run)
    again = Stages(path, {"config": 1})
    assert len(again) == 2 and again.get("model", 2, "a") == run
    assert again.get("draft", 1, "a") is None
    other = Stages(path, {"config": 2})
    assert len(other) == 0
    other.keep("model", 1, "b", run)
    assert len(Stages(path, {"config": 2})) == 1 and not len(Stages(path, {"config": 1}))


def test_a_time_limit_ends_it_with_what_spans_the_grid() -> None:
    config = EngineConfig.create({**SMALL, "max_num_seqs": 4})
    seen: list[str] = []
    found = calibrate(config, lambda text, share: seen.append(text), limit=1e-3)
    assert len(seen) == 12 and all(text.startswith("pass 1, ") for text in seen)
    assert found.measured.startswith("steps of this engine, 12 of ")
    lengths = {text.rpartition("about ")[2].partition(" ")[0] for text in seen}
    assert {"8", "24", "64", "160"} <= lengths
    assert coarse_first(6) == [0, 4, 2, 1, 5, 3]


def test_too_little_to_measure_is_refused() -> None:
    config = EngineConfig.create({"max_model_len": 16, "kv_cache_memory_bytes": "1MiB"})
    with pytest.raises(ConfigError, match="too small to calibrate"):
        calibrate(replace(config, max_num_seqs=1), lambda *_: None)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"quire_costs": 9}, "was not written by quire calibrate"), ({"costs": {}}, "not a calib"),
     ({"colour": 1}, "not a calibration")],
)  # fmt: skip
def test_files_that_are_no_calibration(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    shape = calibration_of().model
    path = tmp_path / "costs.json"
    calibration_of().write(path)
    assert read_calibration(path).model == shape
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
        read_calibration(path)


def calibration_of() -> Calibration:
    from quire_lab.simulation import MODELS

    return Calibration(MODELS["opt-125m"], "here", 16, 2**20, TRUE, 0.01, 0.02)
