"""Which replica gets a request, whether another computes its prompt, and how many there should be.

The rules alone, on figures that replicas report: the deployment and the simulation share them.
"""

from quire_cluster.rules.affinity import (
    MOST_PIECES,
    TOKENS_PER_PIECE,
    Affinity,
    Prefix,
    ReplicaLoad,
    ReplicaReport,
    RoundRobin,
)
from quire_cluster.rules.pairing import TAKEN_WITHIN, Pairing
from quire_cluster.rules.scaling import ReplicaDemand, demand_of, replicas_wanted

__all__ = [
    "MOST_PIECES",
    "TAKEN_WITHIN",
    "TOKENS_PER_PIECE",
    "Affinity",
    "Pairing",
    "Prefix",
    "ReplicaDemand",
    "ReplicaLoad",
    "ReplicaReport",
    "RoundRobin",
    "demand_of",
    "replicas_wanted",
]
