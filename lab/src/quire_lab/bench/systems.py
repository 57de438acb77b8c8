"""What is measured: an engine in this process, or a server over HTTP with streaming clients."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from quire.core.errors import ConfigError, EngineError
from quire.engine.llm import LLM
from quire.engine.metrics import RequestMetrics
from quire.tools.doctor.machine import read_bandwidth
from quire_lab.bench.http_client import HttpClient, HttpReply
from quire_lab.bench.processes import peak_rss
from quire_lab.bench.workloads import BenchRequest

_COUNTER = r"^\w+:spec_decode_%s_total(?:\{.*\})? (\S+)$"


class BenchOutcome(NamedTuple):
    """The result of one request: its times, or its error."""

    metrics: RequestMetrics | None
    error: str | None = None


class Drafts(NamedTuple):
    """Counters of speculation."""

    num_drafts: int  # times that a sequence was drafted for in a step
    num_draft_tokens: int
    num_accepted_tokens: int

    def since(self, before: Drafts) -> Drafts:
        now, then = self, before
        return Drafts(now[0] - then[0], now[1] - then[1], now[2] - then[2])


_NO_DRAFTS = Drafts(0, 0, 0)


class BenchRun(NamedTuple):
    """The result of a workload."""

    outcomes: list[BenchOutcome]
    seconds: float  # from the first request to the last token
    drafts: Drafts | None = None  # None: nothing is told of any
    steps: int = 0  # of an engine in this process

    def all_metrics(self) -> list[RequestMetrics]:
        """Metrics of every request; EngineError if one failed or ended early."""
        lost = [outcome.error for outcome in self.outcomes if outcome.error is not None]
        if lost:
            raise EngineError(f"{len(lost)} of {len(self.outcomes)} requests failed: {lost[0]}")
        return [outcome.metrics for outcome in self.outcomes if outcome.metrics is not None]


class ServingSystem(Protocol):
    """Something that serves a model."""

    @property
    def model(self) -> str: ...

    @property
    def max_model_len(self) -> int | None: ...

    def run(self, requests: Sequence[BenchRequest]) -> BenchRun:
        """Serve the requests, greedily and to their full lengths."""
        ...

    def bytes_read(self, steps: int, metrics: Sequence[RequestMetrics]) -> float | None:
        """The least that ``steps`` read to decode these requests: the weights of one token, and
        the keys and values before each. None: nobody knows.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Further facts to report once the requests have run."""
        ...


class Offline:
    """An engine in this process. Requests are taken all at once, whatever their arrival."""

    def __init__(self, **options: Any) -> None:
        started = time.perf_counter()
        self._llm = LLM(**options)
        self._load_seconds = time.perf_counter() - started
        self.model = self._llm.capacity.model_name
        self.max_model_len: int | None = self._llm.capacity.max_model_len
        self.engine = self._llm.engine

    def run(self, requests: Sequence[BenchRequest]) -> BenchRun:
        params = [
            self._llm.default_sampling_params(temperature=0, max_tokens=n, ignore_eos=True)
            for n in (request.max_tokens for request in requests)
        ]
        before, steps, started = self._drafts(), self.engine.stats.num_steps, time.perf_counter()
        outputs = self._llm.generate([r.prompt for r in requests], params, use_tqdm=False)
        seconds = time.perf_counter() - started
        pairs = zip(requests, (output.metrics for output in outputs), strict=True)
        outcomes = [_checked(request, metrics) for request, metrics in pairs]
        steps = self.engine.stats.num_steps - steps
        return BenchRun(outcomes, seconds, self._drafts().since(before), steps)

    def bytes_read(self, steps: int, metrics: Sequence[RequestMetrics]) -> float | None:
        capacity = self._llm.capacity
        keys_and_values = sum(
            (one.num_output_tokens - 1)
            * capacity.kv_bytes_read(one.num_prompt_tokens + one.num_output_tokens / 2)
            for one in metrics
        )
        return steps * capacity.token_bytes + keys_and_values

    def _drafts(self) -> Drafts:
        stats = self._llm.engine.stats
        return Drafts(stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens)

    def facts(self) -> dict[str, Any]:
        capacity, peak = self._llm.capacity, peak_rss()
        known = capacity.ranks == 1 and not torch.cuda.memory_allocated()  # nor is it a GPU
        return {
            "load_seconds": self._load_seconds,
            "peak_rss_bytes": peak,
            "read_bandwidth": read_bandwidth() if known else None,
            "pool_bytes": capacity.pool_bytes,
            "weight_bytes": capacity.weight_bytes,
            "token_bytes": capacity.token_bytes,
            "kv_bytes_per_token": capacity.kv_bytes_per_token,
            "dtype": capacity.dtype,
        }


class Online:
    """A server that speaks OpenAI's completions API and knows ``ignore_eos``.

    ``model`` is its name in requests; by default the first that the server lists.
    """

    engine = None  # of this process

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        if max_concurrency is not None and max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1, got {max_concurrency}")
        self._client = HttpClient(url, api_key)
        self._max_concurrency = max_concurrency
        try:
            cards = json.loads(asyncio.run(self._client.get("/v1/models")))["data"]
            card = next(card for card in cards if model in (None, card["id"]))
        except StopIteration:
            raise ConfigError(f"{url} has no model {model}") from None
        except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{url} does not list its models: {error!r}") from error
        self.model: str = card["id"]
        self.max_model_len: int | None = card.get("max_model_len")

    def run(self, requests: Sequence[BenchRequest]) -> BenchRun:
        return asyncio.run(self._run(requests))

    async def _run(self, requests: Sequence[BenchRequest]) -> BenchRun:
        clients = asyncio.Semaphore(self._max_concurrency) if self._max_concurrency else None
        before = await self._drafts()
        started = time.perf_counter()
        outcomes = await asyncio.gather(*(self._serve(r, started, clients) for r in requests))
        ends = [outcome.metrics.finished_time for outcome in outcomes if outcome.metrics]
        after = await self._drafts()
        drafts = None if after is None else after.since(before or _NO_DRAFTS)
        return BenchRun(outcomes, max(ends, default=started) - started, drafts)

    async def _drafts(self) -> Drafts | None:
        try:
            return drafts_in(await self._client.get("/metrics"))
        except (OSError, EOFError, ValueError):  # there is no such page, or not for everybody
            return None

    async def _serve(
        self, request: BenchRequest, started: float, clients: asyncio.Semaphore | None
    ) -> BenchOutcome:
        await asyncio.sleep(max(0.0, started + request.arrival - time.perf_counter()))
        body = {
            "model": self.model, "prompt": request.prompt, "max_tokens": request.max_tokens,
            "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        async with clients or nullcontext():
            sent = time.perf_counter()
            try:
                async with self._client.send("POST", "/v1/completions", body) as reply:
                    return await _read(reply, request, sent)
            except (OSError, EOFError, ValueError) as error:
                return BenchOutcome(None, repr(error))

    def bytes_read(self, steps: int, metrics: Sequence[RequestMetrics]) -> float | None:
        return None

    def facts(self) -> dict[str, Any]:
        return {"max_concurrency": self._max_concurrency}


def drafts_in(metrics: str) -> Drafts | None:
    """The counters of drafts in /metrics, here as in vLLM; None: there are none."""
    found = [re.findall(_COUNTER % name, metrics, re.M) for name in Drafts._fields]
    if not all(found):
        return None
    drafts, drafted, accepted = (int(sum(map(float, counts))) for counts in found)
    return Drafts(drafts, drafted, accepted)


async def _read(reply: HttpReply, request: BenchRequest, sent: float) -> BenchOutcome:
    """Read a stream to its end."""
    if reply.status != 200:
        return BenchOutcome(None, f"status {reply.status}: {(await reply.body())[:500].decode()}")
    first: float | None = None
    usage: dict[str, Any] = {}
    async for event in reply.events():
        if "error" in event:
            return BenchOutcome(None, str(event["error"]))
        if first is None and event.get("choices"):
            first = time.perf_counter()
        usage = event.get("usage") or usage
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    metrics = RequestMetrics(
        arrival_time=sent,
        first_token_time=first,
        finished_time=time.perf_counter(),
        num_prompt_tokens=usage.get("prompt_tokens", 0),
        num_output_tokens=usage.get("completion_tokens", 0),
        cached_tokens=cached,
        peak_blocks=0,  # a server does not tell
        block_seconds=0.0,
    )
    return _checked(request, metrics)


def _checked(request: BenchRequest, metrics: RequestMetrics) -> BenchOutcome:
    came = metrics.num_output_tokens
    if came != request.max_tokens:
        return BenchOutcome(metrics, f"{came} of {request.max_tokens} tokens came")
    return BenchOutcome(metrics)
