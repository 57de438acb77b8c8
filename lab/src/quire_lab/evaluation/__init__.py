"""What rounding costs a model, measured: its own distributions against those of each form."""

from quire_lab.evaluation.divergence import Loss, Reference
from quire_lab.evaluation.evaluate import Evaluation, Evaluator, FormResult, Judging
from quire_lab.evaluation.forms import USUAL, ModelForm, parse_forms

__all__ = [
    "USUAL",
    "Evaluation",
    "Evaluator",
    "FormResult",
    "Judging",
    "Loss",
    "ModelForm",
    "Reference",
    "parse_forms",
]
