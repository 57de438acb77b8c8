"""A plan as plain JSON values, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quire_lab.commands.setup import Setup
from quire_lab.commands.simulate import cut_values, setup_values
from quire_lab.commands.speculation import trials_values
from quire_lab.simulation import SimulationResult
from quire_lab.simulation.planning.advice import advice, answer
from quire_lab.simulation.planning.changes import Change, Changed
from quire_lab.simulation.planning.plan import Plan, Saturation, Variant
from quire_lab.simulation.planning.starting import start_of


def plan_values(setup: Setup, plan: Plan) -> dict[str, Any]:
    need, users = plan.memory_need, plan.user_load
    return {
        "setup": setup_values(setup, plan.limits),
        "workload": {
            "num_requests": len(plan.sample.requests),
            "of_requests": plan.sample.num_all,
            "part": plan.sample.part,
            **cut_values(plan.sample.cut),
            "mean_prompt_tokens": plan.sample.mean_tokens[0],
            "mean_output_tokens": plan.sample.mean_tokens[1],
            "requests_per_second": plan.sample.rate,
            "requests_per_second_of_all": plan.sample.own_rate,
        },
        "fit": {"memory_holds": plan.room, **_saturation_values(plan.saturation)},
        "users": None
        if users is None
        else {
            "users": users.users,
            "by_allocator": {policy: _load_values(result) for policy, result in users.results},
        },
        "most_users": None
        if plan.most_users is None
        else {"users": plan.most_users.users, **_load_values(plan.most_users.results[0][1])},
        "goodput": {
            "requests_per_second": plan.goodput.rate,
            "poisson_requests_per_second": plan.goodput.poisson,
            "at": None if plan.goodput.at is None else _load_values(plan.goodput.at),
        },
        "binds": plan.binds.value,
        "memory_need": None
        if need is None
        else {"load": need.load, "bytes": need.num_bytes, **_load_values(need.result)},
        "best_block_size": plan.best_block_size,
        "speculation": plan.speculation and trials_values(plan.speculation),
        "answer": answer(plan),
        "advice": advice(plan),
        "enough": [_combined(one) for one in plan.enough],
        "start": _start_values(setup, plan),
        "changes": [_change_values(one) for one in plan.changed],
        "without_paging": [_variant_values(one) for one in plan.without_paging],
        "other_work": [_variant_values(one) for one in plan.other_work],
    }


def _combined(change: Change) -> dict[str, Any]:
    deployment = change.deployment
    return {
        "name": change.name,
        "machine": deployment.machine.name,
        "machines": change.machines,
        "replicas": change.replicas,
        "routing": change.routing,
        "tensor_parallel": deployment.tensor_parallel,
        "weights": deployment.model.weight_form.name,
        "kv_cache_dtype": deployment.model.kv_dtype,
        "max_num_batched_tokens": deployment.config.max_num_batched_tokens,
        "dollars_per_hour": change.dollars,
    }


def _start_values(setup: Setup, plan: Plan) -> dict[str, Any] | None:
    start = start_of(plan.best, setup.model_name, setup.is_stored_rounded)
    if start is None or plan.best.engine is None:
        return None
    return {
        "engine": plan.best.engine.name,
        "command": list(start.words),
        "settings_file": start.file or None,
        "notes": list(start.notes),
        "not_measured": list(plan.best.engine.not_measured),
    }


def _change_values(changed: Changed) -> dict[str, Any]:
    return {
        "knob": changed.change.knob,
        "name": changed.change.name,
        "paid_with": changed.change.price.value,
        "replicas": changed.change.replicas,
        "routing": changed.change.routing,
        "machines": changed.change.machines,
        "dollars_per_hour": changed.change.dollars,
        "requests_per_second": changed.rate,
        "gain": changed.gain,
        "same_because": changed.change.same,
        "like_routing": changed.like,
        "refused": changed.refused,
    }


def _variant_values(variant: Variant) -> dict[str, Any]:
    fit = variant.saturation and _saturation_values(variant.saturation)
    return {"name": variant.name, "refused": variant.refused, "fit": fit}


def _saturation_values(saturation: Saturation) -> dict[str, Any]:
    return {
        "running": saturation.running,
        "most_running": saturation.most_running,
        "all_at_once": saturation.all_at_once,
        "request_rate": saturation.request_rate,
        "output_rate": saturation.output_rate,
        "preemptions": saturation.result.preemptions._asdict(),
        "kv_efficiency": saturation.result.kv_efficiency,
    }


def _load_values(result: SimulationResult) -> dict[str, Any]:
    return {
        "mean_running": result.mean_running,
        "most_running": result.most_running,
        "request_rate": result.request_rate,
        "output_rate": result.output_rate,
        "goodput_share": result.goodput_share,
        "ttft": asdict(result.ttft),
        "tpot": asdict(result.tpot),
        "queueing": asdict(result.queueing),
    }
