"""Makes the Grafana dashboard, grafana/quire.json, and says of any metric whether a server has it.

python scripts/dashboard.py                          # write the dashboard
python scripts/dashboard.py http://localhost:8000    # which metrics that server does not have
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

GRAFANA = Path(__file__).parents[1] / "grafana"
OF_PROMETHEUS = {"up"}

_MODEL = 'model_name=~"$model"'
_GEN_AI = 'gen_ai_request_model=~"$model"'
_USED = f'{_MODEL}, state="used"'
_TAKEN = f'{_MODEL}, state=~"used|reserved|internal|external"'
_NO_WAITS = f'{_MODEL}, verdict!="wait"'
_OVER = "[$__rate_interval]"
_WORDS = {"by", "without", "on", "ignoring", "and", "or", "unless", "bool", "offset", "le"}
_WORDS |= {"group_left", "group_right"}


_COUNTED = "rate(gen_ai_server_request_duration_seconds_count"
_ENDED = f"sum by (gen_ai_operation_name) ({_COUNTED}{{{_GEN_AI}}}{_OVER}))"
_FAILED = f'sum by (gen_ai_operation_name) ({_COUNTED}{{{_GEN_AI}, error_type!=""}}{_OVER}))'


class Panel(NamedTuple):
    title: str
    unit: str
    queries: dict[str, str]  # legend -> PromQL
    text: str = ""
    stacked: bool = False


def rate(name: str, labels: str = _MODEL) -> str:
    return f"rate(quire:{name}{{{labels}}}{_OVER})"


def percentiles(name: str) -> dict[str, str]:
    buckets = f"sum by (le) ({rate(name + '_seconds_bucket')})"
    return {f"p{p}": f"histogram_quantile({p / 100:g}, {buckets})" for p in (50, 90, 99)}


def share(part: str, whole: str) -> str:
    return f"sum({rate(part)}) / sum({rate(whole)})"


ROWS: dict[str, list[Panel]] = {
    "Traffic": [
        Panel("Requests", "reqps", {
            "{{finished_reason}}": f"sum by (finished_reason) ({rate('request_success_total')})",
        }, "Requests that ended, by the reason of their last output."),
        Panel("Tokens", "short", {
            "out": f"sum({rate('generation_tokens_total')})",
            "in": f"sum({rate('prompt_tokens_total')})",
        }, "Tokens a second: written, and of the prompts of requests that ended."),
        Panel("Running and waiting", "short", {
            "running": f"sum(quire:num_requests_running{{{_MODEL}}})",
            "waiting": f"sum(quire:num_requests_waiting{{{_MODEL}}})",
        }),
    ],
    "Latency": [
        Panel("Time to first token", "s", percentiles("time_to_first_token"),
              "From arrival, so waiting is in it."),
        Panel("Between tokens", "s", percentiles("inter_token_latency")),
        Panel("Whole requests", "s", percentiles("e2e_request_latency")),
    ],
    "Memory": [
        Panel("KV slots", "short", {
            "{{state}}": f"sum by (state) (quire:kv_cache_slots{{{_MODEL}}})",
        }, "Every slot of the pool, by what it holds.", stacked=True),
        Panel("Taken, and put to use", "percentunit", {
            "taken": f"avg(quire:kv_cache_usage_perc{{{_MODEL}}})",
            "of that, tokens": f"sum({rate('kv_slot_seconds_total', _USED)}) / "
                               f"sum({rate('kv_slot_seconds_total', _TAKEN)})",
        }, "Share of the pool that requests hold, and of that what holds tokens' keys."),
        Panel("Prefix cache", "percentunit", {
            "found": share("prefix_cache_hits_total", "prefix_cache_queries_total"),
            "had been there": share("prefix_cache_evicted_total", "prefix_cache_queries_total"),
            "in partly filled blocks":
                share("prefix_cache_tails_total", "prefix_cache_queries_total"),
        }, "Of prompt tokens that were looked up; the rest had never been computed."),
    ],
    "Decisions": [
        Panel("What the scheduler decides", "ops", {
            "{{verdict}}":
                f"sum by (verdict) ({rate('decisions_total', _NO_WAITS)})",
        }),
        Panel("Preemptions", "ops", {
            "preempted": f"sum({rate('num_preemptions_total')})",
            "swaps that failed": f"sum({rate('swap_blocks_failed_total')})",
        }, "Requests that gave way to others: the pool is too small for what runs at once."),
        Panel("Not served", "ops", {
            "too many wait": f"sum({rate('queue_full_total')})",
            "waited too long": f"sum({rate('queue_timeout_total')})",
        }),
    ],
    "By operation, where they are used": [
        Panel("Errors", "percentunit", {
            "{{gen_ai_operation_name}}": f"({_FAILED} or 0 * {_ENDED}) / {_ENDED}",
        }, "Share of requests that ended with an error, by OpenTelemetry's metrics."),
        Panel("Drafts that were right", "percentunit", {
            "right": share("spec_decode_num_accepted_tokens_total",
                           "spec_decode_num_draft_tokens_total"),
        }, "With speculation."),
        Panel("Block store", "binBps", {
            "read": f"sum({rate('kv_store_read_bytes_total')})",
            "written": f"sum({rate('kv_store_written_bytes_total')})",
        }, "With --kv-store."),
    ],
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    for title, row in ROWS.items():
        y = 9 * (len(panels) // 4)
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})  # fmt: skip
        for column, panel in enumerate(row):
            panels.append(_panel(panel, len(panels) + 1, 8 * column, y + 1))
    source = {"type": "prometheus", "uid": "${source}"}
    variables = [
        {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
        {"name": "model", "label": "Model", "type": "query", "datasource": source,
         "query": {"query": "label_values(quire:num_requests_running, model_name)", "refId": "m"},
         "refresh": 2, "includeAll": True, "multi": True, "allValue": ".*",
         "current": {"text": "All", "value": "$__all"}},
    ]  # fmt: skip
    return {
        "title": "Quire", "uid": "quire", "tags": ["llm"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "10s", "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables}, "panels": panels,
    }  # fmt: skip


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 10, "showPoints": "never"}
    if panel.stacked:
        custom |= {"fillOpacity": 60, "stacking": {"mode": "normal"}}
    return {
        "type": "timeseries", "id": number, "title": panel.title, "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": x, "y": y, "w": 8, "h": 8},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": [],
        },
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend}
            for i, (legend, query) in enumerate(panel.queries.items())
        ],
    }  # fmt: skip


def queries() -> Iterator[str]:
    """Of the dashboard and of the alerts."""
    for row in ROWS.values():
        for panel in row:
            yield from panel.queries.values()
    rules = yaml.safe_load((GRAFANA / "alerts.yaml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def metrics_in(query: str) -> set[str]:
    """The metrics that a query of PromQL names."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', " ", query)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    found = re.findall(r"[A-Za-z_:][\w:]*(?!\s*\()\b", bare)
    return {name for name in found if name not in _WORDS and not re.search(rf"{name}\s*\(", bare)}


def main(arguments: list[str]) -> int:
    if not arguments:
        text = json.dumps(dashboard(), indent=1) + "\n"
        (GRAFANA / "quire.json").write_text(text, encoding="utf-8")
        return 0
    with urllib.request.urlopen(f"{arguments[0]}/metrics") as answer:
        there = set(re.findall(r"^([\w:]+)[{ ]", answer.read().decode(), re.M))
    missing = sorted(set().union(*map(metrics_in, queries())) - there - OF_PROMETHEUS)
    print("\n".join(missing) or "all there")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
