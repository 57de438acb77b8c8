"""A session of measurements: everything is set up, then all take turns, round by round."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from benchmarks.peers.cache import Cache, PeerError
from benchmarks.peers.measure import Failure, Sample, measure
from benchmarks.peers.models import shape_of
from benchmarks.peers.systems.system import BITS, OF_PEERS, Run, System
from benchmarks.peers.table import Row
from benchmarks.peers.workloads import Workload


class Session:
    """Quire and its peers, beside each other, for any number of shapes."""

    def __init__(self, cache: Cache, systems: Mapping[str, System], weights: Sequence[str]) -> None:
        """``systems`` are "quire" and its peers, by name."""
        self._cache = cache
        self._systems = systems
        self._weights = sorted(set(weights), key=[*BITS].index)

    def set_up(self, shape: str) -> list[Row]:
        """The table's rows; those that cannot be set up say why."""
        rows = []
        for name, weights in self._order():
            system = self._systems[name]
            _tell(f"setting up {system.title}, {system.forms[weights]}, {shape}")
            row = Row(name, system.title, weights, system.forms[weights])
            try:
                system.set_up(shape, weights)
            except PeerError as error:
                row.failure = Failure(str(error))
                _tell(f"  {error}")
            rows.append(row)
        return rows

    def _order(self) -> list[tuple[str, str]]:
        """Rows with as many bits together, Quire's first."""
        order: list[tuple[str, str]] = []
        for bits in dict.fromkeys(BITS[name] for name in self._weights):
            alike = [name for name in self._weights if BITS[name] == bits]
            order += [("quire", name) for name in alike]
            peers = {name: system for name, system in self._systems.items() if name != "quire"}
            of_peers = dict.fromkeys(OF_PEERS.get(name, name) for name in alike)
            order += [(n, w) for n, system in peers.items() for w in of_peers if w in system.forms]
        return order

    def measure(
        self, shape: str, rows: Sequence[Row], workloads: Sequence[Workload], rounds: int
    ) -> None:
        """Fill the rows. Every second round goes backwards, so that nobody is always first."""
        fitting = [one for one in workloads if one.longest <= shape_of(shape).max_model_len]
        for number in range(rounds):
            for workload in fitting:
                for row in rows if number % 2 == 0 else [*reversed(rows)]:
                    if row.failed(workload.name) is None:
                        _tell(f"{shape}, round {number + 1}, {workload.name}: {row.title} ", end="")
                        result = self._measure(shape, row, workload)
                        row.rounds.setdefault(workload.name, []).append(result)
                        _tell(_said(row, result))

    def _measure(self, shape: str, row: Row, workload: Workload) -> Sample | Failure:
        system, folder = self._systems[row.system], self._cache.folder / "workloads"
        folder.mkdir(exist_ok=True)
        run = Run(shape, row.weights, workload, workload.write(folder))
        result = measure(system.command(run), system.environment(), workload, self._cache.log)
        if isinstance(result, Sample):
            row.form = system.form(row.weights, result.report)
        return result


def _said(row: Row, result: Sample | Failure) -> str:
    if isinstance(result, Failure):
        return f"{row.form}: {result.reason}"
    return (
        f"{row.form}: {result.output_tokens:,} tokens in {result.seconds:.2f} s, "
        f"{result.tokens_per_second:,.1f} tokens/s; others had {result.others:.2f} cores"
    )


def _tell(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
