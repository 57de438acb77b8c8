"""Models as llama.cpp's own converter writes them, and what llama.cpp makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from references.llama_cpp import XLLAMACPP
from references.packages import environment, llama_cpp

_PATIENCE = 300.0  # seconds
# Its tokenizers are known by what they make of a text; ours would be none of them.
_CONVERT = """
import json, pathlib, runpy, sys
sources, directory, *arguments = sys.argv[1:]
sys.path[:0] = [sources + "/gguf-py", sources]
import conversion, conversion.base as base
conversion.load_all_models()
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
modules = [module for name, module in sys.modules.items() if name.startswith("conversion.")]
kinds = [v for module in modules for v in vars(module).values() if isinstance(v, type)]
for kind in kinds:
    for name in ("_set_vocab_glm", "_set_vocab_sentencepiece", "set_vocab"):
        if name in vars(kind) and issubclass(kind, base.TextModel):
            setattr(kind, name, lambda self, *_, **__: self._set_vocab_gpt2())
told = json.loads((pathlib.Path(directory) / "config.json").read_text())
load = base.ModelBase.load_hparams
base.ModelBase.load_hparams = staticmethod(
    lambda *args, **more: {k: v for k, v in load(*args, **more).items() if k in told} | told
)
sys.argv = ["convert_hf_to_gguf.py", directory, *arguments]
runpy.run_path(sources + "/convert_hf_to_gguf.py", run_name="__main__")
"""
_ASK = """
import json, sys, urllib.request
import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.n_ctx, parameters.port = sys.argv[1], 256, 0
parameters.warmup = False
parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
disabled = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
parameters.flash_attn_type = disabled
server = xllamacpp.Server(parameters)
found = []
for prompt in json.load(sys.stdin):
    body = {"prompt": prompt, "n_predict": 1, "n_probs": 1000}
    body["logit_bias"] = [[4, 1000]]  # it withholds halves of characters, and ends: "!" is neither
    headers = {"Content-Type": "application/json"}
    url = server.listening_address + "/completion"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    said = json.load(urllib.request.urlopen(request))["completion_probabilities"][0]
    found.append([(one["id"], one["logprob"]) for one in said["top_logprobs"]])
print(json.dumps(found))
sys.stdout.flush()
"""


def converted(directory: Path, target: Path, *options: str) -> Path:
    """The model in ``directory`` as a GGUF file of float32. Raises Unreachable."""
    command = [sys.executable, "-c", _CONVERT, str(llama_cpp()), str(directory)]
    done = subprocess.run(
        [*command, "--outfile", str(target), "--outtype", "f32", *options],
        env={**os.environ, "TRANSFORMERS_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    assert target.exists(), done.stderr[-2000:]
    return target


def logprobs(model: Path, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """[vocabulary], of the token after each prompt, as llama.cpp's server has them in float32.

    Raises Unreachable.
    """
    done = subprocess.run(
        [str(environment(XLLAMACPP)), "-c", _ASK, str(model)],
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [
        torch.tensor([value for _, value in sorted(map(tuple, one))])
        for one in json.loads(done.stdout.splitlines()[-1])
    ]
