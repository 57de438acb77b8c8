"""What crosses between gateway and replicas, and the metrics of all replicas as one text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class ReplicaCall(NamedTuple):
    """A request for the app, with its whole body. scope: ASGI's, without what cannot be sent."""

    scope: dict[str, Any]
    body: bytes


class Whole(NamedTuple):
    """A complete answer. role: the replica's, as in the engine's setting of that name."""

    replica: str
    status: int
    body: bytes
    role: str = "both"


def merge_metrics(answers: Iterable[Whole]) -> str:
    """Prometheus's text of all replicas, with a label for the replica in each sample."""
    headers: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for one in answers:
        name, labels = "", f'replica="{one.replica}"'
        if one.role != "both":
            labels += f',role="{one.role}"'
        for line in one.body.decode().splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                headers.setdefault(name, [])
            if not line.startswith("#"):
                samples.setdefault(name, []).append(_labelled(line, labels))
            elif line not in headers[name]:
                headers[name].append(line)
    lines = (line for name in headers for line in (*headers[name], *samples.get(name, ())))
    return "".join(f"{line}\n" for line in lines)


def _labelled(sample: str, labels: str) -> str:
    """A sample such as name{a="b"} 1 with one label more; names of replicas need no escapes."""
    name, brace, rest = sample.partition("{")
    if brace:
        return f"{name}{{{labels},{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{labels}}} {value}"
