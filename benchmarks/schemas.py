"""What becomes of real JSON schemas, sent to a running server one and all.

    quire serve --port 8000
    python benchmarks/schemas.py FILE [--url http://127.0.0.1:8000] [--temperature 2]

FILE has a JSON object with a "schema" in each line. Every schema is either refused by name, or its
text is cut by max_tokens, or valid by the jsonschema library; anything else is told, and ends the
script with status 1. A model with random weights and a high temperature is the sharpest test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import jsonschema


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=16)
    arguments = parser.parse_args()
    lines = arguments.file.read_text(encoding="utf-8").splitlines()
    found, slowest = asyncio.run(_send([json.loads(line)["schema"] for line in lines], arguments))
    wrong = 0
    for (what, detail), count in sorted(found.items(), key=lambda item: (item[0][0], -item[1])):
        wrong += count if what.startswith("WRONG") else 0
        print(f"{count:5d}  {what}  {detail}")
    print(f"the server's slowest answer to /health meanwhile: {1e3 * slowest:.0f} ms")
    sys.exit(wrong > 0)


async def _send(
    schemas: list[Any], arguments: argparse.Namespace
) -> tuple[Counter[tuple[str, str]], float]:
    found: Counter[tuple[str, str]] = Counter()
    turns = asyncio.Semaphore(arguments.at_once)
    async with httpx.AsyncClient(base_url=arguments.url, timeout=300) as client:

        async def one(number: int, schema: Any) -> None:
            async with turns:
                body = {
                    "prompt": "Here is the object:",
                    "temperature": arguments.temperature,
                    "seed": number,
                    "max_tokens": arguments.tokens,
                    "structured_outputs": {"json": schema},
                }
                answer = await client.post("/v1/completions", json=body)
                found[_judged(answer, schema)] += 1

        watch = asyncio.create_task(_watch(client))
        await asyncio.gather(*(one(i, schema) for i, schema in enumerate(schemas)))
        watch.cancel()
        return found, await watch


async def _watch(client: httpx.AsyncClient) -> float:
    """The slowest answer, until cancelled."""
    slowest = 0.0
    try:
        while True:
            started = time.perf_counter()
            (await client.get("/health")).raise_for_status()
            slowest = max(slowest, time.perf_counter() - started)
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        return slowest


def _judged(answer: httpx.Response, schema: Any) -> tuple[str, str]:
    body = answer.json()
    if answer.status_code == 400:
        named = body["error"]["param"] == "structured_outputs"
        return ("refused" if named else "WRONG: refused"), body["error"]["message"][:90]
    if answer.status_code != 200:
        return "WRONG: failed", f"{answer.status_code} {body['error']['message'][:120]}"
    (choice,) = body["choices"]
    if choice["finish_reason"] == "length":
        return "cut by max_tokens", ""
    try:
        jsonschema.validate(json.loads(choice["text"]), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return "WRONG: invalid", f"{str(error)[:100]} in {choice['text'][:100]!r}"
    return "valid", ""


if __name__ == "__main__":
    main()
