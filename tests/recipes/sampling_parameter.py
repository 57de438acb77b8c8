"""``eos_bias``: added to the logits of the tokens that end a text."""

from __future__ import annotations

import contextlib
import io

import pytest

from recipes.recipe import Recipe

_PARAMS = "src/quire/text/params/sampling_params.py"
_PROCESSORS = "src/quire/execution/sampling/logits_processors.py"
_BIASES = "edits.biases.add(i, *params.biased_logits)\n"

RECIPE = Recipe(
    "A sampling parameter",
    [
        (
            _PARAMS,
            "    seed: int | None = parameter(",
            """    eos_bias: float = parameter(
        0.0, "added to the logits of the tokens that end a text", number(-100.0, 100.0)
    )
    seed: int | None = parameter(""",
        ),
        (
            _PARAMS,
            " or self.logit_bias\n",
            " or self.logit_bias or self.eos_bias\n",
        ),
        (
            _PROCESSORS,
            _BIASES,
            f"""{_BIASES}        if params.eos_bias:
            ends = row.request.eos_token_ids - (params.logit_bias or {{}}).keys()
            edits.biases.add_same(i, ends, params.eos_bias)
""",
        ),
    ],
)


def check() -> None:
    """It is a parameter, a flag and a field, has a range, and raises and lowers logits."""
    import torch

    from quire.core.errors import RequestError
    from quire.execution.sampling.logits_processors import process_logits
    from quire.http.openai.requests import CompletionRequest
    from quire.text.params import SamplingParams
    from quire.tools.cli import main
    from support.sampling_reference import EOS, make_row

    with pytest.raises(RequestError, match="eos_bias must be from -100 to 100, got 101"):
        SamplingParams(eos_bias=101.0)
    body = CompletionRequest(prompt="p", eos_bias=3.0)
    assert body.sampling_params({}) == SamplingParams(eos_bias=3.0)
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        main(["generate", "--help"])
    assert "--eos-bias" in told.getvalue()
    logits, rows = torch.zeros(2, 9), [make_row(), make_row(eos_bias=3.0)]
    changed = logits.clone()
    changed[1, EOS] = 3.0
    assert torch.equal(process_logits(logits, rows), changed)
    assert process_logits(logits, rows[:1]) is logits, "rows without it cost nothing"
