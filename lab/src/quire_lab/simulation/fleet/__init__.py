"""Several engines on one virtual clock, behind one door."""

from quire_lab.simulation.fleet.autoscaling import Autoscaling
from quire_lab.simulation.fleet.failures import Failure, Failures
from quire_lab.simulation.fleet.fleet import FleetSimulator
from quire_lab.simulation.fleet.result import FleetResult, Life, ReplicaResult
from quire_lab.simulation.fleet.routing import ROUTINGS, Router
from quire_lab.simulation.fleet.setup import FleetSetup, ReplicaKind, Role
from quire_lab.simulation.fleet.transfer import TransferCosts

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
