"""Where a real step's time goes, as a profile tells it."""

from __future__ import annotations

from quire import LLM, SamplingParams
from quire.engine.tracing import Profile


def test_a_step_has_all_its_parts() -> None:
    llm = LLM(kv_cache_memory_bytes="1MiB", threads=1)
    engine = llm.engine
    profile = Profile(engine.events, engine.clock())
    llm.generate([[5, 6, 7]], SamplingParams(n=2, max_tokens=3), use_tqdm=False)
    profile.finish(engine.states())
    steps = [one for one in profile.trace()["traceEvents"] if one["ph"] == "X" and one["pid"] == 1]
    by_name = {name: [one for one in steps if one["name"] == name]
               for name in ("step", "plan", "moves", "forward", "sampling", "update")}  # fmt: skip
    assert by_name["moves"], "a fork copies the block that it writes into"
    least = {name: 1 if name == "moves" else 3 for name in by_name}
    assert all(len(found) >= least[name] for name, found in by_name.items())
    whole = sum(one["dur"] for one in by_name.pop("step"))
    assert sum(one["dur"] for found in by_name.values() for one in found) <= whole, "none twice"
