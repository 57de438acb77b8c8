"""The Python API, and the place where an engine is put together from its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm

from quire.config import EngineConfig
from quire.engine import Engine, Intake, Message, Prompt, RequestOutput, load_tokenizer
from quire.errors import ConfigError, EngineError
from quire.execution.executor import ModelExecutor
from quire.execution.kv_cache import KVCache, bytes_per_token
from quire.execution.memory_budget import free_memory, pool_blocks
from quire.kernels.ops import attention_backend
from quire.memory import PagedAllocator
from quire.model import Model, load_model, resolve_model
from quire.scheduling import SamplingParams, Scheduler

DEMO_MODEL = Path(__file__).parent / "demo"
DEMO_NAME = "quire-demo"

_TYPICAL_TOKENS = (161, 338)  # mean prompt and output of ShareGPT chats (PagedAttention, fig. 11)


@dataclass(frozen=True)
class Capacity:
    """What was loaded and what the pool holds."""

    model_name: str
    dtype: str
    weight_bytes: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    max_model_len: int
    prefix_caching: bool

    def describe(self) -> str:
        """One paragraph for the person who starts the engine."""
        tokens = self.num_blocks * self.block_size
        typical = min(sum(_TYPICAL_TOKENS), self.max_model_len)
        full, usual = (
            self.num_blocks // math.ceil(length / self.block_size)
            for length in (self.max_model_len, typical)
        )
        return (
            f"{self.model_name} in {self.dtype}: {_size(self.weight_bytes)} of weights, "
            f"{_size(self.kv_bytes_per_token)} of KV cache a token. The KV pool is "
            f"{_size(tokens * self.kv_bytes_per_token)}: {self.num_blocks:,} blocks of "
            f"{self.block_size}, {tokens:,} tokens. That holds {full:,} sequences of the full "
            f"{self.max_model_len:,} tokens, or {usual:,} typical chats of {typical} "
            f"({_TYPICAL_TOKENS[0]} in, {_TYPICAL_TOKENS[1]} out). "
            f"Prefix caching is {'on' if self.prefix_caching else 'off'}."
        )


def build_engine(config: EngineConfig) -> tuple[Engine, Capacity]:
    """Load the model and give it a scheduler, a KV pool and a tokenizer."""
    directory = DEMO_MODEL if config.model is None else resolve_model(config.model, config.revision)
    model = load_model(directory, config.dtype, config.max_model_len)
    template = _read_template(config.chat_template)
    tokenizer_directory = directory if config.tokenizer is None else resolve_model(config.tokenizer)
    tokenizer = load_tokenizer(tokenizer_directory, template)
    capacity = _plan_capacity(config, model)
    attention = attention_backend(torch.device("cpu"))
    kv_cache = KVCache(
        model.kv_shapes, capacity.num_blocks, config.block_size, model.dtype, attention
    )
    scheduler = Scheduler(
        PagedAllocator(capacity.num_blocks, config.block_size),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=capacity.prefix_caching,
    )
    intake = Intake(
        tokenizer,
        vocab_size=model.vocab_size,
        max_model_len=capacity.max_model_len,
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
    )
    return Engine(scheduler, ModelExecutor(model, kv_cache, attention), intake), capacity


def _plan_capacity(config: EngineConfig, model: Model) -> Capacity:
    """Decide the pool's size; every limit is checked here, before memory is taken."""
    prefix_caching = config.enable_prefix_caching
    if model.kv_depends_on_prompt_length:
        if prefix_caching:
            raise ConfigError(
                "enable_prefix_caching: this model's rotary scaling depends on the length of the "
                "prompt, so its KV blocks cannot be reused; leave the option out"
            )
        prefix_caching = False
    per_token = bytes_per_token(model.kv_shapes, model.dtype)
    full_length = math.ceil(model.max_positions / config.block_size)
    num_blocks = pool_blocks(
        per_token * config.block_size,
        full_length * config.max_num_seqs,
        config.kv_cache_memory_bytes,
        free_memory(),
    )
    max_model_len = model.max_positions
    if num_blocks < full_length:
        fits = num_blocks * config.block_size
        if config.max_model_len is not None or not fits:
            needed = full_length * config.block_size * per_token
            raise ConfigError(
                f"max_model_len {max_model_len} needs a KV pool of {_size(needed)}; there is room "
                f"for {fits} tokens: lower max_model_len or raise kv_cache_memory_bytes"
            )
        max_model_len = fits
    return Capacity(
        model_name=DEMO_NAME if config.model is None else config.model,
        dtype=str(model.dtype).removeprefix("torch."),
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=per_token,
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        prefix_caching=prefix_caching is not False,
    )


class LLM:
    """Offline generation, as vLLM users know it.

    ``LLM("path/or/name", max_model_len=4096, kv_cache_memory_bytes="4GiB")``; the options are the
    fields of ``EngineConfig``. Without a model it runs the package's demonstration model.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        name = None if model is None else str(model)
        self.config = EngineConfig.create({"model": name, **options})
        self.engine, self.capacity = build_engine(self.config)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete one prompt or many, in order; each is text, token ids, or a dict of either.

        All are checked before the first one runs; RequestError names what is wrong.
        """
        many = _as_list(prompts)
        params = _params_for(many, sampling_params)
        clock = self.engine.clock()
        prepared = [
            self.engine.intake.prepare(str(i), prompt, p, clock)
            for i, (prompt, p) in enumerate(zip(many, params, strict=True))
        ]
        outputs: dict[str, RequestOutput] = {}
        try:
            for request in prepared:
                self.engine.submit(request)
            self._run(outputs, len(prepared), use_tqdm)
        finally:  # refused or interrupted: leave nothing behind
            for request in prepared:
                self.engine.abort(request.request.request_id)
        return [outputs[str(i)] for i in range(len(many))]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, through the model's chat template."""
        one = not messages or isinstance(messages[0], Mapping)
        chats = cast("Sequence[Sequence[Message]]", [messages] if one else messages)
        prompts = [self.engine.intake.chat_prompt(chat) for chat in chats]
        return self.generate(prompts, sampling_params, use_tqdm)

    def _run(self, outputs: dict[str, RequestOutput], total: int, use_tqdm: bool) -> None:
        with tqdm(total=total, desc="Generating", unit="req", disable=not use_tqdm) as bar:
            tokens = 0
            while self.engine.has_work:
                for delta in self.engine.step():
                    tokens += len(delta.token_ids)
                    if delta.finish_reason == "error":
                        raise EngineError(str(delta.stop_reason))
                    if delta.final is not None:
                        outputs[delta.request_id] = delta.final
                        rate = tokens / max(bar.format_dict["elapsed"], 1e-9)
                        bar.set_postfix_str(f"{rate:.0f} tok/s", refresh=False)
                        bar.update()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    one = isinstance(prompts, (str, Mapping)) or (
        isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], int)
    )
    return [cast(Prompt, prompts)] if one else list(cast("Sequence[Prompt]", prompts))


def _params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * len(prompts)
    if len(params) != len(prompts):
        raise ConfigError(f"{len(prompts)} prompts came with {len(params)} sampling_params")
    return list(params)


def _read_template(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template cannot be read: {error}") from error


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"
