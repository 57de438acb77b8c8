"""Several engines on one virtual clock, behind one door."""

from quire.simulation.fleet.autoscaling import Autoscaling
from quire.simulation.fleet.failures import Failure, Failures
from quire.simulation.fleet.fleet import FleetSimulator
from quire.simulation.fleet.result import FleetResult, Life, ReplicaResult
from quire.simulation.fleet.routing import ROUTINGS, Router
from quire.simulation.fleet.setup import FleetSetup, ReplicaKind, Role
from quire.simulation.fleet.transfer import TransferCosts

__all__ = [
    "ROUTINGS",
    "Autoscaling",
    "Failure",
    "Failures",
    "FleetResult",
    "FleetSetup",
    "FleetSimulator",
    "Life",
    "ReplicaKind",
    "ReplicaResult",
    "Role",
    "Router",
    "TransferCosts",
]
