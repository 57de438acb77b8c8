"""A simulation as pictures, tables and files that a person wants to look at. Never torch."""

from quire_lab.reports.fleet_report import FleetStory, write_fleets
from quire_lab.reports.plan_report import write_plan
from quire_lab.reports.simulation_report import KEPT_DECISIONS, KEPT_RECORDS, write_report

__all__ = [
    "KEPT_DECISIONS",
    "KEPT_RECORDS",
    "FleetStory",
    "write_fleets",
    "write_plan",
    "write_report",
]
