"""Answers of all replicas as one."""

from __future__ import annotations

from collections.abc import Mapping


def merge_metrics(texts: Mapping[str, str]) -> str:
    """Prometheus's text of all replicas, each of its samples labelled with its replica."""
    headers: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        name = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                headers.setdefault(name, [])
            if not line.startswith("#"):
                samples.setdefault(name, []).append(_labelled(line, replica))
            elif line not in headers[name]:
                headers[name].append(line)
    lines = (line for name in headers for line in (*headers[name], *samples.get(name, ())))
    return "".join(f"{line}\n" for line in lines)


def _labelled(sample: str, replica: str) -> str:
    """name{a="b"} 1 with one more label; replicas' names need no escapes."""
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{replica="{replica}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{replica="{replica}"}} {value}'
