"""Lines of system prompts that change with every request."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.http.config.server import ServerConfig
from quire.http.config.volatile import rules_of, settled
from support.live_server import LiveServer, live_server

HEADER = "x-anthropic-billing-header: cc_version=2.1.{}; cc_entrypoint=cli; cch=0{};"
RULE = "x-anthropic-billing-header:*"
TOOLS = "You are an agent, and have many tools. " * 10
FIRST = {"role": "user", "content": "Read the code."}
SECOND = [
    FIRST,
    {"role": "assistant", "content": "It is read."},
    {"role": "user", "content": "Now change it."},
]


def messages(number: int, *others: Any) -> list[Any]:
    system = f"{HEADER.format(number, number)}\n{TOOLS}"
    return [{"role": "system", "content": system}, *(others or (FIRST,))]


def test_lines_go_to_the_end_or_out_of_the_prompt() -> None:
    said = messages(7, *SECOND)
    for action in ("move", "cut"):
        warnings: list[str] = []
        put = settled(said, rules_of((f"{RULE}:{action}",)), warnings)
        assert [one["content"] for one in put[:3]] == [TOOLS, "Read the code.", "It is read."]
        moved = f"\n{HEADER.format(7, 7)}" if action == "move" else ""
        assert put[3]["content"] == f"Now change it.{moved}"
        done = "moved to the end of the prompt" if moved else "cut"
        why = "as --volatile-prompt-lines says"
        assert warnings == [f"1 line of the system prompt was {done}, {why}"]
    assert said == messages(7, *SECOND)  # a caller's own are left as they are


def test_what_no_rule_names_stays() -> None:
    for rule, said in (
        ("a*z:cut", [{"role": "system", "content": "abc\nabcz \n" + "a" * 5000 + "z"}, FIRST]),
        ("Read*:cut", messages(7)),  # it is the user's
        (f"{RULE}:move", [{"role": "assistant", "content": HEADER}]),
        (f"{RULE}:move", [{"role": "system", "content": None}, FIRST]),
        ("(a+)+b:cut", [{"role": "system", "content": "aab"}, FIRST]),  # it is no expression
    ):
        warnings: list[str] = []
        assert settled(said, rules_of((rule,)), warnings) == said and not warnings


def test_what_a_system_says_later_is_the_end_too() -> None:
    later = {"role": "system", "content": "There are agents."}
    put = settled(messages(7, FIRST, later), rules_of((f"{RULE}:move",)), [])
    assert [one["content"] for one in put[1:]] == [
        "Read the code.", f"There are agents.\n{HEADER.format(7, 7)}"
    ]  # fmt: skip


def test_the_first_rule_that_names_a_line_counts() -> None:
    said: Any = [{"role": "developer", "content": "date: 1\r\ntime: 2\nx\ntime: 3"}, FIRST]
    warnings: list[str] = []
    put = settled(said, rules_of(("time: 3:cut", "[dt]?[tm]e: ?:move")), warnings)
    assert [one["content"] for one in put] == ["x", "Read the code.\ndate: 1\r\ntime: 2"]
    assert [one[:30] for one in warnings] == [
        "2 lines of the system prompt w", "1 line of the system prompt wa"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "why"),
    [("x", "PATTERN:cut"), ("x:drop", "PATTERN:cut"), (":cut", "characters"), ("*:cut", "only"),
     ("x" * 300 + ":cut", "characters")],
)  # fmt: skip
def test_a_rule_that_is_none_is_refused_at_the_start(rule: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ServerConfig(volatile_prompt_lines=[rule])
    with pytest.raises(ConfigError, match="at most 16"):
        ServerConfig(volatile_prompt_lines=["x:cut"] * 17)


def test_a_pattern_takes_no_longer_than_its_line() -> None:
    (rule,) = rules_of(("*a*a*a*a*a*a*a*a*a*a*a*a*b:cut",))
    assert not rule.matches("a" * 4096)


@pytest.mark.parametrize("door", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_the_next_turn_finds_what_stands_before(door: str) -> None:
    shares = {}
    for action in ("", "move", "cut"):
        rules = [f"{RULE}:{action}"] if action else []
        with live_server(
            {"block_size": 4, "max_model_len": 512}, volatile_prompt_lines=rules
        ) as server:
            (_, _, first), (cached, size, warnings) = (
                ask(server, door, messages(number, *others))
                for number, others in ((1, (FIRST,)), (2, SECOND))
            )
            assert first == warnings
            assert bool(warnings) is bool(action)
            shares[action] = cached / size
    assert shares[""] < 0.35 and shares["move"] > 0.5 and shares["cut"] > 0.7
    assert shares["cut"] > shares["move"]


def ask(server: LiveServer, door: str, said: list[Any]) -> tuple[int, int, list[str]]:
    """Cached tokens of the prompt, all of them, and the warnings."""
    body: dict[str, Any] = {"model": "demo"}
    if door == "/v1/messages":
        blocks = [{"type": "text", "text": part} for part in said[0]["content"].split("\n")]
        body |= {"messages": said[1:], "system": blocks, "max_tokens": 1}
    elif door == "/v1/responses":
        body |= {"input": said[1:], "instructions": said[0]["content"], "max_output_tokens": 1}
    else:
        body |= {"messages": said, "max_tokens": 1}
    told = server.http.post(door, json=body).json()
    usage, warnings = told["usage"], told.get("warnings", [])
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"]
        return cached, cached + usage["input_tokens"], warnings
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    return details["cached_tokens"], usage.get("prompt_tokens") or usage["input_tokens"], warnings
