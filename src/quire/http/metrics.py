"""Prometheus metrics: ``quire:`` and what vLLM calls them, or ``vllm:`` too."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from quire.blocks.store import DiskStore, StoreCounts, places_of
from quire.blocks.transfer import BlockFetcher, BlockServer
from quire.core.protocol import FinishReason, Verdict
from quire.engine.engine import Engine
from quire.engine.events import RequestState, Taken, Watcher
from quire.engine.recorder import RequestRecorder
from quire.engine.streams import num_dropped
from quire.engine.tracing import PROVIDER, SpanSender
from quire.http.unknown_fields import NOTES

OTHERS = "_unloaded"
"""The name of all that are not there any more, and of others that are called so."""
# The buckets are those that the conventions advise.
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_LATER = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class _Counts:
    """Values by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds  # the largest values of the buckets, but for the last one
        self._counts = [0] * (len(bounds) + 1)
        self._sum, self._created = 0.0, time.time()

    def observe(self, values: Sequence[float]) -> None:
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def take_over(self, other: _Counts) -> None:
        """Count what the other has counted."""
        self._counts = [own + more for own, more in zip(self._counts, other._counts, strict=True)]
        self._sum += other._sum
        self._created = min(self._created, other._created)

    def add_to(self, metric: HistogramMetricFamily, labels: Mapping[str, str]) -> None:
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        totals = zip(names, accumulate(self._counts), strict=True)
        metric.add_metric([*labels.values()], [*totals], self._sum)
        metric.add_sample(f"{metric.name}_created", dict(labels), self._created)


class StepHistogram:
    """As prometheus_client's, which for each value takes two locks and looks at bucket by bucket.

    One thread tells it of values; another that collects meanwhile may see some of a step's.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts = _Counts(bounds)
        self.observe = self._counts.observe
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        metric = HistogramMetricFamily(self._name, self._text, labels=[*self._labels])
        self._counts.add_to(metric, self._labels)
        yield metric


class ForgettingHistogram:
    """One for each set of labels, as long as who is named by one of them is there.

    What was counted of others is counted under the name OTHERS, so that no sum goes down.

    label: the one by which that goes; is_there: whether the one of that name is.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
        label: str,
        is_there: Callable[[str], bool],
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._index, self._is_there = [*labels].index(label), is_there
        self._all: dict[tuple[str, ...], _Counts] = {}
        self._lock = threading.Lock()
        registry.register(self)

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        """Count a value; from any thread."""
        with self._lock:
            if labels not in self._all:
                self._forget()
            self._of(self._known(labels)).observe([value])

    def collect(self) -> Iterator[Metric]:
        metric = HistogramMetricFamily(self._name, self._text, labels=[*self._labels])
        with self._lock:
            self._forget()
            for labels, counts in self._all.items():
                counts.add_to(metric, dict(zip(self._labels, labels, strict=True)))
        yield metric

    def _of(self, labels: tuple[str, ...]) -> _Counts:
        if labels not in self._all:
            self._all[labels] = _Counts(self._bounds)
        return self._all[labels]

    def _known(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels under which these are counted now."""
        index = self._index
        there = labels[index] == OTHERS or self._is_there(labels[index])
        return labels if there else (*labels[:index], OTHERS, *labels[index + 1 :])

    def _forget(self) -> None:
        for labels in [*self._all]:
            if (known := self._known(labels)) != labels:
                self._of(known).take_over(self._all.pop(labels))


class GenAIMetrics(Watcher):
    """Counts each request as it ends.

    serves: whether an adapter is still served; what is counted by the names of others is not kept.
    """

    def __init__(
        self, registry: CollectorRegistry, model_name: str, serves: Callable[[str], bool]
    ) -> None:
        self._model_name = model_name

        def is_there(name: str) -> bool:
            return name == model_name or serves(name)

        def histogram(
            name: str, text: str, buckets: Sequence[float], *more: str
        ) -> ForgettingHistogram:
            name, labels = f"gen_ai_server_{name}_seconds", [*_LABELS, *more]
            return ForgettingHistogram(name, text, labels, buckets, registry, _LABELS[-1], is_there)

        text = "From a request's arrival to its end."
        self._duration = histogram("request_duration", text, _DURATION, "error_type")
        text = "From its arrival to its first token."
        self._first = histogram("time_to_first_token", text, _FIRST)
        text = "For each token after the first."
        self._later = histogram("time_per_output_token", text, _LATER)

    def ended(self, state: RequestState) -> None:
        metrics = state.metrics
        labels = state.operation, PROVIDER, state.served_by(self._model_name)
        self._duration.observe((*labels, state.error or ""), metrics.e2e_latency)
        if metrics.ttft is not None:
            self._first.observe(labels, metrics.ttft)
        if metrics.tpot is not None:
            self._later.observe(labels, metrics.tpot)


_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip
_TOKENS = tuple(2.0**power for power in range(18))
_OWN, _VLLM = "quire:", "vllm:"
# What means in vLLM what it means here. A counter's name is without _total.
_SHARED = frozenset({
    "cache_config_info", "e2e_request_latency_seconds", "generation_tokens",
    "inter_token_latency_seconds", "kv_cache_usage_perc", "lora_requests_info", "num_preemptions",
    "num_requests_running", "num_requests_waiting", "prefix_cache_hits", "prefix_cache_queries",
    "prompt_tokens", "request_generation_tokens", "request_prompt_tokens", "request_success",
    "request_time_per_output_token_seconds", "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos", "spec_decode_num_draft_tokens",
    "spec_decode_num_drafts", "time_to_first_token_seconds",
})  # fmt: skip


class ServerMetrics(Watcher):
    """One app's metrics, in a registry of its own. ``names``: see ``NamedMetrics``.

    Events are only counted; whatever can be read off the engine is read when Prometheus asks for
    it.
    """

    def __init__(self, engine: Engine, model_name: str, names: str = "quire") -> None:
        self._registry = CollectorRegistry()
        self._named = NamedMetrics(self._registry, names)
        self._registry.register(_EngineCollector(engine, model_name))
        adapters = engine.capabilities.adapters

        def serves(name: str) -> bool:
            return adapters is not None and name in adapters

        for watcher in (GenAIMetrics(self._registry, model_name, serves), self):
            engine.events.add(watcher)
        self._rendering = asyncio.Lock()
        self._rendered = 0.0, b""  # when that began
        self._success = Counter(
            "quire:request_success",
            "Ended requests, by the finish reason of their last output.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._left_out = Counter(
            "quire:fields_left_out",
            "Fields of requests that Quire does not have, and that were left out; _other: any that "
            "came with a beta.",
            ["model_name", "field"],
            registry=self._registry,
        )
        self._model_name = model_name
        text = "Prompt tokens of ended requests that had been admitted."
        self._prompt_tokens = self._counter("prompt_tokens", text)
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        text = "Processor time to follow grammars, of ended requests."
        self._grammars = self._counter("grammar_seconds", text)
        text = "Time of steps for log-probabilities, edits of logits and stop strings, likewise."
        self._beside = self._counter("beside_seconds", text)
        text = "Time from a request's arrival to its first token."
        self._ttft = self._histogram("time_to_first_token_seconds", text, _SECONDS)
        text = "Time between two tokens of an output; tokens of one step count once."
        name, labels = "quire:inter_token_latency_seconds", {"model_name": model_name}
        self._itl = StepHistogram(name, text, labels, _SECONDS, self._registry)
        text = "Time per output token of a request, after its first token."
        self._tpot = self._histogram("request_time_per_output_token_seconds", text, _SECONDS)
        text = "Time from a request's arrival to its last token."
        self._e2e = self._histogram("e2e_request_latency_seconds", text, _SECONDS)
        text = "Prompt tokens of a request."
        self._request_prompt = self._histogram("request_prompt_tokens", text, _TOKENS)
        text = "Generated tokens of a request."
        self._request_generation = self._histogram("request_generation_tokens", text, _TOKENS)

    def read(self) -> Iterator[Metric]:
        """Read all metrics, from any thread."""
        return self._named.collect()

    def exposition(self) -> bytes:
        """Everything in Prometheus's text format."""
        return generate_latest(cast(CollectorRegistry, self._named))

    async def rendered(self) -> bytes:
        """``exposition``, by a thread, so that nobody's stream waits; once for all who ask."""
        since = time.monotonic()
        async with self._rendering:
            if self._rendered[0] <= since:
                begun = time.monotonic()
                self._rendered = begun, await asyncio.to_thread(self.exposition)
            return self._rendered[1]

    def took(self, taken: Taken) -> None:
        for seconds in taken.to_first:
            self._ttft.observe(seconds)
        self._generation_tokens.inc(taken.num_tokens)
        self._itl.observe(taken.between)

    def ended(self, state: RequestState) -> None:
        """Count what was computed for a request, however it has ended."""
        metrics = state.metrics
        if metrics.peak_blocks or None not in state.finish_reasons:
            self._prompt_tokens.inc(metrics.num_prompt_tokens)
        self._grammars.inc(metrics.grammar_seconds)
        self._beside.inc(metrics.beside_seconds)
        if state.error is None and state.reason == FinishReason.ABORT.value:
            return  # its caller has left, and is counted by who has heard of that first
        self._success.labels(self._model_name, state.reason).inc()
        self._e2e.observe(metrics.e2e_latency)
        if metrics.tpot is not None:
            self._tpot.observe(metrics.tpot)
        self._request_prompt.observe(metrics.num_prompt_tokens)
        self._request_generation.observe(metrics.num_output_tokens)

    def observe_aborted(self, count: int) -> None:
        """Count requests whose callers have left, which the engine learns after its step."""
        self._success.labels(self._model_name, FinishReason.ABORT.value).inc(count)

    def observe_left_out(self, names: Iterable[str]) -> None:
        """Count fields that were left out of a body; clients' own names are no labels."""
        for name in names:
            label = name if name in NOTES else "_other"
            self._left_out.labels(self._model_name, label).inc()

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

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine, self._model_name = engine, model_name

    def collect(self) -> Iterator[Metric]:
        engine, capabilities = self._engine, self._engine.capabilities
        scheduler, stats = engine.scheduler, engine.scheduler.stats
        queue, recorder = scheduler.queue, engine.events.find(RequestRecorder)
        gauge, counter = self._gauge, self._counter
        yield gauge("num_requests_running", "Running requests.", len(scheduler.running))
        yield gauge("num_sessions", "Open streaming sessions.", engine.sessions.num_open)
        if capabilities.others is not None:
            text = "Ranks that compute every step together."
            yield gauge("tensor_parallel_size", text, capabilities.others.size)
        if recorder is not None:
            text = "1 while requests are recorded, 0 after a failure."
            yield gauge("trace_recording", text, recorder.recording)
        yield gauge("num_requests_waiting", "Waiting requests.", queue.num_waiting)
        if queue.accounts is not None:
            text = "Clients with waiting requests."
            yield gauge("num_clients_waiting", text, queue.accounts.num_clients)
        text = "Requests refused because too many were waiting."
        yield counter("queue_full", text, engine.waiting_room.num_refused)
        text = "Requests that exceeded the longest queue time."
        yield counter("queue_timeout", text, stats.decisions[Verdict.EXPIRE.value])
        yield from self._kv_cache()
        yield from self._sent()
        yield from self._transfer()
        yield from self._speculation()
        yield from self._adapters()
        yield from self._store(stats.prefix_fetched)
        text = "Prompt tokens looked up in the prefix cache."
        yield counter("prefix_cache_queries", text, stats.prefix_queries)
        text = "Prompt tokens found in the prefix cache."
        yield counter("prefix_cache_hits", text, stats.prefix_hits)
        text = "Prompt tokens missed because their blocks had been evicted."
        yield counter("prefix_cache_evicted", text, stats.prefix_evicted)
        text = "Prompt tokens missed because their last block was not full."
        yield counter("prefix_cache_tails", text, stats.prefix_tails)
        if any(one.keeps_states for one in engine.scheduler.allocator.views()):
            text = "Prompt tokens whose blocks were there, but no snapshot of the state after them."
            yield counter("prefix_cache_stateless", text, stats.prefix_stateless)
        grade = engine.forecasts.grade
        if grade.first_tokens is not None and grade.ends is not None:
            text = "Of the latest forecasts, the share that was right to 20 % or 50 ms."
            shares = (({"of": "first token"}, grade.first_tokens), ({"of": "end"}, grade.ends))
            yield self._metric(GaugeMetricFamily, "forecasts_true_ratio", text, shares)
        text = "The scheduler's decisions about requests."
        decided = [({"verdict": one.value}, stats.decisions.get(one.value, 0)) for one in Verdict]
        yield self._metric(CounterMetricFamily, "decisions", text, decided)
        text = "Preemptions, by swap and by recompute."
        yield counter("num_preemptions", text, stats.num_preemptions)
        text = "Blocks that could not be swapped, or came back damaged, and were recomputed."
        yield counter("swap_blocks_failed", text, engine.stats.num_failed_swaps)
        text = "Times that the KV pool's counters were wrong between requests, and were corrected."
        yield counter("integrity_faults", text, engine.stats.num_faults)
        text = "Log lines dropped because their reader had stopped."
        yield counter("log_lines_dropped", text, num_dropped())

    def _kv_cache(self) -> Iterator[Metric]:
        scheduler = self._engine.scheduler
        size, usage = scheduler.allocator.block_size, scheduler.allocator.usage()
        taken = 1 - (usage.cached + usage.free) / usage.capacity if usage.capacity else 0.0
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", taken)
        text, now = "KV cache slots by state.", usage._asdict().items()  # may be torn, see above
        slots = [({"state": state}, max(0, count)) for state, count in now]
        yield self._metric(GaugeMetricFamily, "kv_cache_slots", text, slots)
        text, totals = "KV cache slots by state, times seconds of steps.", self._engine.stats
        seconds = [({"state": state}, total) for state, total in totals.slot_seconds.items()]
        yield self._metric(CounterMetricFamily, "kv_slot_seconds", text, seconds)
        facts = {  # in labels, as vLLM has them
            "block_size": str(size),
            "num_gpu_blocks": str(usage.capacity // size),
            "enable_prefix_caching": str(scheduler.prefix_cache is not None),
        }
        states = [one for one in scheduler.allocator.views() if one.keeps_states]
        if states:
            held, cached = states[0].num_held, states[0].num_cached  # may be torn, see above
            free, text = states[0].num_blocks - held - cached, "Slots for states of sequences."
            if states[0].share is not None:  # on pages that nobody holds a block of
                pages = scheduler.allocator.num_free_blocks
                free = pages * states[0].share.per_page - cached
            counts = {"live": held, "snapshot": cached, "free": free}
            slots = [({"state": state}, max(0, count)) for state, count in counts.items()]
            yield self._metric(GaugeMetricFamily, "state_slots", text, slots)
        yield from self._shared_pages()
        text = "The KV cache: its blocks, of all KV groups, in any memory."
        yield self._metric(GaugeMetricFamily, "cache_config_info", text, [(facts, 1)])

    def _shared_pages(self) -> Iterator[Metric]:
        """What each KV group has of shared pages."""
        allocator, slots = self._engine.scheduler.allocator, list[tuple[dict[str, str], int]]()
        for number, one in enumerate(allocator.views()):
            if one.share is not None:
                size = one.share.span * allocator.block_size
                window = "" if one.window is None else str(one.window.tokens)
                for state, blocks in (("held", one.num_held), ("cached", one.num_cached)):
                    labels = {"kv_group": str(number), "window": window, "state": state}
                    slots.append((labels, blocks * size))
        if slots:
            text = (
                "Of the KV cache slots, those that each KV group has of the pages that all share."
            )
            yield self._metric(GaugeMetricFamily, "kv_group_slots", text, slots)

    def _sent(self) -> Iterator[Metric]:
        """Metrics of spans and KV events, where they are sent."""
        events, spans = self._engine.capabilities.events, self._engine.events.find(SpanSender)
        if spans is not None:
            yield self._counter("spans_sent", "Requests whose span was sent.", spans.num_sent)
            text = "Requests whose span the collector did not accept."
            yield self._counter("spans_dropped", text, spans.num_dropped)
        if events is not None:
            text = "Where KV events are published, and with which data parallel rank."
            facts = {
                "endpoint": events.endpoint,
                "replay_endpoint": events.replay_endpoint or "",
                "data_parallel_rank": str(events.rank),
            }
            yield self._metric(GaugeMetricFamily, "kv_events_info", text, [(facts, 1)])
            text = "Published batches of KV events."
            yield self._counter("kv_events_published", text, events.num_published)
            text = "Batches of KV events dropped because too many waited to be sent."
            yield self._counter("kv_events_dropped", text, events.num_dropped)

    def _transfer(self) -> Iterator[Metric]:
        """Of an engine that prefills for others, or decodes what they have prefilled."""
        transfer = self._engine.capabilities.transfer
        if isinstance(transfer, BlockServer):
            text = "KV blocks sent to decode engines."
            yield self._counter("kv_transfer_sent_blocks", text, transfer.num_sent)
        if isinstance(transfer, BlockFetcher):
            text = "KV blocks fetched from prefill engines."
            yield self._counter("kv_transfer_fetched_blocks", text, transfer.num_fetched)
            text = "Transfers that failed; missing blocks were computed."
            yield self._counter("kv_transfer_failures", text, transfer.num_failed)
            text = "KV blocks that prefill engines did not have."
            yield self._counter("kv_transfer_missing_blocks", text, transfer.num_missing)
            text = "KV blocks that were fetched, and evicted before use."
            yield self._counter("kv_transfer_unused_blocks", text, transfer.num_unused)

    def _speculation(self) -> Iterator[Metric]:
        """Metrics of speculation, where there is some."""
        speculation, stats = self._engine.capabilities.speculation, self._engine.stats
        if speculation is None:
            return
        text = "Sequences in a step with draft tokens."
        yield self._counter("spec_decode_num_drafts", text, stats.num_drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Draft tokens.", stats.num_draft_tokens)
        text, accepted = "Accepted draft tokens.", stats.num_accepted_tokens
        yield self._counter("spec_decode_num_accepted_tokens", text, accepted)
        text = "Accepted draft tokens by position among the drafts of a sequence."
        counts = [({"position": str(n)}, one) for n, one in enumerate(stats.accepted_by_position)]
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._metric(CounterMetricFamily, name, text, counts)
        text = "Bytes of memory of the drafters."
        yield self._gauge("spec_decode_drafter_bytes", text, speculation.num_bytes)

    def _adapters(self) -> Iterator[Metric]:
        """Nothing where none are served. As vLLM has it: names in labels, the time as the value."""
        adapters, slots = self._engine.capabilities.adapters, self._engine.scheduler.adapters
        if adapters is None:
            return
        running = slots.in_use
        facts = {
            "max_lora": str(slots.most),
            "running_lora_adapters": ",".join(one.name for one in running),
            "waiting_lora_adapters": ",".join(one.name for one in adapters.waiting(running)),
        }
        text = "Adapters of running and of waiting requests; the value is the time."
        yield self._metric(GaugeMetricFamily, "lora_requests_info", text, [(facts, time.time())])
        text = "Adapters whose weights are in memory."
        yield self._gauge("lora_adapters_in_memory", text, len(adapters.weights))

    def _store(self, fetched: int) -> Iterator[Metric]:
        """Metrics of blocks beyond the pool, where there are some."""
        store = self._engine.capabilities.store
        if store is None:
            return
        yield self._counter(
            "kv_store_hits", "Prompt tokens fetched from outside the pool.", fetched
        )
        tiers, disks = places_of(store)
        if tiers:
            text, read = "Blocks fetched from main memory.", sum(one.num_read for one in tiers)
            yield self._counter("kv_offloading_read_blocks", text, read)
            text, kept = (
                "Bytes of blocks in main memory.",
                sum(one.shelf.num_bytes for one in tiers),
            )
            yield self._gauge("kv_offloading_bytes", text, kept)
        if disks:
            yield from self._disks(disks)

    def _disks(self, disks: Sequence[DiskStore]) -> Iterator[Metric]:
        """The stores of one directory."""
        counts, counter = StoreCounts.total(disk.counts for disk in disks), self._counter
        text = "Blocks fetched from the store."
        yield counter("kv_store_read_blocks", text, counts.read_blocks)
        yield counter("kv_store_read_bytes", "Bytes fetched from the store.", counts.read_bytes)
        text = "Blocks that were gone or damaged when they were to be fetched."
        yield counter("kv_store_bad_blocks", text, counts.bad_blocks)
        text = "Blocks written to the store."
        yield counter("kv_store_written_blocks", text, counts.written_blocks)
        text = "Bytes written to the store."
        yield counter("kv_store_written_bytes", text, counts.written_bytes)
        text = "Blocks evicted from the store."
        yield counter("kv_store_evicted_blocks", text, counts.evicted_blocks)
        text = "Bytes on disk, of all engines that share the store."
        yield self._gauge("kv_store_bytes", text, disks[0].num_bytes)
        text = "1 while blocks are stored, 0 after a failure."
        yield self._gauge("kv_store_writing", text, not any(disk.quiet for disk in disks))

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return self._metric(GaugeMetricFamily, name, text, [({}, value)])

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return self._metric(CounterMetricFamily, name, text, [({}, value)])

    def _metric(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        samples: Iterable[tuple[Mapping[str, str], float]],
    ) -> Metric:
        """samples: labels beside the model's name, the same ones for all, and a value."""
        rows = [({"model_name": self._model_name, **labels}, value) for labels, value in samples]
        metric = kind(f"quire:{name}", text, labels=[*rows[0][0]] if rows else ["model_name"])
        for labels, value in rows:
            metric.add_metric([*labels.values()], value)
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
