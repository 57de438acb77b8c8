"""Ray Serve's request router, which uses Quire's."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    ReplicaResult,
    RequestRouter,
    RunningReplica,
)

from quire_cluster.routing import Hint
from quire_cluster.rules import Affinity, Prefix, ReplicaLoad, ReplicaReport, RoundRobin


class QuireRouter(RequestRouter):  # type: ignore[misc]  # of which nothing is known here
    """Routes each request by itself, without a queue, so that none waits for another's replica."""

    def initialize_state(self, routing: str = "prefix") -> None:
        self._affinity = Affinity()
        self._round_robin = RoundRobin()
        self._routing = routing
        self._running: defaultdict[ReplicaID, set[str]] = defaultdict(set)  # requests

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas for each request, the best first; the others are for when it accepts no
        more.
        """
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        return [[by_name[name]] for name in self._ranked(by_name, pending_request)]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        self._running[replica_id].add(pending_request.metadata.internal_request_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._affinity.done(replica_id.unique_id, internal_request_id)
        self._running[replica_id].discard(internal_request_id)
        if not self._running[replica_id]:
            del self._running[replica_id]

    def _ranked(
        self, replicas: dict[str, RunningReplica], request: PendingRequest | None
    ) -> list[str]:
        hint = _hint(request)
        if hint.replica in replicas:
            return [hint.replica]
        if self._routing == "round_robin":
            return self._round_robin.choose(replicas)
        prefix = hint.prefix if self._routing == "prefix" else Prefix((), hint.prefix.num_tokens)
        return self._affinity.choose(
            "" if request is None else request.metadata.internal_request_id,
            prefix,
            {name: self._load(each) for name, each in replicas.items()},
        )

    def _load(self, replica: RunningReplica) -> ReplicaLoad:
        running = self._running.get(replica.replica_id, ())
        return ReplicaLoad(len(running), ReplicaReport(**(replica.routing_stats or {})))


def _hint(request: PendingRequest | None) -> Hint:
    arguments: list[Any] = [] if request is None else list(request.args)
    return next((each for each in arguments if isinstance(each, Hint)), Hint())
