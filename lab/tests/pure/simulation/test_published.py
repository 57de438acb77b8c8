"""Published runs, what was fitted to them, and how far off that is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from quire.engine.config import EngineConfig
from quire.engine.work import Work
from quire_lab.simulation import Deployment, find_model
from quire_lab.simulation.catalogue.engines import DATA_SHEET, ENGINES, Attained
from quire_lab.simulation.catalogue.machines import MACHINES
from quire_lab.simulation.published import CURRENT, RUNS, SOURCES, PublishedRun, errors
from quire_lab.simulation.roofline import Roofline

JUDGED = dict.fromkeys((run.engine, run.judged_with) for run in CURRENT)


def most(runs: list[PublishedRun], attained: Attained) -> dict[str, float]:
    """What four of five do not exceed."""
    return {
        name: round(sorted(each)[math.ceil(0.8 * len(each)) - 1], 3)
        for name, each in errors(runs, attained).items()
        if len(each) >= 3
    }


def test_each_run_has_a_source_and_something_that_was_measured() -> None:
    assert all(source["url"] and source["date"] for source in SOURCES.values())
    for run in RUNS:
        assert run.source in SOURCES
        assert run.end or run.tokens_per_second
    held = sum(run.is_held_out for run in RUNS)
    assert len(RUNS) / 4 < held < len(RUNS) / 2


def test_sources_that_judge_are_fitted_nowhere() -> None:
    judges = {name for name, source in SOURCES.items() if source.get("held_out")}
    judged = {(run.engine, run.judged_with) for run in RUNS if run.source in judges}
    assert len(judges) == 3 and len(judged) == 3
    for run in CURRENT:
        if (run.engine, run.judged_with) in judged:
            assert run.is_held_out is (run.source in judges)
    assert 0 < sum(run.is_held_out for run in CURRENT if run.engine == "trtllm") < 71 / 2


@pytest.mark.parametrize(("engine", "machines"), JUDGED)
def test_what_the_catalogue_says_of_errors_is_so(engine: str, machines: tuple[str, ...]) -> None:
    attained = ENGINES[engine].attained_of(MACHINES[machines[0] if machines else "h100"])
    assert attained.machines == machines
    runs = [run for run in CURRENT if (run.engine, run.judged_with) == (engine, machines)]
    held = [run for run in runs if run.is_held_out]
    for told in attained.errors:
        runs = [run for run in held if told.machine in ("", run.machine)
                and told.mixtures in (None, run.shape.experts is not None)]  # fmt: skip
        assert told.runs == len(runs)
        found = most(runs, attained)
        assert found.get("first token") == pytest.approx(told.first_token, abs=2e-3)
        assert found.get("end") == pytest.approx(told.end, abs=2e-3)
        assert found.get("rate") == pytest.approx(told.rate, abs=2e-3)
    assert attained.errors[-1].mixtures is None and not attained.errors[-1].machine
    fitted, plain = errors(held, attained), errors(held, Attained())
    assert sum(map(sum, fitted.values())) < 0.9 * sum(map(sum, plain.values()))


def test_how_far_off_the_data_sheet_is_alone() -> None:
    found = most([*CURRENT], Attained())
    assert found == {
        "first token": DATA_SHEET.first_token, "end": DATA_SHEET.end, "rate": DATA_SHEET.rate
    } and DATA_SHEET.runs == len(CURRENT)  # fmt: skip


def test_an_older_engine_is_judged_apart() -> None:
    older = [run for run in RUNS if run.release]
    assert older and not {*older} & {*CURRENT}
    assert all(run.engine == "vllm" and run.source == "splitwise" for run in older)


def test_requests_that_come_together_are_one_step_and_then_decode() -> None:
    run = next(run for run in RUNS if run.at_once and run.users == 8)
    alone = replace(run, at_once=False, users=1)
    together, one = run.expected(Attained()), alone.expected(Attained())
    assert together.first_token is not None and one.first_token is not None
    assert 6 * one.first_token < together.first_token < 8 * one.first_token
    assert together.rate == pytest.approx(8 * run.output / (together.end or 0))


def test_who_looks_seldom_who_has_come_keeps_first_tokens_waiting() -> None:
    run = next(run for run in RUNS if run.polled == 30)
    seldom, always = (one.expected(Attained()) for one in (run, replace(run, polled=1)))
    assert seldom.first_token is not None and always.first_token is not None
    assert seldom.rate == pytest.approx(always.rate, rel=0.03)
    step = run.users / seldom.rate if run.users else 0.0  # and what prompts take of it
    assert 0.5 < (seldom.first_token - always.first_token) / (29 / 2 * step) < 1.1


def test_what_is_recorded_is_launched_at_once() -> None:
    sglang, h100 = ENGINES["sglang"].attained_of(MACHINES["h100"]), MACHINES["h100"]
    dense, latent = (find_model(name) for name in ("llama-3.1-8b", "deepseek-v3"))
    assert [sglang.on(h100, one).recorded_tokens for one in (dense, latent)] == [16384, 2048]
    machine = replace(h100, launch_seconds=1e-3, recorded_tokens=512)
    short, long = Work(512, 131_328, 512), Work(513, 131_841, 513)
    seconds = Roofline(dense, machine, 1, 16).seconds
    assert seconds(long) - seconds(short) > 0.5 * 1e-3 * dense.num_layers
    older = next(run for run in RUNS if run.recorded == 0 and run.users == 1)
    now = replace(older, recorded=None)
    early, late = (one.expected(sglang).first_token for one in (now, older))
    assert early is not None and late is not None and early < late


def test_each_of_a_models_matrices_costs_something_in_every_step() -> None:
    attained, h100 = Attained(step_us=10.0, launch_us=100.0), MACHINES["h100"]
    few, many = (find_model(name) for name in ("llama-3.1-8b", "deepseek-v3"))
    assert attained.on(h100, few).step_seconds == pytest.approx(225 * 10e-6)  # 7 a layer, a head
    assert attained.on(h100, few).launch_seconds == pytest.approx(225 / 32 * 100e-6)
    assert attained.on(h100, many).step_seconds == pytest.approx(663 * 10e-6)
    assert Attained().on(h100, many).step_seconds == h100.step_seconds


def test_kernels_of_prompts_are_launched_layer_by_layer() -> None:
    model, plain = find_model("llama-3.1-8b"), MACHINES["h100"]
    slow = replace(plain, launch_seconds=1e-3)
    few, many = Work(16, 136, 16), Work(8192, 33_558_528, 8192)
    decode = Work(0, 0, 0, 8, 8000)
    before, after = (Roofline(model, machine, 1, 16) for machine in (plain, slow))
    assert after.seconds(few) == pytest.approx(slow.step_seconds + 1e-3 * model.num_layers)
    assert after.seconds(many) == before.seconds(many), "the machine computes meanwhile"
    assert after.seconds(decode) == before.seconds(decode), "these are recorded"


def deployed(engine: str | None, machine: str = "h100") -> Deployment:
    config = EngineConfig(max_num_seqs=128, max_num_batched_tokens=2048)
    known = None if engine is None else ENGINES[engine]
    return Deployment(find_model("llama-3.1-8b"), MACHINES[machine], 1, config, engine=known)


def test_an_answer_has_an_error_bar_and_says_of_what() -> None:
    bars = [deployed("vllm").error, deployed("vllm", "h200").error, deployed("llamacpp").error]
    own, near, none = (bar for bar in bars if bar is not None)
    assert own.basis == "measured: vLLM on this machine, 14 runs of dense models held out"
    assert near.basis == "measured near: vLLM on other machines, 14 runs of dense models held out"
    assert none.basis.startswith("data sheet only")
    assert own.rate < none.rate and own.first_token < none.first_token
    least, upmost = own.range(2.0)
    assert least < 2.0 < upmost and upmost / 2.0 == pytest.approx(2.0 / least)
    assert deployed(None).error == none
    costs = deployed(None).cost_model(16)
    assert replace(deployed("vllm"), costs=costs).error is None, "calibrated"


def test_of_mixtures_less_is_known_than_of_dense_models() -> None:
    attained, h100 = ENGINES["vllm"].attained_of(MACHINES["h100"]), MACHINES["h100"]
    dense, mixture = (
        attained.error_on(h100, find_model(name), "vLLM") for name in ("qwen3-14b", "mixtral-8x7b")
    )
    assert dense is not None and mixture is not None
    assert dense.rate < 0.1 < 4 * dense.rate < mixture.rate
    amd, mi300x = ENGINES["sglang"].attained_of(MACHINES["mi300x"]), MACHINES["mi300x"]
    few = amd.error_on(mi300x, find_model("qwen3-14b"), "SGLang")  # two runs, of which nothing is
    assert few is not None and few.basis.endswith("SGLang on other machines, 8 runs held out")


def test_products_of_few_bits_attain_a_share_of_their_own() -> None:
    model, h100 = find_model("deepseek-v3"), MACHINES["h100"]
    slow = replace(h100, narrow_share=0.5)
    dense = find_model("llama-3.1-8b")
    work = Work(8192, 33_558_528, 8192)
    assert Roofline(dense, slow, 1, 16).parts(work) == Roofline(dense, h100, 1, 16).parts(work)
    before, after = (Roofline(model, one, 8, 16).parts(work)[0] for one in (h100, slow))
    assert 1.3 * before < after < 2 * before


def test_prompts_that_are_recorded_are_launched_in_pieces() -> None:
    model, plain = find_model("llama-3.1-8b"), MACHINES["h100"]
    pieces = replace(plain, launch_seconds=1e-2, piece_seconds=1e-3, recorded_tokens=512)
    few, decode = Work(16, 136, 16), Work(0, 0, 0, 8, 8000)
    before, after = (Roofline(model, machine, 1, 16) for machine in (plain, pieces))
    assert after.seconds(few) == pytest.approx(plain.step_seconds + 1e-3 * model.num_layers)
    assert after.seconds(decode) == before.seconds(decode)


def test_a_machine_with_figures_of_its_own_keeps_them() -> None:
    attained = ENGINES["vllm"].attained_of(MACHINES["h100"])
    assert deployed("vllm").paced.bandwidth_share == attained.bandwidth_share
    own = replace(MACHINES["h100"], bandwidth_share=0.5)
    assert replace(deployed("vllm"), machine=own).paced is own
    assert deployed(None).paced is MACHINES["h100"]
