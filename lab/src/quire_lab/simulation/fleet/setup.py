"""The parts of a fleet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from quire.core.errors import ConfigError
from quire_cluster.config import DeployConfig
from quire_lab.simulation.fleet.autoscaling import Autoscaling
from quire_lab.simulation.fleet.failures import Failures
from quire_lab.simulation.fleet.transfer import TransferCosts
from quire_lab.simulation.planning.deployment import Deployment

MOST_REPLICAS = 1024

_NONE = Failures()
_BY_MACHINE = TransferCosts()
_LOCAL = DeployConfig().max_local_prefill_length


class Role(Enum):
    """A replica's part of a request."""

    BOTH = "both"
    PREFILL = "prefill"  # its prompt and nothing more
    DECODE = "decode"  # all but that


@dataclass(frozen=True)
class ReplicaKind:
    """A model on one or several machines, and its part."""

    deployment: Deployment
    role: Role = Role.BOTH

    def __str__(self) -> str:
        each = self.deployment.name
        return each if self.role is Role.BOTH else f"{each}, {self.role.value}"


@dataclass(frozen=True)
class FleetSetup:
    """Replicas, and their fate.

    routing: one of ROUTINGS.
    start_seconds: from the start of a replica until it serves.
    autoscaling: None: there are always as many replicas as there are kinds.
    max_local_prefill_length: with prefill replicas, uncached tokens up to which a prompt is
        computed where it is answered, as with ``quire deploy``. None: a proxy has every prompt
        computed first, as in front of engines with ``--role``.
    """

    kinds: tuple[ReplicaKind, ...]
    routing: str = "prefix-aware"
    failures: Failures = _NONE
    start_seconds: float = 60.0
    autoscaling: Autoscaling | None = None
    transfer: TransferCosts = _BY_MACHINE
    max_local_prefill_length: int | None = _LOCAL

    def __post_init__(self) -> None:
        if not 1 <= len(self.kinds) <= MOST_REPLICAS:
            raise ConfigError(
                f"replicas must be from 1 to {MOST_REPLICAS:,}, got {len(self.kinds):,}"
            )
        if not 0 <= self.start_seconds <= 86400:
            raise ConfigError(f"start_seconds must be from 0 to 86,400, got {self.start_seconds:g}")
        if self.max_local_prefill_length is not None and self.max_local_prefill_length < 0:
            raise ConfigError(
                "max_local_prefill_length must be at least 0, got "
                f"{self.max_local_prefill_length:,}"
            )
        self._check_roles(Counter(kind.role for kind in self.kinds))
        if self.autoscaling is not None:
            self.autoscaling.check(len(self.kinds))
            if any(kind != self.kinds[0] for kind in self.kinds):
                raise ConfigError("max_replicas is for replicas that are all alike")
        for failure in self.failures.at:
            if failure.replica >= self.num_slots:
                raise ConfigError(
                    f"fail_at names replica {failure.replica}, but they are numbered from 0 to "
                    f"{self.num_slots - 1}"
                )

    @property
    def num_slots(self) -> int:
        """The most replicas there may be."""
        return len(self.kinds) if self.autoscaling is None else self.autoscaling.most

    @property
    def is_apart(self) -> bool:
        """Whether prefill is disaggregated."""
        return self.kinds[0].role is not Role.BOTH

    def kind(self, slot: int) -> ReplicaKind:
        return self.kinds[slot if slot < len(self.kinds) else 0]

    def _check_roles(self, roles: Counter[Role]) -> None:
        if not (roles[Role.PREFILL] or roles[Role.DECODE]):
            return
        if not (roles[Role.PREFILL] and roles[Role.DECODE]):
            one = Role.PREFILL if roles[Role.PREFILL] else Role.DECODE
            other = Role.DECODE if roles[Role.PREFILL] else Role.PREFILL
            raise ConfigError(f"replicas: those with role {one.value} need some for {other.value}")
        if roles[Role.BOTH]:
            raise ConfigError(
                "replicas: where some only prefill or decode, each must be one of the two"
            )
        if self.autoscaling is not None:
            raise ConfigError("max_replicas: autoscaling of roles apart is not simulated")
        for kind in self.kinds:
            if not kind.deployment.limits().enable_prefix_caching:
                raise ConfigError(
                    f"role {kind.role.value} needs prefix caching, by which blocks are handed over"
                )
