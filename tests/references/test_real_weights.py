"""Trained weights beside transformers: tokens, log-probabilities, what rounding costs.

Random weights have no outliers, and nothing that they say is likely.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from quire import LLM, SamplingParams
from quire_lab.evaluation import Reference
from quire_lab.evaluation.distributions import next_token_logits
from references import real_weights
from references.packages import Unreachable

FILES = {"smollm2": real_weights.smollm2_file, "gemma3": real_weights.gemma3_file}
PROMPTS = 250  # of each model
OUTPUT = 12
TIED = 1e-4  # of log-probabilities
GERMAN = (
    "Der Mond ist aufgegangen, die goldnen Sternlein prangen am Himmel hell und klar.",
    "Die Verwaltung teilte gestern mit, dass die Brücke über den Fluss",
    "Zum Frühstück gab es Brötchen, Käse und eine Tasse",
    "Wenn der Zug pünktlich ist, sind wir um acht Uhr in",
)
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module", params=sorted(FILES))
def directory(request: pytest.FixtureRequest) -> Path:
    try:
        return real_weights.dequantised(FILES[request.param]())
    except Unreachable as error:
        pytest.skip(str(error))


def prompts(count: int) -> list[str]:
    """Prose, code, German and chat, of 5 to 60 words."""
    draw, found = random.Random(0), list[str]()
    words = " ".join(topics.values()).split()
    source = Path(random.__file__).read_text("utf-8").splitlines()
    for number in range(count):
        start, length = draw.randrange(len(words) - 60), draw.randrange(5, 60)
        prose = " ".join(words[start : start + length])
        line = draw.randrange(len(source) - 12)
        german = draw.choice(GERMAN).split()
        kinds = (
            prose,
            "\n".join(source[line : line + draw.randrange(2, 12)]),
            " ".join(german[: draw.randrange(3, len(german) + 1)]),
            CHAT.format(prose + "?"),
        )
        found.append(kinds[number % len(kinds)])
    return found


def test_tokens_and_log_probabilities_are_those_of_transformers(directory: Path) -> None:
    llm = LLM(directory, dtype="float32", max_model_len=512, max_num_seqs=32)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, logprobs=1, ignore_eos=True)
    outputs = llm.generate(prompts(PROMPTS), params, use_tqdm=False)
    llm.close()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    worst, tokens = 0.0, 0
    for output in outputs:
        chosen = output.outputs[0]
        ids = torch.tensor([[*output.prompt_token_ids, *chosen.token_ids]])
        with torch.inference_mode():
            table = model(ids).logits[0, -len(chosen.token_ids) - 1 : -1].log_softmax(-1)
        assert chosen.logprobs is not None
        for row, token, mine in zip(table, chosen.token_ids, chosen.logprobs, strict=True):
            assert row.max() - row[token] <= TIED, (output.prompt, token)
            worst = max(worst, abs(float(row[token]) - mine[token].logprob))
            tokens += 1
    assert tokens == PROMPTS * OUTPUT and worst < TIED, worst


def test_bfloat16_loses_no_more_than_with_transformers(directory: Path) -> None:
    exact, rounded = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    llm = LLM(directory, dtype="bfloat16", max_model_len=1024)
    encode = llm.engine.input_processor.tokenizer.encode
    rows = [encode(text)[:512] for text in (topics["assignment"], topics["lambda"] * 2)]
    reference = Reference(rows)

    def of(model: torch.nn.Module) -> Iterator[Tensor]:
        for row in rows:
            with torch.inference_mode():
                yield model(torch.tensor([row[:-1]])).logits[0].float()

    reference.keep(of(exact))
    theirs = reference.compare(of(rounded))
    ours = reference.compare(one for row in rows for one in next_token_logits(llm, row[:-1]))
    reference.close()
    assert ours.divergence <= 1.1 * theirs.divergence, (ours, theirs)
    assert ours.same_token >= theirs.same_token - 0.01
