"""The Python API: offline generation, as vLLM users know it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm

from quire.capabilities.adapters.named import LoRARequest, LoRARequests, NamedAdapters
from quire.capabilities.pooling.scoring import Scoring, chances
from quire.core.errors import ConfigError, QuireError
from quire.engine.assembly import build_engine, tokenizer_directory
from quire.engine.beams import BeamSearchOutput, BeamSearchParams
from quire.engine.config import EngineConfig
from quire.engine.driver import Driver
from quire.engine.figures import Metric, figures_of
from quire.engine.input_processor import PreparedParams, Prompt, chat_variables
from quire.engine.many import (
    as_list,
    each_of,
    naming,
    refuse_all_but_none,
    tell_shortened,
    with_each,
    with_options,
)
from quire.engine.outputs import Delta, RequestOutput
from quire.engine.streaming_session import StreamingSession
from quire.engine.vector_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from quire.text.chat_template import Message
from quire.text.for_transformers import for_transformers
from quire.text.params import PoolingParams, SamplingParams

logger = logging.getLogger(__name__)

Bar = bool | Callable[..., "tqdm[Any]"]
"""Whether progress is shown, or by what."""


class LLM:
    """Offline generation, as vLLM users know it.

    ``LLM("path/or/name", max_model_len=4096, kv_cache_memory_bytes="4GiB")``; the options are the
    fields of ``EngineConfig``, and those of vLLM's that change nothing. Without a model it runs the
    package's demonstration model. ``with LLM(...) as llm:`` closes it at the end.

    Any thread may call it: calls wait in line for each other. Ctrl-C has its effect between two
    steps, after which the engine is as it was before the call. A process that is forked from this
    one can not use it.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        name = None if model is None else str(model)
        options.pop("enable_prompt_embeds", None)  # vLLM's switch: here they can always be given
        self.config = EngineConfig.create({"model": name, **options})
        self.engine, self.capacity = build_engine(self.config)
        self._driver = Driver(self.engine)
        self._numbers = count()  # of sessions and streams
        self._adapters = NamedAdapters(self.engine.capabilities.adapters, self._driver)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what the engine has begun: the processes of its other ranks, and a recording.

        Whatever is called after that is refused.
        """
        self._driver.close()

    # -- tokens --------------------------------------------------------------------------------

    def default_sampling_params(self, **given: Any) -> SamplingParams:
        """SamplingParams with the model's own defaults for what is not given."""
        return SamplingParams.over(self.engine.input_processor.sampling_defaults, given)

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own defaults, by vLLM's name for them."""
        return self.default_sampling_params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Bar = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequests = None,
        **neutral: Any,
    ) -> list[RequestOutput]:
        """Complete one prompt or many, in order; each is text, token ids, or a dict of either.

        All are checked before the first one runs; RequestError names what is wrong, and of which
        prompt. One that fails while others do not has a finish reason of error; where all fail,
        the first one's EngineError is raised. A max_tokens above what max_model_len leaves is
        lowered, and the log tells. Without sampling_params, the model's own defaults hold
        (``default_sampling_params``). ``priority``, for scheduling_policy="priority": the lower,
        the sooner. ``lora_request`` needs enable_lora. ``neutral``: arguments of vLLM's that are
        None.
        """
        refuse_all_but_none(neutral)
        many = self._adapted(as_list(prompts), lora_request, priority)
        params = sampling_params or self.default_sampling_params()
        each = each_of(params, len(many), "sampling_params", SamplingParams)
        return self._finish(many, self._prepared(each), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Bar = True,
        lora_request: LoRARequests = None,
        *,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **neutral: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, through the model's chat template or another.

        tools: in OpenAI's form, for the template to show; calls come back as text.
        continue_final_message: go on with the last message; needs add_generation_prompt=False.
        chat_template_kwargs: variables of the template's own.

        RequestError if the template refuses them, and otherwise as ``generate``.
        """
        refuse_all_but_none(neutral)
        variables = chat_variables(
            chat_template,
            chat_template_content_format,
            add_generation_prompt,
            continue_final_message,
            tools,
            chat_template_kwargs,
        )
        one = not messages or isinstance(messages[0], Mapping)
        chats = cast("Sequence[Sequence[Message]]", [messages] if one else messages)
        prompts = []
        for number, chat in enumerate(chats):
            with naming("messages", number, len(chats)):
                begun = self.engine.input_processor.begin_chat(chat, variables)
                prompts.append(begun.token_ids)
        return self.generate(prompts, sampling_params, use_tqdm, priority, lora_request)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: LoRARequests = None,
        use_tqdm: Bar = False,
        **neutral: Any,
    ) -> list[BeamSearchOutput]:
        """The likeliest texts after each prompt, the best first."""
        done = self.generate(
            prompts, params.as_sampling(), use_tqdm, lora_request=lora_request, **neutral
        )
        return [BeamSearchOutput.of(one) for one in done]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[Delta, None, None]:
        """What a prompt's output gains as it comes; closed early, the request is aborted."""
        request_id = f"stream-{next(self._numbers)}"
        params = self.default_sampling_params() if sampling_params is None else sampling_params
        return self._driver.stream(
            request_id, lambda: self.engine.add_request(request_id, prompt, params)
        )

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
        and window), the session goes on with the sinks, this many tokens before its input, and it.
        """
        session_id = f"session-{next(self._numbers)}"
        adapter = None
        if lora_request is not None:
            adapter = self._adapters.load(lora_request)
        defaults = self.default_sampling_params
        return StreamingSession(
            self._driver, session_id, defaults, cache_salt, adapter, recompute_last_n
        )

    # -- vectors -------------------------------------------------------------------------------

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: Bar = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequests = None,
        **neutral: Any,
    ) -> list[EmbeddingRequestOutput]:
        """The vectors of one text or many, in order, as the model's files say they are made.

        ``pooling_params`` says it otherwise. What a model wants before a text (an instruction, or
        the ``prompts`` of sentence-transformers) is its caller's to write there.
        """
        done = self._pooled(prompts, pooling_params, use_tqdm, priority, lora_request, neutral)
        return [EmbeddingRequestOutput.of(one, _embedding) for one in done]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: Bar = True,
        lora_request: LoRARequests = None,
        pooling_task: str | None = None,
        **neutral: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What the model makes of texts, as tensors: vectors (embed), or of labels (classify).

        pooling_task: which of both; left out, what the model gives.
        """
        labels = self.engine.input_processor.num_labels
        default, make = pooling_of(pooling_task, labels)
        params = default if pooling_params is None else pooling_params
        done = self._pooled(prompts, params, use_tqdm, None, lora_request, neutral)
        return [PoolingRequestOutput.of(one, make) for one in done]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        use_tqdm: Bar = True,
        lora_request: LoRARequests = None,
        **neutral: Any,
    ) -> list[ClassificationRequestOutput]:
        """How likely each of a model's labels is for texts. RequestError: it has none."""
        params = pooling_params or PoolingParams(classify=True)
        done = self._pooled(prompts, params, use_tqdm, None, lora_request, neutral)
        return [ClassificationRequestOutput.of(one, _classes) for one in done]

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        use_tqdm: Bar = True,
        lora_request: LoRARequest | None = None,
        **neutral: Any,
    ) -> list[ScoringRequestOutput]:
        """How well texts go together, pair by pair, or one text with each of many."""
        refuse_all_but_none({name: one for name, one in neutral.items() if one is not None})
        processor = self.engine.input_processor
        first = [text_1] if isinstance(text_1, str) else list(text_1)
        second = [text_2] if isinstance(text_2, str) else list(text_2)
        scoring = Scoring(processor.pooler, first, second)
        params = processor.prepare_params(scoring.params)
        prompts = self._adapted(list(scoring.prompts), lora_request, None)
        done = self._finish(prompts, [params] * len(prompts), use_tqdm, "Scoring")
        return [ScoringRequestOutput.of_pair(pair, scoring.score) for pair in scoring.pairs(done)]

    # -- the engine ----------------------------------------------------------------------------

    def get_tokenizer(self) -> Any:
        """The model's tokenizer as transformers has it (``PreTrainedTokenizerBase``)."""
        return for_transformers(
            self.engine.input_processor.tokenizer, tokenizer_directory(self.config)
        )

    def get_metrics(self) -> list[Metric]:
        """What the engine has done and holds: counters and gauges, by their names in /metrics."""
        return self._driver.turn(lambda: figures_of(self.engine, self.capacity.model_name))

    def reset_prefix_cache(self) -> bool:
        """Let nobody find what has been computed until now; true, since it can always be done."""
        self._driver.change(self.engine.reset_prefix_cache)
        return True

    # -- what the verbs share ------------------------------------------------------------------

    def _pooled(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: PoolingParams | Sequence[PoolingParams] | None,
        use_tqdm: Bar,
        priority: int | Sequence[int] | None,
        lora_request: LoRARequests,
        neutral: Mapping[str, Any],
    ) -> list[RequestOutput]:
        refuse_all_but_none(neutral)
        many = self._adapted(as_list(prompts), lora_request, priority)
        each = each_of(params or PoolingParams(), len(many), "pooling_params", PoolingParams)
        return self._finish(many, self._prepared(each), use_tqdm, "Embedding")

    def _adapted(
        self, prompts: list[Prompt], asked: LoRARequests, priority: int | Sequence[int] | None
    ) -> list[Prompt]:
        """Each prompt with its adapter and its place, and with as many tokens as there is room."""
        one = LoRARequest, type(None)
        each: list[LoRARequest | None] = each_of(asked, len(prompts), "lora_requests", one)
        return with_each(with_options(prompts, priority), "adapter", self._adapters.names(each))

    def _prepared(self, params: Sequence[SamplingParams | PoolingParams]) -> list[PreparedParams]:
        ready: dict[int, PreparedParams] = {}  # most often they are the same ones for all
        for number, one in enumerate(params):
            if id(one) not in ready:
                with naming("sampling_params", number, len(params)):
                    ready[id(one)] = self.engine.input_processor.prepare_params(one)
        return [ready[id(one)] for one in params]

    def _finish(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[PreparedParams],
        use_tqdm: Bar,
        doing: str = "Generating",
    ) -> list[RequestOutput]:
        """Run them to their ends; all are checked before the first one runs."""
        clock, prepared = self.engine.clock(), []
        for number, (prompt, ready) in enumerate(zip(prompts, params, strict=True)):
            with naming("prompts", number, len(prompts)):
                prepare = self.engine.input_processor.prepare
                prepared.append(prepare(str(number), prompt, ready, clock))
        tell_shortened(prepared)
        outputs: dict[str, RequestOutput] = {}
        failures: list[QuireError] = []
        make = tqdm if use_tqdm is True or use_tqdm is False else use_tqdm
        with make(total=len(prepared), desc=doing, unit="req", disable=use_tqdm is False) as bar:
            tokens = 0

            def took(delta: Delta) -> None:
                nonlocal tokens
                tokens += len(delta.token_ids)
                if delta.failure is not None:
                    failures.append(delta.failure)
                if delta.final is not None:
                    outputs[delta.request_id] = delta.final
                    rate = tokens / max(bar.format_dict["elapsed"], 1e-9)
                    bar.set_postfix_str(f"{rate:.0f} tok/s", refresh=False)
                    bar.update()

            self._driver.run(prepared, took)
        if failures and len(failures) == len(prepared):
            raise failures[0]
        if failures:
            logger.error("%d of %d requests failed: %s", len(failures), len(outputs), failures[0])
        return [outputs[str(number)] for number in range(len(prompts))]


def pooling_of(
    task: str | None, labels: int
) -> tuple[PoolingParams, Callable[[Sequence[float]], PoolingOutput]]:
    """The default params of ``LLM.encode``, and what it makes of a vector.

    labels: that the model gives.
    """
    task = task or ("classify" if labels else "embed")
    if task not in ("embed", "classify"):
        raise ConfigError(f"pooling_task may be embed or classify, not {task}: of whole texts")
    if task == "embed":
        return PoolingParams(), _tensor
    return PoolingParams(classify=True), lambda logits: _tensor(chances(logits))


def _embedding(vector: Sequence[float]) -> EmbeddingOutput:
    return EmbeddingOutput(list(vector))


def _classes(logits: Sequence[float]) -> ClassificationOutput:
    return ClassificationOutput(chances(logits))


def _tensor(numbers: Sequence[float]) -> PoolingOutput:
    return PoolingOutput(torch.tensor(numbers))
