"""``LLM`` for programs with an event loop: requests as async iterators, as vLLM's users know it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from quire.capabilities.adapters.named import LoRARequest, NamedAdapters
from quire.engine.assembly import build_engine, tokenizer_directory
from quire.engine.async_engine import Deltas
from quire.engine.config import EngineConfig
from quire.engine.engine_loop import EngineLoop
from quire.engine.figures import Metric, figures_of
from quire.engine.input_processor import Prompt, chat_variables
from quire.engine.llm import pooling_of
from quire.engine.many import refuse_all_but_none, with_each, with_options
from quire.engine.outputs import Delta, OutputsSoFar, RequestOutput, RunningOutput
from quire.engine.vector_outputs import PoolingOutput, PoolingRequestOutput
from quire.text.chat_template import Message
from quire.text.for_transformers import for_transformers
from quire.text.params import PoolingParams, SamplingParams

_T = TypeVar("_T")


class AsyncLLM:
    """Generation for programs with an event loop, as vLLM's users know it.

    It takes what ``LLM`` takes. ``async with AsyncLLM(...) as llm:`` closes it at the end. Several
    requests may run at once, and are computed together; each gives what it would give alone, and
    what ``LLM`` gives.

    Its iterators may be used in any event loop, in several threads too, and after ``asyncio.run``
    in the next one. Nothing runs before the first ``anext``. A request ends when its iterator is
    left or closed, or the task that reads it is cancelled: its blocks are freed before the next
    step. An error is raised by the iterator that it concerns.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        name = None if model is None else str(model)
        options.pop("enable_prompt_embeds", None)  # vLLM's switch: here they can always be given
        self.config = EngineConfig.create({"model": name, **options})
        self.engine, self.capacity = build_engine(self.config)
        if "max_num_waiting" not in options:
            self.engine.waiting_room.lift_limits()
        self._loop = EngineLoop(self.engine)
        self._adapters = NamedAdapters(self.engine.capabilities.adapters, self._loop)
        self._numbers = count()  # of requests
        # Python may be in any thread, and hold any lock, as it collects garbage.
        weakref.finalize(self, self._loop.close, wait=False).atexit = False

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End it after the step under way. What runs ends with an EngineError, and so do calls."""
        self._loop.close()

    def shutdown(self) -> None:
        """The same, by vLLM's name for it."""
        self.close()

    # -- tokens --------------------------------------------------------------------------------

    def default_sampling_params(self, **given: Any) -> SamplingParams:
        """SamplingParams with the model's own defaults for what is not given."""
        return SamplingParams.over(self.engine.input_processor.sampling_defaults, given)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int | None = None,
        **neutral: Any,
    ) -> AsyncGenerator[RunningOutput | RequestOutput, None]:
        """A prompt's outputs as they grow, each time all of them, the last time as ``finished``.

        RequestError, before anything has come, names the field that is wrong; a request that fails
        ends with its error. Without sampling_params, the model's own defaults hold. A search's
        outputs, and the best of several, are known at the end only. ``priority``, for
        scheduling_policy="priority": the lower, the sooner. ``neutral``: arguments of vLLM's that
        are None.
        """
        refuse_all_but_none(neutral)
        params = self.default_sampling_params() if sampling_params is None else sampling_params
        request_id = self._name(request_id)
        sofar = OutputsSoFar(params.width)
        grows = params.width == params.num_outputs and not params.use_beam_search
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        adapted = await self._adapted(prompt, lora_request, priority)
        async with aclosing(self._deltas(request_id, adapted, params)) as steps:
            async for deltas in steps:
                for delta in deltas:
                    sofar.add(delta)
                if (final := deltas[-1].final) is not None:
                    yield final
                elif grows:
                    said = text if isinstance(text, str) else None
                    yield RunningOutput(request_id, said, sofar.copies())

    async def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """The same as what its outputs gain, the last delta holding the RequestOutput."""
        params = self.default_sampling_params() if sampling_params is None else sampling_params
        adapted = await self._adapted(prompt, lora_request, priority)
        async with aclosing(self._deltas(self._name(request_id), adapted, params)) as steps:
            async for deltas in steps:
                for delta in deltas:
                    yield delta

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int | None = None,
        **template: Any,
    ) -> AsyncGenerator[RunningOutput | RequestOutput, None]:
        """The answer in a conversation, as ``generate``. template: see ``LLM.chat``, from
        chat_template on."""
        begin = partial(self._loop.engine.begin_chat, messages, chat_variables(**template))
        prompt = (await self._loop.ask(begin)).token_ids
        answer = self.generate(prompt, sampling_params, request_id, lora_request, priority=priority)
        async with aclosing(answer) as outputs:
            async for output in outputs:
                yield output

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        *,
        pooling_task: str | None = None,
        **neutral: Any,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """What the model makes of a text, once: see ``LLM.encode``."""
        refuse_all_but_none(neutral)
        default, make = pooling_of(pooling_task, self.engine.input_processor.num_labels)
        params, adapted = pooling_params or default, await self._adapted(prompt, lora_request, None)
        async with aclosing(self._deltas(self._name(request_id), adapted, params)) as steps:
            async for deltas in steps:
                if (final := deltas[-1].final) is not None:
                    yield PoolingRequestOutput[PoolingOutput].of(final, make)

    async def abort(self, request_id: str) -> None:
        """End a request, if it runs: its iterator raises a RequestAbortedError."""
        await self._loop.abort(request_id)

    # -- the engine ----------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it takes requests: it is neither closed nor dead."""
        return self._loop.healthy

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer as transformers has it (``PreTrainedTokenizerBase``)."""
        own, directory = self.engine.input_processor.tokenizer, tokenizer_directory(self.config)
        return await asyncio.to_thread(for_transformers, own, directory)

    async def get_metrics(self) -> list[Metric]:
        """What the engine has done and holds: counters and gauges, by their names in /metrics."""
        return await self._between_steps(partial(figures_of, self.engine, self.capacity.model_name))

    async def reset_prefix_cache(self) -> bool:
        """Let nobody find what has been computed until now; true, since it can always be done."""
        await self._between_steps(self.engine.reset_prefix_cache)
        return True

    # -- what the verbs share ------------------------------------------------------------------

    def _name(self, request_id: str | None) -> str:
        return f"request-{next(self._numbers)}" if request_id is None else request_id

    async def _adapted(
        self, prompt: Prompt, adapter: LoRARequest | None, priority: int | None
    ) -> Prompt:
        """The prompt with its adapter and its rank, and with as many tokens as there is room."""
        names: list[str | None] = [None]
        if adapter is not None:  # its files may have to be read
            names = await asyncio.to_thread(self._adapters.names, [adapter])
        return with_each(with_options([prompt], priority), "adapter", names)[0]

    async def _deltas(
        self, request_id: str, prompt: Prompt, params: SamplingParams | PoolingParams
    ) -> Deltas:
        """What one request gives. Raises the error with which it ends."""
        # A name of its own: what a request gives that has just been left is not taken for this
        # one's, if its caller calls both the same.
        own = f"{request_id}-{next(self._numbers)}"
        begin = partial(self._loop.engine.generate, {own: prompt}, params)
        async with aclosing(self._loop.stream(request_id, begin)) as steps:
            async for deltas in steps:
                for delta in deltas:
                    if delta.failure is not None:
                        raise delta.failure
                if deltas:
                    yield [_named(delta, request_id) for delta in deltas]

    async def _between_steps(self, act: Callable[[], _T]) -> _T:
        return await self._loop.ask(partial(self._loop.engine.call, act))


def _named(delta: Delta, request_id: str) -> Delta:
    """A delta with the id that the request's caller gave."""
    final = delta.final
    renamed = None if final is None else replace(final, request_id=request_id)
    return delta._replace(request_id=request_id, final=renamed)
