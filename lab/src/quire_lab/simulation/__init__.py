"""The engine on a virtual clock: how many users fit, how fast, and where memory goes. Loads no
torch.
"""

from quire.engine.work import Work, sights_of, work_of
from quire_lab.simulation.acceptance import AcceptanceProfile
from quire_lab.simulation.arrivals import Arrivals, ClosedLoop, OpenLoop
from quire_lab.simulation.catalogue.machines import MACHINES, Machine, find_machine
from quire_lab.simulation.catalogue.models import MODELS, find_model
from quire_lab.simulation.cost_model import CostModel
from quire_lab.simulation.drafting import SimulatedDrafting
from quire_lab.simulation.observer import Observer
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import (
    Instant,
    Preempted,
    RequestHolding,
    RequestRecord,
    SimulationResult,
    TimedDecision,
)
from quire_lab.simulation.roofline import Roofline
from quire_lab.simulation.series import Point
from quire_lab.simulation.simulator import Simulator

__all__ = [
    "MACHINES",
    "MODELS",
    "AcceptanceProfile",
    "Arrivals",
    "ClosedLoop",
    "CostModel",
    "Deployment",
    "Instant",
    "KeptResults",
    "Machine",
    "Observer",
    "OpenLoop",
    "Point",
    "Preempted",
    "RequestHolding",
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
