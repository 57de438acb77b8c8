"""Adapters of two files: ``scale.json``, and matrices called MODULE.down and MODULE.up."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from recipes.recipe import Recipe

_CHECKPOINT = "src/quire/capabilities/adapters/checkpoint.py"
_FORMAT = '''"""Adapters of matrices called MODULE.down and MODULE.up, with a common scale."""

from __future__ import annotations

import json
from pathlib import Path

from quire.capabilities.adapters.tensors import TensorFile
from quire.core.errors import ModelError

WEIGHTS = "matrices.safetensors"


class PlainConfig:
    """``scale.json``."""

    use_dora = keeps_tied = False
    saved = ()

    def __init__(self, path: Path) -> None:
        self._scale = float(json.loads((path / "scale.json").read_text()))

    def scale(self, module: str, rank: int) -> float:
        """As ``LoraConfig.scale``."""
        return self._scale


def is_plain(path: Path) -> bool:
    """Whether an adapter is of this format."""
    return (path / WEIGHTS).exists()


def plain_pairs(file: TensorFile) -> dict[str, dict[str, str]]:
    """The names of both tensors of each module."""
    modules = {name.rpartition(".")[0] for name in file.tensors}
    pairs = {module: {"lora_A": f"{module}.down", "lora_B": f"{module}.up"} for module in modules}
    if {name for pair in pairs.values() for name in pair.values()} != set(file.tensors):
        raise ModelError(f"{file.path} holds other tensors than down and up of each module")
    return pairs
'''

RECIPE = Recipe(
    "An adapter format",
    [
        (
            _CHECKPOINT,
            "import FOLD, LoraConfig\n",
            "import FOLD, LoraConfig\nfrom quire.capabilities.adapters import plain\n",
        ),
        (
            _CHECKPOINT,
            "    config = LoraConfig.read(path)\n    weights = path / WEIGHTS\n",
            "    is_plain = plain.is_plain(path)\n"
            "    config = plain.PlainConfig(path) if is_plain else LoraConfig.read(path)\n"
            "    weights = path / (plain.WEIGHTS if is_plain else WEIGHTS)\n",
        ),
        (
            _CHECKPOINT,
            "    groups = _by_module(file, config.use_dora, taken)\n",
            "    names = plain.plain_pairs(file) if is_plain else None\n"
            "    groups = names or _by_module(file, config.use_dora, taken)\n",
        ),
    ],
    {"src/quire/capabilities/adapters/plain.py": _FORMAT},
)


def check() -> None:
    """The same matrices in PEFT's format give the same text."""
    from safetensors.torch import load_file, save_file

    from quire import LLM, SamplingParams
    from support.lora import PREFIX, save_adapter
    from support.small_models import make_model

    with tempfile.TemporaryDirectory() as folder:
        model, root = make_model("llama", Path(folder, "llama")), Path(folder)
        peft, plain = save_adapter(root / "peft", model), root / "plain"
        plain.mkdir()
        (plain / "scale.json").write_text(json.dumps(2.0))
        matrices = {
            name.removeprefix(PREFIX)
            .replace("lora_A.weight", "down")
            .replace("lora_B.weight", "up"): tensor
            for name, tensor in load_file(peft / "adapter_model.safetensors").items()
        }
        save_file(matrices, plain / "matrices.safetensors")
        llm = LLM(
            str(model),
            kv_cache_memory_bytes="4MiB",
            enable_lora=True,
            lora_modules=[f"peft={peft}", f"plain={plain}"],
        )
        params = SamplingParams(max_tokens=16, temperature=0.0)
        texts = [
            llm.generate({"prompt": "stones", **more}, params)[0].outputs[0].token_ids
            for more in ({}, {"adapter": "peft"}, {"adapter": "plain"})
        ]
        assert texts[0] != texts[1] == texts[2]
