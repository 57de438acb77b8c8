"""``onestep``: codes of eight bits, and one step between them for a whole projection."""

from __future__ import annotations

import tempfile
from pathlib import Path

from recipes.recipe import Recipe

_STORED = "src/quire/models/shape/stored.py"
_FORMATS = "src/quire/models/linear/checkpoints/__init__.py"
_READER = '''"""Codes weight_codes [out, in] int8, times one step, weight_step [1]."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire.models.linear.checkpoints.base import RoundedCheckpoint
from quire.models.parts import Rows, TensorPart
from quire.models.stored import Stored


@dataclass(frozen=True)
class OneStep(RoundedCheckpoint):
    """See ``RoundedCheckpoint``."""

    def holds(self, name: str) -> bool:
        """See ``RoundedCheckpoint.holds``."""
        return f"{name}.weight_codes" in self.weights

    def unit(self, name: str, inputs: int) -> int:
        """See ``PartReader.unit``."""
        return 1

    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        """See ``PartReader.read_part``."""
        part = TensorPart(rows, columns)
        codes = self.weights.read_typed(
            f"{name}.weight_codes", (torch.int8,), outputs, inputs, part=part
        )
        step = self.weights.read(f"{name}.weight_step", 1, dtype=torch.float32)
        return (codes.float() * step).to(self.weights.dtype)
'''

RECIPE = Recipe(
    "A quantised form",
    [
        (_STORED, '"bitsandbytes", "mxfp4"]', '"bitsandbytes", "mxfp4", "onestep"]'),
        (_STORED, 'modelopt, mxfp4"', 'modelopt, mxfp4, onestep"'),
        (
            _STORED,
            '    "mxfp4": _mxfp4,\n',
            '    "mxfp4": _mxfp4,\n    "onestep": _onestep,\n',
        ),
        (
            _STORED,
            "def _modelopt(",
            """def _onestep(section: ConfigFields) -> StoredWeights:
    return StoredWeights("onestep", (((_LINEAR,), Scheme("int", 8)),))


def _modelopt(""",
        ),
        (
            _FORMATS,
            "import MXFP4\n",
            "import MXFP4\nfrom quire.models.linear.checkpoints.onestep import OneStep\n",
        ),
        (_FORMATS, '    "mxfp4": MXFP4,\n', '    "mxfp4": MXFP4,\n    "onestep": OneStep,\n'),
    ],
    {"src/quire/models/linear/checkpoints/onestep.py": _READER},
)


def check() -> None:
    """A model stored so gives the logits of the weights that its codes stand for."""
    import torch

    from quire.models.loader import load_model
    from support.hf_reference import random_prompts
    from support.paged_harness import PagedHarness
    from support.rounded_checkpoints import Tensors, is_projection, rewritten
    from support.small_models import make_model

    def codes(name: str, tensor: torch.Tensor) -> Tensors:
        if not is_projection(name):
            return {name: tensor}
        step = tensor.abs().max() / 127
        return {f"{name}_codes": (tensor / step).round().char(), f"{name}_step": step.view(1)}

    def floats(name: str, tensor: torch.Tensor) -> Tensors:
        stored = codes(name, tensor)
        if len(stored) == 1:
            return stored
        return {name: stored[f"{name}_codes"].float() * stored[f"{name}_step"]}

    with tempfile.TemporaryDirectory() as folder:
        source, root = make_model("llama", Path(folder, "llama")), Path(folder)
        stored = rewritten(source, root / "stored", codes, {"quant_method": "onestep"})
        plain = rewritten(source, root / "plain", floats)
        texts = random_prompts(5, 19)
        found, expected = (PagedHarness(load_model(d)).prefill(texts, 7) for d in (stored, plain))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
