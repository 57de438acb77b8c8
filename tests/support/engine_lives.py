"""Requests drawn at random, and lives of a real engine in which they meet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from quire import LLM, SamplingParams
from quire.core.memory import Demand, KVAllocator
from quire.core.protocol import Roster, Step
from quire.engine.outputs import RequestOutput
from support.drafting import Drafting, knowing
from support.lora import ALL, ATTENTION, save_adapter
from support.small_models import VOCAB_SIZE, save_model

_BEGINNINGS = (301, 524)  # tokens of the texts that several prompts begin with
_ROOM = "64MiB"  # of a pool in which nobody has to give way
ADAPTERS = ("a", "b")  # in directories of a model's


class Asked(NamedTuple):
    """A request."""

    prompt: list[int]
    params: SamplingParams
    adapter: str | None = None  # one of ADAPTERS


@dataclass(frozen=True)
class Life:
    """What happens to requests beside one another."""

    arrivals: tuple[int, ...]  # steps before which they come
    budgets: tuple[int, int] = (2048, 2048)  # tokens of a step, drawn between
    caching: bool = False
    squeezed: bool = False  # now and then the pool has next to no free blocks
    swap: bool = False  # who must give way swaps; else computes again
    right_drafts: float | None = None  # the share of drafts that are right; None: no drafts
    threads: int = 1
    seed: int = 0


class Piece(NamedTuple):
    """Tokens of a request that a step has computed, or (without any) what befell it there."""

    branch: int
    start: int
    tokens: int
    drafts: int
    beside: int  # chunks of others in the step
    rows: int  # of the step
    event: str = ""

    @property
    def end(self) -> int:
        return self.start + self.tokens


class Watch:
    """Notes the pieces of every request, as its executor is given them."""

    def __init__(self, llm: LLM) -> None:
        self.pieces: dict[str, list[Piece]] = {}
        self._roster = Roster()
        executor: Any = llm.engine.executor
        submit = executor.submit

        def watched(step: Step) -> Any:
            self._note(step)
            return submit(step)

        executor.submit = watched

    def happened(self) -> Counter[str]:
        """How often, over all requests."""
        counts: Counter[str] = Counter()
        for pieces in self.pieces.values():
            counts["found"] += next((p.start > 0 for p in pieces if p.tokens), False)
            counts["chunks"] += sum(p.tokens > 1 for p in pieces)
            counts["drafts"] += sum(p.drafts for p in pieces)
            counts["forks"] += max(p.branch for p in pieces)
            counts.update(p.event for p in pieces if p.event)
        return counts

    def _note(self, step: Step) -> None:
        for decision in step.decisions:
            event = Piece(0, 0, 0, 0, 0, 0, decision.what.value)
            self.pieces.setdefault(decision.request_id, []).append(event)
        for chunk, whose in zip(step.chunks, self._roster.follow(step), strict=True):
            piece = Piece(
                whose.branch, chunk.start, len(chunk.token_ids), len(chunk.drafts),
                len(step.chunks) - 1, step.num_tokens,
            )  # fmt: skip
            self.pieces.setdefault(whose.request.request_id, []).append(piece)


class Squeeze:
    """Now and then takes nearly all free blocks for some steps: whoever grows displaces another."""

    def __init__(self, allocator: KVAllocator, rng: random.Random) -> None:
        self._allocator, self._rng = allocator, rng
        self._held: list[int] = []

    def turn(self) -> None:
        """Before a step."""
        if self._held and self._rng.random() < 0.4:
            self.end()
        elif not self._held and self._rng.random() < 0.2:
            left = self._rng.randint(0, 2)
            for blocks in (16, 1):
                self._take(blocks, left)

    def _take(self, blocks: int, left: int) -> None:
        """So many at once, as long as ``left`` are left."""
        demand = Demand(blocks * self._allocator.block_size)
        while self._allocator.num_free_blocks >= left + blocks:
            seq_id = -1 - len(self._held)
            if self._allocator.admit(seq_id, demand) is None:
                break
            self._held.append(seq_id)

    def end(self) -> None:
        while self._held:
            self._allocator.free(self._held.pop())


def draw_requests(rng: random.Random, count: int, *, adapted: bool = False) -> list[Asked]:
    """Greedy and sampled ones, alone, forked and as beams; some begin alike.

    adapted: two of three with an adapter.
    """
    texts = random.Random(7)
    beginnings = [[texts.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in _BEGINNINGS]
    asked = []
    for number in range(count):
        prompt: list[int] = []
        if rng.random() < 0.6:
            prompt = list(rng.choice(beginnings))
            if rng.random() < 0.2:
                del prompt[rng.randrange(1, len(prompt)) :]
        near = rng.choice((rng.randint(1, 40), rng.randint(1, 500), rng.choice((248, 255, 505))))
        own = max(1, near - len(prompt)) if near > 200 else near
        prompt += [rng.randrange(3, VOCAB_SIZE) for _ in range(own)]
        params = _draw_params(rng, number, 60 if len(prompt) < 100 else 30)
        adapter = rng.choice((None, *ADAPTERS)) if adapted else None
        asked.append(Asked(prompt, params, adapter))
    return asked


def _draw_params(rng: random.Random, number: int, longest: int) -> SamplingParams:
    fields: dict[str, Any] = {"max_tokens": rng.randint(1, longest), "ignore_eos": True}
    if rng.random() < 0.1:
        return SamplingParams(use_beam_search=True, n=rng.randint(2, 3), **fields)
    fields |= {"logprobs": 2, "n": rng.choice((1, 1, 1, 1, 2, 3))}
    if rng.random() < 0.1:
        fields["prompt_logprobs"] = 1
    if rng.random() < 0.2:
        fields |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.1}
    if rng.random() < 0.5 and fields["n"] == 1:
        return SamplingParams(temperature=0.0, **fields)
    kept: dict[str, Any] = rng.choice(({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.02}))
    return SamplingParams(seed=1000 + number, temperature=rng.choice((0.7, 1.0)), **kept, **fields)


def serve(
    directory: Path,
    settings: Mapping[str, Any],
    asked: Sequence[Asked],
    life: Life,
    truth: Mapping[str, Sequence[Sequence[int]]] | None = None,
    prepare: Callable[[LLM], object] = lambda llm: None,
) -> tuple[dict[str, RequestOutput], Watch]:
    """Live. Outputs by the requests' numbers; ``truth``: their tokens, which drafts know."""
    rng = random.Random(life.seed)
    llm = LLM(directory, **settings, **_options(life))
    prepare(llm)
    engine, scheduler = llm.engine, llm.engine.scheduler
    watch = Watch(llm)
    if life.right_drafts is not None and truth is not None:
        Drafting(scheduler, knowing(truth, life.right_drafts, VOCAB_SIZE, life.seed))
    least = max([1, *(one.params.n for one in asked if one.params.use_beam_search)])
    low, high = (max(least, budget) for budget in life.budgets)
    coming = sorted(zip(life.arrivals, range(len(asked)), strict=True), reverse=True)
    squeeze = Squeeze(scheduler.allocator, rng)
    outputs: dict[str, RequestOutput] = {}
    step = 0
    while coming or engine.has_work:
        while coming and (coming[-1][0] <= step or not engine.has_work):
            _, number = coming.pop()
            prompt, params, adapter = asked[number]
            given = {"prompt_token_ids": prompt, "adapter": adapter} if adapter else prompt
            engine.add_request(str(number), given, params)
        tokens = round(low * (high / low) ** rng.random())
        scheduler.batch = replace(scheduler.batch, max_num_batched_tokens=tokens)
        if life.squeezed:
            squeeze.turn()
        outputs |= {d.request_id: d.final for d in engine.step() if d.final is not None}
        step += 1
    squeeze.end()
    usage = scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    return outputs, watch


def _options(life: Life) -> dict[str, Any]:
    options: dict[str, Any] = {
        "threads": life.threads,
        "enable_prefix_caching": life.caching,
        "max_num_seqs": 64,
        "max_num_batched_tokens": life.budgets[1],
        "kv_cache_memory_bytes": _ROOM,
    }
    if life.swap:
        options |= {"preemption_mode": "swap", "swap_space": 0.05}
    return options


def alone(
    directory: Path, settings: Mapping[str, Any], asked: Sequence[Asked]
) -> dict[str, RequestOutput]:
    """Each in a fresh engine of one thread, whose only request it is, in whole prompts.

    Without an adapter, in an engine that has none.
    """
    outputs = {}
    base = {name: value for name, value in settings.items() if "lora" not in name}
    for number, one in enumerate(asked):
        found, _ = serve(directory, settings if one.adapter else base, [one], Life((0,)))
        outputs[str(number)] = found["0"]
    return outputs


def _together(rng: random.Random, count: int) -> Life:
    return Life((0,) * count, seed=rng.randrange(2**31))


def draw_life(kind: str, rng: random.Random, count: int) -> Life:
    """A life with one thing in it that may happen, or with ``everything``."""
    life = _together(rng, count)
    one_by_one = tuple(sorted(rng.randrange(40) for _ in range(count)))
    match kind:
        case "batched":
            return life
        case "chunks":
            return replace(life, budgets=(2, 150))
        case "trickle":
            return replace(life, budgets=(1, 12))
        case "cached":
            return replace(life, arrivals=one_by_one, caching=True)
        case "recompute" | "swap":
            return replace(life, squeezed=True, swap=kind == "swap")
        case "drafts":
            return replace(life, right_drafts=rng.choice((0.3, 0.8, 1.0)))
        case "threads":
            return replace(life, threads=2)
        case "everything":
            low = rng.choice((1, 1, 16, 256))
            return Life(
                one_by_one,
                (low, rng.choice((max(low, 64), 2048))),
                rng.random() < 0.7,
                rng.random() < 0.5,
                rng.random() < 0.5,
                rng.choice((None, 0.0, 0.6, 1.0)),
                rng.choice((1, 2)),
                rng.randrange(2**31),
            )
    raise ValueError(kind)


LIVES = (
    "batched", "chunks", "trickle", "cached", "recompute", "swap", "drafts", "threads",
    "everything",
)  # fmt: skip


_SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": True,
}


def save_models(directory: Path) -> dict[str, Path]:
    """Two of two layers: with biases, 6 heads on 2 of 32; without, 9 heads on 3 of 64."""
    import transformers

    # So wide that keys far away count too.
    biased = transformers.Qwen2Config(
        **_SIZES, hidden_size=192, intermediate_size=320, num_attention_heads=6,
        num_key_value_heads=2, initializer_range=0.1,
    )  # fmt: skip
    plain = transformers.LlamaConfig(
        **_SIZES, hidden_size=576, intermediate_size=384, num_attention_heads=9,
        num_key_value_heads=3, initializer_range=0.05,
    )  # fmt: skip
    return {
        "6 heads on 2 of 32": _with_adapters(save_model(biased, directory / "biased"), ALL),
        "9 heads on 3 of 64": _with_adapters(save_model(plain, directory / "plain"), ALL),
    }


def save_mixture(directory: Path) -> dict[str, Path]:
    """One whose rows go through 3 of 8 experts."""
    import transformers

    config = transformers.Qwen3MoeConfig(
        **_SIZES, hidden_size=192, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=96, norm_topk_prob=True,
        initializer_range=0.1,
    )  # fmt: skip
    return {"3 of 8 experts": _with_adapters(save_model(config, directory), ATTENTION)}


def save_latents(directory: Path) -> dict[str, Path]:
    """One that keeps a latent of each token, and whose rows go through 3 of 8 experts."""
    import transformers

    config = transformers.DeepseekV3Config(
        **_SIZES, hidden_size=192, num_attention_heads=6, num_key_value_heads=6, q_lora_rank=96,
        kv_lora_rank=128, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32,
        intermediate_size=256, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
        moe_intermediate_size=96, n_group=1, topk_group=1, first_k_dense_replace=1,
        norm_topk_prob=True, num_mtp_layers=0, initializer_range=0.1,
    )  # fmt: skip
    targets = ("q_a_proj", "kv_a_proj_with_mqa", "o_proj")
    return {"latents": _with_adapters(save_model(config, directory), targets)}


def save_hybrid(directory: Path) -> dict[str, Path]:
    """One whose layers keep states, but for one in the middle."""
    import transformers

    config = transformers.Qwen3_5TextConfig(
        **{**_SIZES, "num_hidden_layers": 3}, hidden_size=192, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, intermediate_size=256, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=24,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        initializer_range=0.1,
    )  # fmt: skip
    targets = ("in_proj_qkv", "in_proj_z", "out_proj", "q_proj", "gate_proj")
    return {"gated delta rule": _with_adapters(save_model(config, directory), targets)}


def _with_adapters(model: Path, targets: Sequence[str]) -> Path:
    for number, name in enumerate(ADAPTERS):
        save_adapter(model / name, model, number, rank=3 + 8 * number, targets=targets)
    return model


def adapter_settings(model: Path) -> dict[str, Any]:
    """Of an engine that serves a saved model with both of its adapters."""
    return {"lora_modules": [f"{name}={model / name}" for name in ADAPTERS]}
