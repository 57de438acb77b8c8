"""The law of bits: nothing changes a bit of a request but the request.

``cd tests && python -m support.law_of_bits`` serves requests in random lives of an engine and each
of them alone, and says by form and life how many differ in any bit of a token or log-probability,
and where the first one begins to.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from quire.engine.outputs import RequestOutput
from quire.kernels import cpu
from support.engine_lives import (
    LIVES,
    Asked,
    Piece,
    adapter_settings,
    alone,
    draw_life,
    draw_requests,
    save_models,
    serve,
)
from support.instruction_sets import TESTED

_BFLOAT16 = {"dtype": "bfloat16"}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": _BFLOAT16,
    "float16": {"dtype": "float16"},
    "int8": {**_BFLOAT16, "quantization": "int8"},
    "int4": {**_BFLOAT16, "quantization": "int4"},
    "w8a8": {**_BFLOAT16, "quantization": "w8a8"},
    "w4a8": {**_BFLOAT16, "quantization": "w4a8"},
    "int8 cache": {**_BFLOAT16, "kv_cache_dtype": "int8"},
    "int4 cache": {**_BFLOAT16, "kv_cache_dtype": "int4"},
    "window": {**_BFLOAT16, "window": 272},
    "sinks": {**_BFLOAT16, "window": 272, "attention_sinks": 20},
    "adapters": {**_BFLOAT16, "enable_lora": True},  # one of two at once
}
"""Of weights, activations and the cache, as settings of an engine."""


class Difference(NamedTuple):
    """The first in a request, and what had happened to it by then."""

    number: int  # of the request
    tokens: bool  # whether it is one of tokens, not of log-probabilities alone
    where: str
    story: str

    def __str__(self) -> str:
        return f"request {self.number}, {self.where}: {self.story}"


def differences(
    directory: Path,
    settings: Mapping[str, Any],
    asked: Sequence[Asked],
    expected: Mapping[str, RequestOutput],
    kind: str,
    rng: random.Random,
) -> tuple[list[Difference], Counter[str]]:
    """Of one life of that kind from each request ``expected`` alone, one for each that has any.

    And what happened in it.
    """
    truth = {number: [o.token_ids for o in one.outputs] for number, one in expected.items()}
    life = draw_life(kind, rng, len(asked))
    found, watch = serve(directory, settings, asked, life, truth)
    compared = (
        first_difference(number, one, found[str(number)], expected[str(number)], watch.pieces)
        for number, one in enumerate(asked)
    )
    return [difference for difference in compared if difference is not None], watch.happened()


def first_difference(
    number: int,
    asked: Asked,
    found: RequestOutput,
    expected: RequestOutput,
    pieces: Mapping[str, Sequence[Piece]],
) -> Difference | None:
    tokens = [o.token_ids for o in found.outputs] != [o.token_ids for o in expected.outputs]
    both = zip(facts(found), facts(expected), strict=False)
    place = next((a[:2] for a, b in both if a != b), None)
    if place is None:
        assert not tokens
        return None
    branch, position = place
    where = f"output {branch}, row {position}" if branch >= 0 else f"prompt, row {position}"
    how = "greedy" if asked.params.greedy else "sampled"
    if asked.params.use_beam_search:
        how = "beams"
    story = _story(pieces[str(number)], max(branch, 0), position)
    return Difference(number, tokens, f"{how}, {len(asked.prompt)} in, {where}", story)


def facts(output: RequestOutput) -> Iterator[tuple[Any, ...]]:
    """All that must be equal, each with the branch (-1: the prompt) and the row it was read from.

    Floats as text that has all of their bits.
    """
    for position, table in enumerate(output.prompt_logprobs or ()):
        if table is not None:
            yield -1, position - 1, _bits(table)
    first = len(output.prompt_token_ids) - 1
    for one in output.outputs:
        tables = one.logprobs or [None] * len(one.token_ids)
        for index, (token, table) in enumerate(zip(one.token_ids, tables, strict=True)):
            yield one.index, first + index, token, None if table is None else _bits(table)
        total = one.cumulative_logprob
        end = first + len(one.token_ids) - 1
        yield one.index, end, one.finish_reason, total if total is None else total.hex()


def _bits(table: Mapping[int, Any]) -> list[tuple[int, int, str]]:
    return [(token, one.rank, one.logprob.hex()) for token, one in table.items()]


def _story(pieces: Sequence[Piece], branch: int, position: int) -> str:
    """What a request had been through when the row at ``position`` was computed."""
    words: list[str] = []
    start = next((piece.start for piece in pieces if piece.tokens), 0)
    if start:
        words.append(f"{start} found")
    ours = [piece for piece in pieces if piece.event or piece.branch in (0, branch)]
    last = max(i for i, piece in enumerate(ours) if piece.start <= position < piece.end)
    for piece in ours[: last + 1]:
        if piece.event:
            words += [piece.event] * (piece.event != "admit")
        elif piece.tokens > 1:
            drafts = f" of them {piece.drafts} drafts" if piece.drafts else ""
            words.append(f"{piece.tokens} at {piece.start}{drafts}")
        elif not words or words[-1] != "tokens":
            words.append("tokens")
    if len(words) > 14:
        words[6:-6] = ["..."]
    return f"{', '.join(words)}; at last {ours[last].rows} rows, {ours[last].beside} others"


class Tally:
    """Of one form and kind of life."""

    def __init__(self) -> None:
        self.requests = self.bits = self.tokens = 0
        self.first: Difference | None = None
        self.happened: Counter[str] = Counter()

    def add(self, requests: int, found: Sequence[Difference], happened: Counter[str]) -> None:
        self.requests += requests
        self.happened += happened
        self.bits += len(found)
        self.tokens += sum(difference.tokens for difference in found)
        if found and self.first is None:
            self.first = found[0]

    def __str__(self) -> str:
        if not self.bits:
            return "0"
        return f"{self.bits}" + (f" ({self.tokens})" if self.tokens else "")


def tallies(
    settings: Mapping[str, Any],
    models: Mapping[str, Path],
    kinds: Sequence[str],
    requests: int,
    seed: int = 0,
    at_once: int = 10,
) -> dict[str, Tally]:
    """``requests`` of each kind of life, the same in all of them, over all models."""
    result = {kind: Tally() for kind in kinds}
    for number in range(max(1, requests // at_once)):
        rng = random.Random(f"{seed} {number}")
        directory = list(models.values())[number % len(models)]
        adapted = "enable_lora" in settings
        asked = draw_requests(rng, min(at_once, requests), adapted=adapted)
        sized = {**settings, "block_size": rng.choice((4, 8, 16))}
        if adapted:
            sized |= adapter_settings(directory)
        expected = alone(directory, sized, asked)
        for kind in kinds:
            found, happened = differences(directory, sized, asked, expected, kind, rng)
            result[kind].add(len(asked), found, happened)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), metavar="FORM")
    parser.add_argument("--lives", nargs="+", choices=LIVES, default=list(LIVES), metavar="LIFE")
    parser.add_argument("--requests", type=int, default=20, help="of each form in each life")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu-isa", default="auto", help="the build of the kernels (%(default)s)")
    arguments = parser.parse_args()
    print(f"of {arguments.requests} requests, those with other bits (with other tokens) than alone")
    print("".join(f"{name:>12}" for name in ("", *arguments.lives)), flush=True)
    firsts, happened = [], Counter[str]()
    for_tests = mock.patch.object(cpu, "all_builds", lambda: TESTED)  # amx_portable as well
    with for_tests, tempfile.TemporaryDirectory() as directory:
        models = save_models(Path(directory))
        for form in arguments.forms:
            settings = {**FORMS[form], "cpu_isa": arguments.cpu_isa}
            found = tallies(settings, models, arguments.lives, arguments.requests, arguments.seed)
            print("".join(f"{text!s:>12}" for text in (form, *found.values())), flush=True)
            firsts += [(form, kind, one.first) for kind, one in found.items() if one.first]
            happened += sum((one.happened for one in found.values()), Counter())
    print(f"\nwhat happened: {', '.join(f'{n:,} {what}' for what, n in happened.items())}")
    for form, kind, first in firsts:
        print(f"\n{form}, {kind}: {first}")


if __name__ == "__main__":
    main()
