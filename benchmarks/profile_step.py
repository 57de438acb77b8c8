"""Where a step's time goes: products, attention, the rest of the model, sampling, Python, idle.

    python benchmarks/profile_step.py [MODEL] [--workload alpaca] [--dtype bfloat16 ...]

Functions are timed from outside: each call's time, less that of the timed calls inside it, is
charged to the function's part. For that the model runs operation by operation, not in a single
call as usual: what that costs is in the rest of the model. Steps that compute prompts are told
apart from those that only decode. Idle is the share of the threads' time that they did not
compute, mostly while one thread works alone. Flags that are not listed here are the engine's.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from clock import Clock
from common import flags_of

from quire import LLM
from quire.engine.progress import RequestProgress
from quire.execution import executor as executor_module
from quire.execution.sampling.choosing import Choosing
from quire.kernels.ops import Kernels
from quire.tools.commands.flags import engine_options
from quire_lab.bench.report import machine_facts
from quire_lab.bench.workloads import make_workload

PARTS = (
    "products",
    "attention",
    "other kernels",
    "rest of the model",
    "sampling",
    "executor",
    "batch building",
    "scheduling",
    "detokenising",
    "engine",
)


def linear_classes() -> Iterator[type]:
    """The classes whose calls are products of activations with weights."""
    yield torch.nn.Linear  # of models that run through transformers
    for name, module in list(sys.modules.items()):
        if not name.startswith("quire."):
            continue
        for thing in vars(module).values():
            is_own = isinstance(thing, type) and thing.__module__ == name
            if is_own and {"__call__", "floats", "rows"} <= vars(thing).keys():
                yield thing  # a model.linear.Linear


def watch_engine(clock: Clock, llm: LLM) -> None:
    """Time the parts of a step."""
    for linear in linear_classes():
        for name in ("forward",) if linear is torch.nn.Linear else ("__call__", "floats"):
            clock.watch(linear, name, "products")
    executor = llm.engine.executor
    parts = vars(executor.worker._forward).values()
    kernels = next(type(part) for part in parts if hasattr(part, "attend"))
    model = next(type(part) for part in parts if hasattr(part, "logits"))
    kernels.fuse = Kernels.fuse  # type: ignore[method-assign]
    for name in dir(kernels):
        if not name.startswith("_") and name != "fuse" and callable(getattr(kernels, name)):
            is_attention = name in ("plan", "attend")
            clock.watch(kernels, name, "attention" if is_attention else "other kernels")
    clock.watch(model, "forward", "rest of the model")
    clock.watch(model, "logits", "rest of the model")
    clock.watch(Choosing, "choose", "sampling")
    clock.watch(Choosing, "outcomes", "sampling")
    clock.watch(executor_module, "pack", "batch building")
    clock.watch(type(executor), "submit", "executor")
    for name in ("schedule", "schedule_ahead", "update"):
        clock.watch(type(llm.engine.scheduler), name, "scheduling")
    clock.watch(RequestProgress, "advance", "detokenising")
    clock.watch(type(llm.engine), "step", "engine")


def run(llm: LLM, workload: str, num_prompts: int) -> dict[str, Any]:
    """Seconds by kind of step and part, and how busy the threads were."""
    requests = [
        request.cut(llm.capacity.max_model_len) for request in make_workload(workload, num_prompts)
    ]
    for i, request in enumerate(requests):
        params = llm.default_sampling_params(
            temperature=0, max_tokens=request.max_tokens, ignore_eos=True
        )
        llm.engine.add_request(str(i), request.prompt, params)
    clock = Clock()
    watch_engine(clock, llm)
    kinds: dict[str, Counter[str]] = {"decode": Counter(), "with prompts": Counter()}
    stats = llm.engine.stats
    started, cpu = time.perf_counter(), time.process_time()
    while llm.engine.has_work:
        before = stats.num_tokens
        began = time.perf_counter()
        deltas = llm.engine.step()
        seconds = time.perf_counter() - began
        computed = stats.num_tokens - before
        kind = kinds["decode" if computed == len(deltas) else "with prompts"]
        kind.update(clock.take())
        kind.update({"steps": 1, "tokens": computed, "seconds": seconds})
    seconds = time.perf_counter() - started
    threads = torch.get_num_threads()
    busy = (time.process_time() - cpu) / (seconds * threads)
    return {"seconds": seconds, "threads": threads, "idle": 1 - busy, "kinds": kinds}


def show(found: dict[str, Any]) -> None:
    """A table: milliseconds a step and share of the time, for each kind of step."""
    for name, kind in found["kinds"].items():
        if not kind["steps"]:
            continue
        steps, seconds = kind["steps"], kind["seconds"]
        print(
            f"\nsteps {name}: {steps}, {seconds:.2f} s, {kind['tokens'] / steps:.1f} tokens a step"
        )
        for part in PARTS:
            print(f"  {part:18} {kind[part] / steps * 1e3:8.3f} ms {kind[part] / seconds:7.1%}")
        print(f"  {'all':18} {seconds / steps * 1e3:8.3f} ms")
    print(f"\nidle: {found['idle']:.1%} of {found['threads']} threads' time")


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("--workload", default="sharegpt", help="sharegpt, alpaca, prefix or a file")
    parser.add_argument("--num-prompts", type=int, default=64, help="requests (%(default)s)")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    arguments, engine = parser.parse_known_args()
    found = run(LLM(**engine_options(engine)), arguments.workload, arguments.num_prompts)
    machine = machine_facts()
    if arguments.json:
        print(json.dumps({**found, "machine": machine}))
        return
    print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}")
    show(found)


if __name__ == "__main__":
    main()
