"""A model that does what its prompt says, for agents, which let the model choose among tools.

``DO [["weather", {"city": "Paris"}], ...]`` in a user's message is a plan. Each answer is the next
call of it, and the answer after the last call is ``Done.`` Where a summary is wanted it holds what
is left of the plan, so that an agent goes on after it has compacted its history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from quire.core.protocol import Opened, Outcome, Request, Sample, Step, StepResult, confirmed
from support.fake_model import FakeExecutor
from support.live_server import LiveServer, live_server

CONTEXT = 65_536
"""Tokens of the demonstration model's vocabulary, whose words are short."""
TEMPLATE = Path(__file__).parent / "template.jinja"
_BLOCK_SIZE, _CONTEXTS = 64, 4  # as many whole contexts are kept at once
_TURN = re.compile(r"<\|(system|user|assistant)\|>")
_CALL = re.compile("<tool_call>|Calling tools:")  # smolagents tells its calls in a text
_SUMMARY = re.compile("(?i)(create|write|provide)[^.]{0,60} summary|handoff|checkpoint compaction")
_PLAN = "DO ["
_RESULT = "RESULT "  # so the template marks what a tool has given


class _Turn(NamedTuple):
    role: str
    text: str


def answer(prompt: str) -> str:
    """What the model writes after a rendered conversation."""
    _, *parts = _TURN.split(prompt)
    turns = [_Turn(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)][:-1]
    tools = "".join(turn.text for turn in turns if turn.role == "system")
    plan: Sequence[Any] = ()
    for turn in turns:
        if turn.role == "assistant":
            plan = plan[len(_CALL.findall(turn.text)) :]
        elif turn.role == "user" and _PLAN in turn.text and not turn.text.startswith(_RESULT):
            plan = _plan(turn.text)
    if _SUMMARY.search(turns[-1].text) and _PLAN not in turns[-1].text:
        return f"<summary>What is left: DO {json.dumps(plan)}</summary>"
    if not plan or f'"name": {json.dumps(plan[0][0])}' not in tools:
        return "Done."
    name, arguments = plan[0]
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _plan(text: str) -> Sequence[Any]:
    """The last plan of a text."""
    calls: list[Any]
    calls, _ = json.JSONDecoder().raw_decode("[" + text.rpartition(_PLAN)[2])
    return calls


class _Unread(FakeExecutor):
    """Reads no keys: what is written depends on the prompt's text, and prompts are long."""

    def compute(self, step: Step, known: Sequence[Opened]) -> StepResult:
        self.move(step.moves)
        rows = {c.seq_id: c.readout.rows for c in step.chunks if c.readout is not None}
        outcomes = {
            seq_id: Outcome(confirmed([Sample(0)] * count, ())) if count else Outcome()
            for seq_id, count in rows.items()
        }
        return StepResult(outcomes, [])


@contextmanager
def obeying_server() -> Iterator[LiveServer]:
    """A server of this model, on a free loopback port."""
    num_blocks = CONTEXT // _BLOCK_SIZE * _CONTEXTS
    options: Mapping[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": _BLOCK_SIZE,
        "chat_template": TEMPLATE.read_text("utf-8"),
        "max_model_len": CONTEXT,
        "fake": _Unread(num_blocks, _BLOCK_SIZE),
    }
    with live_server(options, strict_model_name=False) as live:
        tokenizer, written = live.tokenizer, dict[str, Sequence[int]]()

        def author(request: Request) -> Sequence[int]:
            if request.request_id not in written:
                ids = request.prompt_token_ids
                text = answer(tokenizer.decode(ids, skip_special_tokens=False))
                tokens = tokenizer.encode(text, add_special_tokens=False)
                written[request.request_id] = [*tokens, min(request.eos_token_ids)]
            return written[request.request_id]

        live.executor.author = author
        yield live
