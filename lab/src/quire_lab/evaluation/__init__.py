"""What rounding costs a model, measured: its own distributions against those of each form."""

from quire_lab.evaluation.divergence import Loss, Reference
from quire_lab.evaluation.evaluate import Evaluation, Evaluator, Plan, Row
from quire_lab.evaluation.forms import USUAL, Form, parse_forms

__all__ = [
    "USUAL",
    "Evaluation",
    "Evaluator",
    "Form",
    "Loss",
    "Plan",
    "Reference",
    "Row",
    "parse_forms",
]
