"""Which replica gets a request, and how many there should be: the rules alone, on figures that
replicas tell. Who deploys replicas and who simulates them has them from here."""

from quire.routing.affinity import TOKENS_PER_PIECE, Affinity, Load, Prefix, Report, RoundRobin
from quire.routing.scaling import Demand, demand_of, replicas_wanted

__all__ = [
    "TOKENS_PER_PIECE",
    "Affinity",
    "Demand",
    "Load",
    "Prefix",
    "Report",
    "RoundRobin",
    "demand_of",
    "replicas_wanted",
]
