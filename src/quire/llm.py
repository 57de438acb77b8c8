"""The Python API: offline generation, as vLLM users know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

from tqdm import tqdm

from quire.assembly import build_engine
from quire.config import EngineConfig, problem_with_name
from quire.engine import (
    Driver,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Message,
    PreparedParams,
    Prompt,
    RequestOutput,
    Scoring,
    ScoringOutput,
    ScoringRequestOutput,
    StreamingSession,
    as_dict,
)
from quire.errors import ConfigError, RequestError
from quire.protocol import PoolingParams, SamplingParams


class LoRARequest(NamedTuple):
    """An adapter, as vLLM's users name it: read from its directory when it is first asked for.

    lora_int_id: counts for nothing; a name is enough.
    load_inplace: read it again, whatever is there by now.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False


class LLM:
    """Offline generation, as vLLM users know it.

    ``LLM("path/or/name", max_model_len=4096, kv_cache_memory_bytes="4GiB")``; the options are the
    fields of ``EngineConfig``. Without a model it runs the package's demonstration model.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        name = None if model is None else str(model)
        self.config = EngineConfig.create({"model": name, **options})
        self.engine, self.capacity = build_engine(self.config)
        self._driver = Driver(self.engine)
        self._session_numbers = count()

    def close(self) -> None:
        """End what the engine has begun: the processes of its other ranks, and a recording."""
        self.engine.close()

    def default_sampling_params(self, **given: Any) -> SamplingParams:
        """SamplingParams with the model's own defaults for what is not given."""
        return SamplingParams.over(self.engine.input_processor.sampling_defaults, given)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Complete one prompt or many, in order; each is text, token ids, or a dict of either.

        All are checked before the first one runs; RequestError names what is wrong. Without
        sampling_params, the model's own defaults hold (``default_sampling_params``). ``priority``
        has one number a prompt, for scheduling_policy="priority": the lower, the sooner.
        ``lora_request`` is the adapter of all prompts, or one of each: needs enable_lora.
        """
        many = self._with_adapters(_with_priority(_as_list(prompts), priority), lora_request)
        if sampling_params is None:
            sampling_params = self.default_sampling_params()
        return self._finish(many, self._params_for(many, sampling_params), use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The vectors of one text or many, in order, as the model's files say they are made.

        ``pooling_params`` says it otherwise. What a model wants before a text (an instruction, or
        the ``prompts`` of sentence-transformers) is its caller's to write there.
        """
        many = self._with_adapters(_with_priority(_as_list(prompts), priority), lora_request)
        params = self.engine.input_processor.prepare_params(pooling_params or PoolingParams())
        return [
            EmbeddingRequestOutput(
                output.request_id,
                EmbeddingOutput(list(output.vector or ())),
                output.prompt_token_ids,
                output.metrics,
            )
            for output in self._finish(many, [params] * len(many), use_tqdm, "Embedding")
        ]

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well texts go together, pair by pair, or one text with each of many."""
        processor = self.engine.input_processor
        first = [text_1] if isinstance(text_1, str) else list(text_1)
        second = [text_2] if isinstance(text_2, str) else list(text_2)
        scoring = Scoring(processor.pooler, first, second)
        params = processor.prepare_params(scoring.params)
        prompts = self._with_adapters(list(scoring.prompts), lora_request)
        done = self._finish(prompts, [params] * len(prompts), use_tqdm, "Scoring")
        last = done[-len(second) :]
        return [
            ScoringRequestOutput(output.request_id, ScoringOutput(score), output.prompt_token_ids)
            for output, score in zip(last, scoring.scores(done), strict=True)
        ]

    def _finish(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[PreparedParams],
        use_tqdm: bool,
        doing: str = "Generating",
    ) -> list[RequestOutput]:
        """Run them to their ends; all are checked before the first one runs."""
        clock = self.engine.clock()
        prepared = [
            self.engine.input_processor.prepare(str(i), prompt, p, clock)
            for i, (prompt, p) in enumerate(zip(prompts, params, strict=True))
        ]
        outputs: dict[str, RequestOutput] = {}
        try:
            for request in prepared:
                self.engine.submit(request)
            self._run(outputs, len(prepared), use_tqdm, doing)
        finally:  # refused or interrupted: leave nothing behind
            for request in prepared:
                self.engine.abort(request.request.request_id)
            self.engine.put_away()
        return [outputs[str(i)] for i in range(len(prompts))]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, through the model's chat template.

        tools: in OpenAI's form, for the template to show; calls come back as text.
        continue_final_message: go on with the last message; needs add_generation_prompt=False.
        chat_template_kwargs: variables of the template's own.

        RequestError if the template refuses them.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message needs add_generation_prompt=False", "continue_final_message"
            )
        variables = {
            **(chat_template_kwargs or {}),
            **({"tools": list(tools)} if tools else {}),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        one = not messages or isinstance(messages[0], Mapping)
        chats = cast("Sequence[Sequence[Message]]", [messages] if one else messages)
        prompts = [self.engine.input_processor.chat_prompt(chat, variables) for chat in chats]
        return self.generate(prompts, sampling_params, use_tqdm, lora_request=lora_request)

    def open_session(
        self,
        cache_salt: str = "",
        lora_request: LoRARequest | None = None,
        recompute_last_n: int | None = None,
    ) -> StreamingSession:
        """One text that is fed and continued, turn by turn, and keeps its KV blocks in between.

        ``with llm.open_session() as session: session.append("..."); session.generate()``.
        RequestError if ``max_num_sessions`` are open. Sessions with different salts share nothing.
        ``recompute_last_n``: when a turn has no room in the longest text (under a window: in sinks
        and window), the session goes on with the sinks, so many tokens before its input, and that.
        """
        session_id = f"session-{next(self._session_numbers)}"
        adapter = None
        if lora_request is not None:
            self._load(lora_request)
            adapter = self.engine.input_processor.adapter(lora_request.lora_name)
        defaults = self.default_sampling_params
        return StreamingSession(
            self._driver, session_id, defaults, cache_salt, adapter, recompute_last_n
        )

    def _with_adapters(
        self, prompts: list[Prompt], asked: LoRARequest | Sequence[LoRARequest | None] | None
    ) -> list[Prompt]:
        if asked is None:
            return prompts
        each = [asked] * len(prompts) if isinstance(asked, LoRARequest) else asked
        if len(each) != len(prompts):
            raise ConfigError(f"{len(prompts)} prompts came with {len(each)} lora_requests")
        for one in each:
            if one is not None:
                self._load(one)
        return [
            prompt if one is None else {**as_dict(prompt), "adapter": one.lora_name}
            for prompt, one in zip(prompts, each, strict=True)
        ]

    def _load(self, asked: LoRARequest) -> None:
        """Read what there is in its directory, unless that is known."""
        shelf = self.engine.adapters
        if shelf is None:
            raise ConfigError("lora_request needs enable_lora")
        if problem := problem_with_name(asked.lora_name):
            raise ConfigError(f"lora_request: {problem}")
        if asked.lora_name not in shelf or asked.load_inplace:
            source = shelf.check(Path(asked.lora_path).expanduser())
            shelf.add(asked.lora_name, source, asked.base_model_name, in_place=asked.load_inplace)

    def _params_for(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[PreparedParams]:
        prepare = self.engine.input_processor.prepare_params
        if isinstance(params, SamplingParams):
            return [prepare(params)] * len(prompts)
        if len(params) != len(prompts):
            raise ConfigError(f"{len(prompts)} prompts came with {len(params)} sampling_params")
        return list(map(prepare, params))

    def _run(
        self, outputs: dict[str, RequestOutput], total: int, use_tqdm: bool, doing: str
    ) -> None:
        with tqdm(total=total, desc=doing, unit="req", disable=not use_tqdm) as bar:
            tokens = 0
            while len(outputs) < total:
                for delta in self._driver.step():
                    tokens += len(delta.token_ids)
                    if delta.failure is not None:
                        raise delta.failure
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


def _with_priority(prompts: list[Prompt], priority: Sequence[int] | None) -> list[Prompt]:
    if priority is None:
        return prompts
    if len(priority) != len(prompts):
        raise ConfigError(f"{len(prompts)} prompts came with {len(priority)} priorities")
    both = zip(prompts, priority, strict=True)
    return [{**as_dict(prompt), "priority": place} for prompt, place in both]
