"""Prometheus metrics: ``quire:`` and what vLLM calls them, or ``vllm:`` too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from quire.blocks.store import DiskStore, Tiers
from quire.blocks.transfer import BlockFetcher, BlockServer
from quire.core.protocol import Request, SchedulingPolicy, Verdict
from quire.engine.engine import Engine
from quire.engine.outputs import Delta, RequestOutput
from quire.engine.streams import num_dropped
from quire.engine.tracing import SpanSender, Standing, Watcher
from quire.http.histograms import GenAIMetrics, StepHistogram

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip
_TOKENS = tuple(2.0**power for power in range(18))
_OWN, _VLLM = "quire:", "vllm:"
# What means in vLLM what it means here. A counter's name is without _total.
_SHARED = frozenset({
    "cache_config_info",
    "e2e_request_latency_seconds",
    "generation_tokens",
    "inter_token_latency_seconds",
    "kv_cache_usage_perc",
    "lora_requests_info",
    "num_preemptions",
    "num_requests_running",
    "num_requests_waiting",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens",
    "request_generation_tokens",
    "request_prompt_tokens",
    "request_success",
    "request_time_per_output_token_seconds",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_drafts",
    "time_to_first_token_seconds",
})  # fmt: skip


class ServerMetrics(Watcher):
    """One app's metrics, in a registry of its own. ``names``: see ``NamedMetrics``.

    ``observe_step`` runs in the engine's thread after every step and only counts what the step
    brought; whatever can be read off the engine is read when Prometheus asks for it.
    """

    def __init__(
        self,
        engine: Engine,
        model_name: str,
        names: str = "quire",
        spans: SpanSender | None = None,
    ) -> None:
        self._registry = CollectorRegistry()
        self._named = NamedMetrics(self._registry, names)
        self._registry.register(_EngineCollector(engine, model_name, spans))
        adapters = engine.capabilities.adapters

        def serves(name: str) -> bool:
            return adapters is not None and name in adapters

        for watcher in (GenAIMetrics(self._registry, model_name, serves), self):
            engine.watchers.add(watcher)
        self._rendering = asyncio.Lock()
        self._rendered = 0.0, b""  # when that began
        self._success = Counter(
            "quire:request_success",
            "Ended requests, by the finish reason of their last output.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._model_name = model_name
        told = "Prompt tokens of ended requests that had been admitted."
        self._prompt_tokens = self._counter("prompt_tokens", told)
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._ttft = self._histogram(
            "time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            _SECONDS,
        )
        self._itl = StepHistogram(
            "quire:inter_token_latency_seconds",
            "Time between two tokens of an output; tokens of one step count once.",
            {"model_name": model_name},
            _SECONDS,
            self._registry,
        )
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Time per output token of a request, after its first token.",
            _SECONDS,
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds",
            "Time from a request's arrival to its last token.",
            _SECONDS,
        )
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self._request_generation = self._histogram(
            "request_generation_tokens", "Generated tokens of a request.", _TOKENS
        )

    def exposition(self) -> bytes:
        """Everything in Prometheus's text format."""
        return generate_latest(cast(CollectorRegistry, self._named))

    async def rendered(self) -> bytes:
        """``exposition``, by a thread, so that nobody's stream waits; once for all who ask."""
        asked = time.monotonic()
        async with self._rendering:
            if self._rendered[0] <= asked:
                begun = time.monotonic()
                self._rendered = begun, await asyncio.to_thread(self.exposition)
            return self._rendered[1]

    def ended(self, request: Request, standing: Standing) -> None:
        """Count what was computed for a request, however it has ended."""
        metrics = standing.metrics
        if metrics.peak_blocks or None not in standing.finish_reasons:
            self._prompt_tokens.inc(metrics.num_prompt_tokens)

    def observe_step(self, deltas: Sequence[Delta]) -> None:
        """Count what one step of the engine gave."""
        num_tokens, between = 0, list[float]()
        for delta in deltas:
            num_tokens += len(delta.token_ids)
            if not delta.first:
                if delta.token_ids:
                    between.append(delta.seconds)
            elif delta.index == 0:  # a request's outputs begin together: counted once
                self._ttft.observe(delta.seconds)
            if delta.final is not None and delta.finish_reason is not None:
                self._observe_end(delta.final, delta.finish_reason)
        self._generation_tokens.inc(num_tokens)
        self._itl.observe(between)

    def observe_aborted(self, count: int) -> None:
        """Count requests that were ended from outside: the engine's steps do not tell of them."""
        self._success.labels(self._model_name, "abort").inc(count)

    def _observe_end(self, output: RequestOutput, reason: str) -> None:
        metrics = output.metrics
        self._success.labels(self._model_name, reason).inc()
        self._e2e.observe(metrics.e2e_latency)
        if metrics.tpot is not None:
            self._tpot.observe(metrics.tpot)
        self._request_prompt.observe(metrics.num_prompt_tokens)
        self._request_generation.observe(metrics.num_output_tokens)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"quire:{name}", text, ["model_name"], registry=self._registry)
        return counter.labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(
            f"quire:{name}", text, ["model_name"], registry=self._registry, buckets=buckets
        )
        return histogram.labels(self._model_name)


class _EngineCollector:
    """What the scheduler, the KV pool and the engine's counters say at this moment.

    Read from another thread than theirs: each number is right by itself, but two of them may be
    from either side of a step.
    """

    def __init__(self, engine: Engine, model_name: str, spans: SpanSender | None) -> None:
        self._engine, self._spans = engine, spans
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        scheduler, stats = self._engine.scheduler, self._engine.scheduler.stats
        yield self._gauge("num_requests_running", "Running requests.", len(scheduler.running))
        yield self._gauge(
            "num_sessions", "Open streaming sessions.", self._engine.sessions.num_open
        )
        if self._engine.capabilities.others is not None:
            text = "Ranks that compute every step together."
            yield self._gauge("tensor_parallel_size", text, self._engine.capabilities.others.size)
        if self._engine.recorder is not None:
            text = "1 while requests are recorded, 0 after a failure."
            yield self._gauge("trace_recording", text, self._engine.recorder.recording)
        line, room = scheduler.queue, self._engine.waiting_room
        yield self._gauge("num_requests_waiting", "Waiting requests.", line.num_waiting)
        if line.policy is SchedulingPolicy.FAIR:
            yield self._gauge(
                "num_clients_waiting",
                "Clients with waiting requests.",
                line.newcomers.num_clients,
            )
        yield self._counter(
            "queue_full", "Requests refused because too many were waiting.", room.num_refused
        )
        yield self._counter(
            "queue_timeout",
            "Requests that exceeded the longest queue time.",
            stats.decisions[Verdict.EXPIRE.value],
        )
        yield from self._kv_cache()
        yield from self._events()
        yield from self._transfer()
        yield from self._speculation()
        yield from self._adapters()
        yield from self._store(stats.prefix_fetched)
        yield self._counter(
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_queries,
        )
        yield self._counter(
            "prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits
        )
        yield self._counter(
            "prefix_cache_evicted",
            "Prompt tokens missed because their blocks had been evicted.",
            stats.prefix_evicted,
        )
        yield self._counter(
            "prefix_cache_tails",
            "Prompt tokens missed because their last block was not full.",
            stats.prefix_tails,
        )
        yield self._decisions(stats.decisions)
        yield self._counter(
            "num_preemptions", "Preemptions, by swap and by recompute.", stats.num_preemptions
        )
        yield self._counter(
            "swap_blocks_failed",
            "Blocks that could not be swapped, or came back damaged, and were recomputed.",
            self._engine.stats.num_failed_swaps,
        )
        yield self._counter(
            "integrity_faults",
            "Times that the KV pool's counters were wrong between requests, and were corrected.",
            self._engine.stats.num_faults,
        )
        yield self._counter(
            "log_lines_dropped",
            "Log lines dropped because their reader had stopped.",
            num_dropped(),
        )

    def _kv_cache(self) -> Iterator[Metric]:
        usage = self._engine.scheduler.allocator.usage()
        taken = 1 - (usage.cached + usage.free) / usage.capacity if usage.capacity else 0.0
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", taken)
        labels = ["model_name", "state"]
        slots = GaugeMetricFamily("quire:kv_cache_slots", "KV cache slots by state.", labels=labels)
        for state, count in usage._asdict().items():
            slots.add_metric([self._model_name, state], max(0, count))  # may be torn, see above
        yield slots
        seconds = CounterMetricFamily(
            "quire:kv_slot_seconds",
            "KV cache slots by state, times seconds of steps.",
            labels=labels,
        )
        for state, total in self._engine.stats.slot_seconds.items():
            seconds.add_metric([self._model_name, state], total)
        yield seconds
        yield self._cache_config()

    def _cache_config(self) -> Metric:
        """As vLLM tells it: facts in labels."""
        scheduler = self._engine.scheduler
        size, caching = scheduler.allocator.block_size, scheduler.prefix_cache is not None
        facts = {
            "model_name": self._model_name,
            "block_size": str(size),
            "num_gpu_blocks": str(scheduler.allocator.usage().capacity // size),
            "enable_prefix_caching": str(caching),
        }
        told = "The KV cache: its blocks, of all KV groups, in any memory."
        metric = GaugeMetricFamily("quire:cache_config_info", told, labels=[*facts])
        metric.add_metric([*facts.values()], 1)
        return metric

    def _events(self) -> Iterator[Metric]:
        """Nothing where none are published."""
        events, spans = self._engine.capabilities.events, self._spans
        if spans is not None:
            yield self._counter("spans_sent", "Requests whose span was sent.", spans.num_sent)
            told = "Requests whose span the collector did not accept."
            yield self._counter("spans_dropped", told, spans.num_dropped)
        if events is not None:
            told = "Where KV events are published, and with which data parallel rank."
            at = {"endpoint": events.endpoint, "replay_endpoint": events.replay_endpoint or ""}
            facts = {"model_name": self._model_name, **at, "data_parallel_rank": str(events.rank)}
            place = GaugeMetricFamily("quire:kv_events_info", told, labels=[*facts])
            place.add_metric([*facts.values()], 1)
            yield place
            told = "Published batches of KV events."
            yield self._counter("kv_events_published", told, events.num_published)
            told = "Batches of KV events dropped because too many waited to be sent."
            yield self._counter("kv_events_dropped", told, events.num_dropped)

    def _transfer(self) -> Iterator[Metric]:
        """Of an engine that prefills for others, or decodes what they have prefilled."""
        transfer = self._engine.capabilities.transfer
        if isinstance(transfer, BlockServer):
            told = "KV blocks sent to decode engines."
            yield self._counter("kv_transfer_sent_blocks", told, transfer.num_sent)
        if isinstance(transfer, BlockFetcher):
            told = "KV blocks fetched from prefill engines."
            yield self._counter("kv_transfer_fetched_blocks", told, transfer.num_fetched)
            told = "Transfers that failed; missing blocks were computed."
            yield self._counter("kv_transfer_failures", told, transfer.num_failed)
            told = "KV blocks that prefill engines did not have."
            yield self._counter("kv_transfer_missing_blocks", told, transfer.num_missing)
            told = "KV blocks that were fetched, and evicted before use."
            yield self._counter("kv_transfer_unused_blocks", told, transfer.num_unused)

    def _speculation(self) -> Iterator[Metric]:
        """Nothing where nobody drafts."""
        speculation, stats = self._engine.capabilities.speculation, self._engine.stats
        if speculation is None:
            return
        told = "Sequences in a step with draft tokens."
        yield self._counter("spec_decode_num_drafts", told, stats.num_drafts)
        told = "Draft tokens."
        yield self._counter("spec_decode_num_draft_tokens", told, stats.num_draft_tokens)
        told = "Accepted draft tokens."
        yield self._counter("spec_decode_num_accepted_tokens", told, stats.num_accepted_tokens)
        by_position = CounterMetricFamily(
            "quire:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position among the drafts of a sequence.",
            labels=["model_name", "position"],
        )
        for position, count in enumerate(stats.accepted_by_position):
            by_position.add_metric([self._model_name, str(position)], count)
        yield by_position
        told = "Bytes of memory of the drafters."
        yield self._gauge("spec_decode_drafter_bytes", told, speculation.num_bytes)

    def _adapters(self) -> Iterator[Metric]:
        """Nothing where none are served. As vLLM has it: names in labels, the time as the value."""
        adapters, slots = self._engine.capabilities.adapters, self._engine.scheduler.adapters
        if adapters is None:
            return
        labels = ["model_name", "max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        told = "Adapters of running and of waiting requests; the value is the time."
        metric = GaugeMetricFamily("quire:lora_requests_info", told, labels=labels)
        running = slots.in_use
        names = (
            ",".join(one.name for one in some) for some in (running, adapters.waiting(running))
        )
        metric.add_metric([self._model_name, str(slots.most), *names], time.time())
        yield metric
        told = "Adapters whose weights are in memory."
        yield self._gauge("lora_adapters_in_memory", told, len(adapters.weights))

    def _store(self, fetched: int) -> Iterator[Metric]:
        """Nothing where all that is kept is in the pool."""
        store = self._engine.capabilities.store
        if store is None:
            return
        told = "Prompt tokens fetched from outside the pool."
        yield self._counter("kv_store_hits", told, fetched)
        if isinstance(store, Tiers):
            told = "Blocks fetched from main memory."
            yield self._counter("kv_offloading_read_blocks", told, store.num_read)
            told = "Bytes of blocks in main memory."
            yield self._gauge("kv_offloading_bytes", told, store.shelf.num_bytes)
            store = store.disk
        if store is not None:
            yield from self._disk(store)

    def _disk(self, store: DiskStore) -> Iterator[Metric]:
        counts = store.counts
        told = "Blocks fetched from the store."
        yield self._counter("kv_store_read_blocks", told, counts.read_blocks)
        yield self._counter(
            "kv_store_read_bytes", "Bytes fetched from the store.", counts.read_bytes
        )
        told = "Blocks that were gone or damaged when they were to be fetched."
        yield self._counter("kv_store_bad_blocks", told, counts.bad_blocks)
        told = "Blocks written to the store."
        yield self._counter("kv_store_written_blocks", told, counts.written_blocks)
        yield self._counter(
            "kv_store_written_bytes", "Bytes written to the store.", counts.written_bytes
        )
        told = "Blocks evicted from the store."
        yield self._counter("kv_store_evicted_blocks", told, counts.evicted_blocks)
        told = "Bytes on disk, of all engines that share the store."
        yield self._gauge("kv_store_bytes", told, store.num_bytes)
        told = "1 while blocks are stored, 0 after a failure."
        yield self._gauge("kv_store_writing", told, not store.quiet)

    def _decisions(self, decisions: Mapping[str, int]) -> Metric:
        labels = ["model_name", "verdict"]
        metric = CounterMetricFamily(
            "quire:decisions", "The scheduler's decisions about requests.", labels=labels
        )
        for verdict in Verdict:
            metric.add_metric([self._model_name, verdict.value], decisions.get(verdict.value, 0))
        return metric

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        metric = GaugeMetricFamily(f"quire:{name}", text, labels=["model_name"])
        metric.add_metric([self._model_name], value)
        return metric

    def _counter(self, name: str, text: str, value: float) -> Metric:
        metric = CounterMetricFamily(f"quire:{name}", text, labels=["model_name"])
        metric.add_metric([self._model_name], value)
        return metric


class NamedMetrics:
    """A registry's metrics by other names, to be collected.

    names: quire, vllm or both.
    """

    def __init__(self, registry: CollectorRegistry, names: str) -> None:
        self._registry = registry
        self._names = names

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            shared = metric.name.removeprefix(_OWN) in _SHARED
            if self._names != "vllm" or not shared:
                yield metric
            if self._names != "quire" and shared:
                yield _as_vllms(metric)


def _as_vllms(metric: Metric) -> Metric:
    copy = Metric(_renamed(metric.name), metric.documentation, metric.type)
    copy.samples = [sample._replace(name=_renamed(sample.name)) for sample in metric.samples]
    return copy


def _renamed(name: str) -> str:
    return _VLLM + name.removeprefix(_OWN)
