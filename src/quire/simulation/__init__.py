"""The engine on a virtual clock: who fits, how fast, and where the memory goes. Never torch."""

from quire.simulation.acceptance import AcceptanceProfile
from quire.simulation.arrivals import Arrivals, ClosedLoop, OpenLoop
from quire.simulation.catalogue.machines import MACHINES, Machine, find_machine
from quire.simulation.catalogue.models import MODELS, find_model
from quire.simulation.cost_model import CostModel
from quire.simulation.drafting import SimulatedDrafting
from quire.simulation.observer import Observer
from quire.simulation.planning.deployment import Deployment
from quire.simulation.result import (
    BlockMap,
    Owner,
    Preempted,
    RequestRecord,
    SimulationResult,
    TimedDecision,
)
from quire.simulation.roofline import Roofline
from quire.simulation.series import Point
from quire.simulation.simulator import Simulator
from quire.simulation.work import Work, sights_of, work_of

__all__ = [
    "MACHINES",
    "MODELS",
    "AcceptanceProfile",
    "Arrivals",
    "BlockMap",
    "ClosedLoop",
    "CostModel",
    "Deployment",
    "Machine",
    "Observer",
    "OpenLoop",
    "Owner",
    "Point",
    "Preempted",
    "RequestRecord",
    "Roofline",
    "SimulatedDrafting",
    "SimulationResult",
    "Simulator",
    "TimedDecision",
    "Work",
    "find_machine",
    "find_model",
    "sights_of",
    "work_of",
]
