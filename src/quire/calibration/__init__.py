"""What this machine's steps cost, measured on the real engine; and predictions put to the test."""

from quire.calibration.calibrate import calibrate, describe
from quire.calibration.fit import fit, non_negative_least_squares
from quire.calibration.prediction import Comparison, compare

__all__ = [
    "Comparison",
    "calibrate",
    "compare",
    "describe",
    "fit",
    "non_negative_least_squares",
]
