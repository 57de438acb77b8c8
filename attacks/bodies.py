"""JSON that is deep, wide, broken, or no JSON."""

from __future__ import annotations

import gzip
import json
import random

from attacks.attack import (
    SERVED,
    TOO_LARGE,
    Attack,
    chat,
    completion,
    posting,
    posting_chats,
)
from attacks.crowd import crowd
from attacks.target import Target, http_request

_MANY = 100_000
_MILLION = 10**6


def messages(target: Target) -> bytes:
    return chat(target, messages=[{"role": "user", "content": "a"}] * _MANY)


def parts(target: Target) -> bytes:
    content = [{"type": "text", "text": "a"}] * _MANY
    return chat(target, messages=[{"role": "user", "content": content}])


def tools(target: Target) -> bytes:
    return chat(target, tools=[{"type": "function", "function": {"name": "f"}}] * _MANY)


def with_prompt(target: Target, prompt: bytes) -> bytes:
    return completion(target, prompt=0).replace(b'"prompt": 0', b'"prompt": ' + prompt)


def deep_lists(target: Target) -> bytes:
    return with_prompt(target, b"[" * _MILLION + b"]" * _MILLION)


def deep_objects(target: Target) -> bytes:
    depth = _MANY
    return with_prompt(target, b'{"a":' * depth + b"1" + b"}" * depth)


def empty_lists(target: Target) -> bytes:
    return with_prompt(target, b"[" + b"[]," * _MILLION + b"[]]")


def lists_of_one(target: Target) -> bytes:
    return with_prompt(target, b"[" + b"[7]," * _MILLION + b"[7]]")


def same_field(target: Target) -> bytes:
    return b"{" + b'"prompt":"a",' * _MILLION + completion(target)[1:]


def half_characters(target: Target) -> bytes:
    r"""Halves of pairs, which JSON can spell: \ud800."""
    return with_prompt(target, b'"' + rb"\ud800" * _MANY + b'"')


def unclosed(target: Target) -> bytes:
    """Wrong at its very end."""
    return with_prompt(target, b'"' + b"a" * 10 * _MILLION)


def calls(target: Target) -> bytes:
    """A conversation of calls and what they gave, of which much is made before it is refused."""
    items = [
        {"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"}
        if i % 2 == 0
        else {"type": "function_call_output", "call_id": f"c{i - 1}", "output": "a" * 100}
        for i in range(3_000)
    ]
    body = {"model": target.limits.model, "input": items, "max_output_tokens": 16}
    return json.dumps(body).encode()


def reasoning(target: Target) -> bytes:
    """One turn's, in as many items as there may be, each as long as the body has room for."""
    count = 2_500
    text = "a" * ((target.limits.max_body_bytes - 2_000) // count - 100)
    item = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": text}]}
    return json.dumps({"model": target.limits.model, "input": [item] * count}).encode()


def digits(target: Target) -> bytes:
    """Nearly numbers that would be rounded, wherever one looks."""
    size = target.limits.max_body_bytes - 2_000
    return with_prompt(target, b'"' + b"0123456789012345x" * (size // 17) + b'"')


def _packed(target: Target, content: bytes) -> bytes:
    body = gzip.compress(content)
    head = http_request("/v1/completions", body).removesuffix(body)
    return head.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + body


def packed(target: Target) -> None:
    """What unpacks to much, or to what takes long to parse."""
    few = completion(target, prompt="")
    contents = (few.replace(b'""', b'"' + b"a" * 40 * _MILLION + b'"'), empty_lists(target))
    crowd(target, [_packed(target, content) for content in contents], 2, 0.2)


def garbage(target: Target) -> bytes:
    return random.Random(0).randbytes(10 * _MILLION)


BODIES = (
    Attack("100,000 messages", posting_chats(messages), TOO_LARGE),
    Attack("100,000 parts of a message", posting_chats(parts), TOO_LARGE),
    Attack("100,000 tools", posting_chats(tools), TOO_LARGE),
    Attack("a million lists in each other", posting(deep_lists), TOO_LARGE),
    Attack("100,000 objects in each other", posting(deep_objects), TOO_LARGE),
    Attack("a million empty lists", posting(empty_lists), TOO_LARGE),
    Attack("a million prompts of a token", posting(lists_of_one), TOO_LARGE),
    Attack("one field a million times", posting(same_field), SERVED | TOO_LARGE),
    Attack("halves of characters", posting(half_characters), TOO_LARGE),
    Attack("10 MB that end too early", posting(unclosed), TOO_LARGE),
    Attack("10 MB of random bytes", posting(garbage), TOO_LARGE),
    Attack("3,000 calls in a body", posting(calls, path="/v1/responses"), TOO_LARGE),
    Attack("reasoning in 2,500 items", posting(reasoning, path="/v1/responses"), TOO_LARGE),
    Attack("a body of digits", posting(digits), TOO_LARGE),
    Attack("40 MB in a packed body", packed, TOO_LARGE),
)
