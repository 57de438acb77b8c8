"""What it costs to tell reasoning and calls in a text that streams: microseconds a token.

    python benchmarks/parsing.py

The texts come in pieces of some four characters, as tokens do. The ways take turns, and each
figure is the best of all turns: what remains of a machine that does other things too.
"""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise

from quire.text.dialect import DIALECTS, REASONING, OutputParser

_TURNS = 30
_TOOLS = {"write": {"properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}}
_PROSE = "The function reads a file line by line, and keeps those where a < b; it's done.\n" * 12
_ARGUMENTS = {"path": "src/main.py", "text": 'print("hello")\n' * 40, "lines": 40}
_JSON = json.dumps({"name": "write", "arguments": _ARGUMENTS})
_XML = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in _ARGUMENTS.items())
_CALLS = {
    "hermes": f"<tool_call>\n{_JSON}\n</tool_call>",
    "qwen3_xml": f"<tool_call>\n<function=write>\n{_XML}</function>\n</tool_call>",
    "mistral": f"[TOOL_CALLS]write[ARGS]{json.dumps(_ARGUMENTS)}",
    "llama3_json": _JSON.replace('"arguments"', '"parameters"'),
    "pythonic": f"[write({', '.join(f'{key}={value!r}' for key, value in _ARGUMENTS.items())})]",
}


def pieces(text: str, seed: int = 0) -> list[str]:
    chance, cut = random.Random(seed), [0]
    while cut[-1] < len(text):
        cut.append(cut[-1] + chance.randint(1, 7))
    return [text[start:end] for start, end in pairwise(cut)]


def seconds(parser: OutputParser, tokens: list[str]) -> float:
    start = time.perf_counter()
    for token in tokens:
        parser.push(token)
    parser.finish()
    return time.perf_counter() - start


def main() -> None:
    think = REASONING["qwen3"]
    cases = {}
    for name, call in _CALLS.items():
        form = DIALECTS[name].form
        cases[f"{name}: text"] = (form, pieces(_PROSE))
        cases[f"{name}: calls"] = (form, pieces(call))
        cases[f"{name}: reasoning"] = (form, pieces(f"<think>\n{_PROSE}</think>\n\nYes."))
    cases["no tools: text"] = (None, pieces(_PROSE))
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(_TURNS):
        for name, (form, tokens) in cases.items():
            took = seconds(OutputParser(form, _TOOLS, think), tokens)
            best[name] = min(best[name], took / len(tokens))
    for name, least in best.items():
        print(f"{name:24} {1e6 * least:5.2f} us a token")


if __name__ == "__main__":
    main()
