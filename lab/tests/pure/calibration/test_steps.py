"""Step times that somebody else has measured."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from quire.core.errors import ConfigError
from quire.engine.work import Work
from quire.tools.cli import main
from quire_lab.calibration.fit import fit
from quire_lab.calibration.imported import import_steps
from quire_lab.calibration.steps import TimedStep, read_steps
from quire_lab.simulation import MODELS
from quire_lab.simulation.calibrated import CalibratedCosts, read_calibration

TRUE = CalibratedCosts(
    knots=(1, 32, 1024),
    token_seconds=(10e-3, 12e-3, 60e-3),
    per_seq=5e-5,
    context_knots=(0,),
    per_context=(1e-7,),
    per_prefill_pair=2e-9,
    per_draft=0.0,
    per_draft_pair=0.0,
    per_wake=0.0,
    per_woken_token=0.0,
    per_copied_block=0.0,
    per_swapped_block=3e-4,
)


def table(path: Path, *, swapped: bool = False) -> Path:
    """What a step took that TRUE is told of; columns that are left out are as in plain cases."""
    random, lines = Random(1), ["prefill_tokens,decode_seqs,decode_context,seconds"]
    if swapped:
        lines[0] += ",swapped_blocks"
    for _ in range(200):
        prefill = random.choice([0, 0, 32, 200, 700, 1024])
        seqs = random.choice([0, 1, 4, 32, 100]) or int(not prefill)
        context, moved = seqs * random.randrange(1, 3000), random.choice([0, 0, 9]) * swapped
        pairs, samples = prefill * (prefill + 1) / 2, seqs + (prefill > 0)
        work = Work(prefill, pairs, prefill, seqs, context, samples, 0, moved)
        row = [prefill or "", seqs, context, TRUE.seconds(work), *[moved] * swapped]
        lines.append(",".join(map(str, row)))
    path.write_text("\n".join(lines))
    return path


def test_costs_are_found_in_a_table_of_steps(tmp_path: Path) -> None:
    found = import_steps(table(tmp_path / "t.csv"), MODELS["llama-3-8b"], 16, 2**30)
    assert found.median_error < 0.01 and abs(found.total_error) < 0.01
    for work in (Work(500, 125250, 500, 10, 9000, 11), Work(0, 0, 0, 64, 90000, 64)):
        assert found.costs.seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.03)
    assert found.measured == "200 steps of t.csv" and found.unknown == ("swap", "drafts")
    swapped = import_steps(table(tmp_path / "t.csv", swapped=True), MODELS["llama-3-8b"], 16, 2**30)
    assert swapped.costs.per_swapped_block == pytest.approx(3e-4, rel=0.05)
    assert swapped.unknown == ("drafts",)


def test_where_a_table_has_no_steps_the_line_goes_straight() -> None:
    sizes = [1, 2, 4, 16, 32, 64, 200, 300, 700, 1024]
    steps = [TimedStep(Work(n, 0, n, 0, 0, 0), TRUE.seconds(Work(n, 0, n))) for n in sizes]
    costs = fit([step for step in steps if step.work.num_tokens not in (300, 700)])
    for tokens in (300, 512, 700):
        expected = TRUE.seconds(Work(tokens, 0, tokens))
        assert costs.seconds(Work(tokens, 0, tokens)) == pytest.approx(expected, rel=0.03)


def test_the_largest_steps_decide_no_slope_of_their_own() -> None:
    """512 and 520 tokens, one of them held up a little; 2,048 are far from both."""
    sizes = [1, 4, 16, 64, 256, 512, 520]
    steps = [TimedStep(Work(n, 0, n), TRUE.seconds(Work(n, 0, n))) for n in sizes]
    steps[-1] = steps[-1]._replace(seconds=steps[-1].seconds * 1.03)
    expected = TRUE.seconds(Work(2048, 0, 2048))
    assert fit(steps).seconds(Work(2048, 0, 2048)) == pytest.approx(expected, rel=0.1)


def test_the_command_writes_what_simulate_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = str(tmp_path / "costs.json")
    steps = ["--steps", str(table(tmp_path / "t.csv"))]
    pool = ["--num-blocks", "4000", "--block-size", "32"]
    assert main(["calibrate", "llama-3-8b", *steps, *pool, "--out", costs]) == 0
    assert "From 200 steps of t.csv" in (said := capsys.readouterr().out)
    assert "Not known: what a swapped block costs" in said
    found = read_calibration(Path(costs))
    assert found.pool_bytes == 4000 * 32 * 128 * 1024 and found.block_size == 32
    load = ["--input", "100", "--output", "20", "--rate", "5", "--requests", "20", "--json"]
    assert main(["simulate", "--cost-model", costs, *load]) == 0
    assert json.loads(capsys.readouterr().out)["num_finished"] == 20
    for flags, field in (
        (["--swap-space", "1"], "swap_space"),
        (["--speculative-config", '{"method": "ngram"}', "--acceptance", "0.5"], "speculative_con"),
    ):
        assert main(["simulate", "--cost-model", costs, *load, *flags]) == 1
        assert f"{field}" in (error := capsys.readouterr().err)
        assert "from 200 steps of t.csv, do not tell what that costs" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-blocks", "9"], "steps needs the model's name"),
        (["llama-3-8b"], "give num_blocks or kv_cache_memory_bytes"),
        (["llama-3-8b", "--num-blocks", "0"], "num_blocks must be at least 1, got 0"),
        (["llama-3-8b", "--num-blocks", "9", "--threads", "2"], "threads does nothing with steps"),
        (["llama-3-8b", "--num-blocks", "9", "--unit", "cpu"], "has no column cpu_seconds"),
        (["llama-3-8b", "--url", "http://x"], "url and steps contradict each other"),
        (["llama-3-8b", "--api-key", "x"], "api_key does nothing without a url"),
    ],
)
def test_what_contradicts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    steps = ["--steps", str(table(tmp_path / "t.csv")), "--out", str(tmp_path / "costs.json")]
    assert main(["calibrate", *steps, *flags]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seconds\n1", "line 2: prefill_tokens or decode_seqs must say"),
        ("decode_seqs\n1", "line 1: column 'seconds' is missing"),
        ("decode_seqs,seconds,colour\n1,1,red", "line 1: unknown column 'colour'"),
        ("decode_seqs,seconds\n1.5,1", "line 2: decode_seqs must be a whole number"),
        ("decode_seqs,seconds\nnan,1", "line 2: decode_seqs must be a whole number"),
        ("decode_seqs,seconds\n1,0", "line 2: seconds must be above 0"),
        ("decode_seqs,seconds\n0,1", "line 2: the step has nothing to do"),
        ("decode_seqs,seconds,begin\n1,1,0\n1,1,", "begin is missing in some rows"),
        ("decode_seqs,seconds\n", "holds no step"),
        ("decode_seqs,seconds\n1,1\n", "holds 1 steps; 8 are the least"),
    ],
)
def test_broken_tables_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        import_steps(path, MODELS["llama-3-8b"], 16, 2**30)


def test_what_a_table_leaves_out_is_as_in_the_simplest_case(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("prefill_tokens,decode_seqs,decode_context,seconds\n10,3,90,0.5\n")
    (step,) = read_steps(path)
    assert step.work == Work(10, 55, 10, 3, 90, 4)
    assert (step.seconds, step.begin, step.cpu_seconds) == (0.5, None, None)
