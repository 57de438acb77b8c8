"""A simulation as pictures, tables and files that a person wants to look at. Never torch."""

from quire.reports.fleet_report import FleetStory, write_fleets
from quire.reports.plan_report import write_plan
from quire.reports.simulation_report import KEPT_DECISIONS, KEPT_RECORDS, write_report

__all__ = [
    "KEPT_DECISIONS",
    "KEPT_RECORDS",
    "FleetStory",
    "write_fleets",
    "write_plan",
    "write_report",
]
