"""What drafting gives, and what it costs where there is nothing to draft.

    python benchmarks/speculation.py MODEL [--method auto] [--rounds 5] [--quantization w8a8]

The model computes everything as ever, but what it writes is given: texts of this repository, so
that they repeat their prompts as much as real ones do, whatever the weights are. Requests take
turns with and without drafts on one engine; what is told is the ratio of their rates.

    edit        one request that writes a source file of its prompt again, with some edits
    rewrite     the same with so many that hardly a line is left as it was
    ordinary    one request that writes prose, about which its prompt says nothing
    ... x 64    the same kinds, 64 of them at once, each about a file or a text of its own
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from quire import LLM  # which lets idle threads sleep, as it does in a server
from quire.core.protocol import (
    Executor,
    Outcome,
    PendingStep,
    Roster,
    Sample,
    Step,
    StepResult,
    confirmed,
)
from quire.text.params import SamplingParams

_ROOT = Path(__file__).resolve().parent.parent
_Text = tuple[list[int], list[int]]  # prompt, output


class Writing:
    """An executor whose texts are given. All else is computed, and takes its time."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._roster = executor, Roster()
        self.outputs: Mapping[int, Sequence[int]] = {}  # by the first token of the prompt

    def submit(self, step: Step) -> PendingStep:
        """See ``Executor``."""
        known, pending = self._roster.follow(step), self._executor.submit(step)

        def collect() -> StepResult:
            result = pending.collect()
            for chunk, whose in zip(step.chunks, known, strict=True):
                if chunk.readout is not None:
                    end = chunk.start + len(chunk.token_ids) - chunk.output_start
                    text = self.outputs[whose.request.prompt_token_ids[0]]
                    tokens = text[end - chunk.readout.rows + 1 : end + 1]
                    samples = confirmed([Sample(token) for token in tokens], chunk.drafts)
                    result.outcomes[chunk.seq_id] = Outcome(samples)
            return result

        return PendingStep(step, collect)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--drafts", type=int, default=16, help="most of a sequence in a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quantization")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", help="the workloads whose names begin like this")
    arguments = parser.parse_args()
    llm = LLM(
        arguments.model,
        quantization=arguments.quantization,
        threads=arguments.threads,
        enable_prefix_caching=False,
        speculative_config={
            "method": arguments.method,
            "num_speculative_tokens": arguments.drafts,
        },
    )
    writing = Writing(llm.engine.executor)
    llm.engine.executor = writing
    for name, texts in _workloads(llm):
        if not name.startswith(arguments.only or ""):
            continue
        ratios, stats = [], llm.engine.stats
        for number in range(arguments.rounds + 1):
            salt = f"{name} {number}"  # what was served in another round must not help
            without = _rate(llm, writing, texts, salt, drafting=False)
            accepted, drafted = stats.num_accepted_tokens, stats.num_draft_tokens
            ratio = _rate(llm, writing, texts, salt, drafting=True) / without
            if number:  # the first warms up
                ratios.append(ratio)
        accepted, drafted = stats.num_accepted_tokens - accepted, stats.num_draft_tokens - drafted
        share = accepted / sum(len(output) for _, output in texts)
        low, high = min(ratios), max(ratios)
        print(
            f"{name:14} {statistics.median(ratios):5.2f}   ({low:.2f} to {high:.2f}); {share:.0%} "
            f"of the tokens had been drafted, and {accepted / max(1, drafted):.0%} of drafts right"
        )


def _rate(
    llm: LLM, writing: Writing, texts: Sequence[_Text], salt: str, *, drafting: bool
) -> float:
    """Output tokens a second, after all prompts have been computed."""
    engine = llm.engine
    capabilities = engine.capabilities
    if not drafting:
        engine.use(capabilities._replace(speculation=None))
    writing.outputs = {prompt[0]: output for prompt, output in texts}
    for number, (prompt, output) in enumerate(texts):
        params = SamplingParams(max_tokens=len(output), temperature=0.0, ignore_eos=True)
        given = {"prompt_token_ids": prompt, "cache_salt": salt}
        engine.add_request(str(number), given, params)
    tokens, started = 0, time.perf_counter()
    while engine.has_work:
        engine.step()
        if not tokens and all(group.expanded for group in engine.scheduler.running):
            started, tokens = time.perf_counter(), -len(texts)
    tokens += sum(len(output) for _, output in texts)
    engine.use(capabilities)
    return tokens / (time.perf_counter() - started)


def _workloads(llm: LLM) -> Iterator[tuple[str, list[_Text]]]:
    sources = sorted((_ROOT / "src").rglob("*.py"), key=lambda file: -file.stat().st_size)
    prose = "\n\n".join(file.read_text() for file in sorted((_ROOT / "docs").glob("*.md")))
    tokenizer = llm.engine.input_processor.tokenizer
    words = tokenizer.encode(prose)
    edits = [_edit(file.read_text(), tokenizer.encode, i, 250, 4) for i, file in enumerate(sources)]
    yield "edit", [_edit(sources[8].read_text(), tokenizer.encode, 0, 500, 4)]
    yield "rewrite", [_edit(sources[8].read_text(), tokenizer.encode, 0, 500, 40)]
    yield "ordinary", [_ordinary(words, 0, 400)]
    yield "edit x 64", [one for one in edits if len(one[1]) == 250][:64]
    yield "ordinary x 64", [_ordinary(words, i, 128) for i in range(64)]


def _edit(
    text: str, encode: Callable[[str], list[int]], number: int, length: int, changes: int
) -> _Text:
    """A source file, and the same with names changed and lines taken out and put in."""
    rng = random.Random(number)
    names = sorted(set(re.findall(r"\b[a-z_]{5,}\b", text)))
    changed = text
    for name in rng.sample(names, min(changes, len(names))):
        other = f"{name}_{rng.choice(['now', 'kept', 'of', 'all'])}"
        changed = re.sub(rf"\b{name}\b", other, changed)
    lines = []
    for line in changed.splitlines(keepends=True):
        chance = rng.random()
        if chance < 0.04:
            lines.append(line.replace("\n", f"  # {rng.choice(names)} {rng.choice(names)}\n"))
        elif chance > 0.03:
            lines.append(line)
    prompt, output = list(encode(text))[: 2 * length], list(encode("".join(lines)))[:length]
    return [2 + number, *prompt], output


def _ordinary(words: Sequence[int], number: int, length: int) -> _Text:
    start = 400 * number
    return [2 + number, *words[start + 300 : start + 350]], list(words[start : start + length])


if __name__ == "__main__":
    main()
