"""Requests to a server over HTTP: its facts, and answers with the times of their tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from quire.core.errors import ConfigError
from quire_lab.bench.http_client import HttpClient, HttpReply
from quire_lab.calibration.client.probes import Stream

_PATIENCE = 10.0  # seconds, for facts
_LONGEST = 120.0  # of an answer
_TOKENS = (10, 1000)  # ids that any vocabulary has, above the special ones
_CACHE = re.compile(r"^\w+:cache_config_info\{(.*)\}", re.M)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_AT_ONCE = 1.5  # tokens of an event, in the mean, from which on steps cannot be told apart
_WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "as", "with")


class Target(NamedTuple):
    url: str
    api_key: str | None = None
    model: str | None = None  # its name there; None: the first that is listed

    @property
    def shown(self) -> str:
        """Without a password."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class ServerFacts(NamedTuple):
    """The facts that a server reports; None: it does not."""

    model: str
    max_model_len: int | None
    block_size: int | None
    num_blocks: int | None


class Refused(Exception):
    """The server does not accept requests of this form."""


def look_at(target: Target) -> ServerFacts:
    """The facts of a server. ConfigError: none is there, it needs a key, or lacks the model."""
    try:
        return asyncio.run(_facts(target))
    except (OSError, EOFError, asyncio.TimeoutError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = "it did not answer in time" if isinstance(error, asyncio.TimeoutError) else error
        raise ConfigError(f"url: {target.shown} does not list its models: {reason}") from None


async def _facts(target: Target) -> ServerFacts:
    client = HttpClient(target.url, target.api_key)
    cards = json.loads(await asyncio.wait_for(client.get("/v1/models"), _PATIENCE))["data"]
    names = [str(card["id"]) for card in cards]
    card = next((card for card in cards if target.model in (None, card["id"])), None)
    if card is None:
        listed = ", ".join(names[:5]) or "none"
        raise ConfigError(f"served_model_name: {target.shown} has {listed}, not {target.model}")
    cache: Mapping[str, str] = {}
    with contextlib.suppress(OSError, EOFError, ValueError, asyncio.TimeoutError):
        # There may be no such page, or not for everybody.
        cache = cache_config(await asyncio.wait_for(client.get("/metrics"), _PATIENCE))
    length = card.get("max_model_len")
    return ServerFacts(
        str(card["id"]),
        length if isinstance(length, int) else None,
        _count(cache.get("block_size")),
        _count(cache.get("num_gpu_blocks")),
    )


def cache_config(metrics: str) -> dict[str, str]:
    """The facts about the KV pool in /metrics, here as in vLLM's."""
    found = _CACHE.search(metrics)
    return {} if found is None else dict(_LABEL.findall(found[1]))


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None


class TimedServer:
    """Answers of a server, in the first form of request that it takes."""

    def __init__(self, target: Target, model: str) -> None:
        self._target = target
        self._client = HttpClient(target.url, target.api_key)
        self._model = model
        self._random = Random(time.time_ns())  # new prompts: no prefix is cached
        self._forms = [*_FORMS]

    async def ask(
        self, prompt_tokens: int, output_tokens: int, heard: Callable[[], None] | None = None
    ) -> Stream:
        """``heard``: called at the first token. ConfigError if there is no answer to time."""
        refusals = []
        for form in [*self._forms]:
            try:
                stream = await self._ask(form, prompt_tokens, output_tokens, heard)
            except Refused as error:
                refusals.append(str(error))
            else:
                self._forms = [form]
                return stream
        raise ConfigError(f"url: {self._target.shown} refuses to be asked: {refusals[0]}")

    async def _ask(
        self,
        form: RequestForm,
        prompt_tokens: int,
        output_tokens: int,
        heard: Callable[[], None] | None,
    ) -> Stream:
        body = {
            "model": self._model, "max_tokens": output_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **form.body(self._random, prompt_tokens),
        }  # fmt: skip
        where = f"url: {self._target.shown}{form.path}"

        async def answer() -> Stream:
            sent = time.perf_counter()
            async with self._client.send("POST", form.path, body) as reply:
                await _check(reply, where)
                return await _read(reply, sent, prompt_tokens, heard, where)

        try:
            return await asyncio.wait_for(answer(), _LONGEST)
        except asyncio.TimeoutError:
            raise ConfigError(f"{where} did not answer within {_LONGEST:.0f} s") from None
        except (OSError, EOFError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{where} broke off: {error}") from None


async def _check(reply: HttpReply, where: str) -> None:
    if reply.status in (400, 404, 405, 422):
        raise Refused(f"status {reply.status}: {_line(await reply.body())}")
    if reply.status != 200:
        raise ConfigError(f"{where} answered {reply.status}: {_line(await reply.body())}")
    kind = reply.headers.get("content-type", "none")
    if not kind.startswith("text/event-stream"):
        raise ConfigError(f"{where} answers no stream of events (content-type {kind})")


def _line(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:300]


async def _read(
    reply: HttpReply,
    sent: float,
    prompt_tokens: int,
    heard: Callable[[], None] | None,
    where: str,
) -> Stream:
    times: list[float] = []
    usage: Mapping[str, Any] = {}
    async for event in reply.events():
        now = time.perf_counter()
        if not isinstance(event, dict) or event.get("error"):
            raise ConfigError(f"{where} failed: {str(event)[:300]}")
        usage = event.get("usage") or usage
        if any(_says(choice) for choice in event.get("choices") or ()):
            times.append(now)
            if len(times) == 1 and heard is not None:
                heard()
    if not times:
        raise ConfigError(f"{where} answered without a token")
    came = int(usage.get("completion_tokens") or len(times))
    if came > _AT_ONCE * len(times) and came > 2:
        raise ConfigError(
            f"{where} sends {came / len(times):.1f} tokens at a time (speculation?): steps cannot "
            "be told apart"
        )
    return Stream(sent, times, int(usage.get("prompt_tokens") or prompt_tokens))


def _says(choice: Mapping[str, Any]) -> bool:
    """Whether a token is in it; a chat's first event has none."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(name) for name in ("content", "reasoning", "reasoning_content"))
    return choice.get("text") is not None and (
        bool(choice["text"]) or choice.get("finish_reason") is None
    )


class RequestForm(NamedTuple):
    """A form of request for the answer to a prompt of some number of tokens."""

    path: str
    body: Callable[[Random, int], dict[str, Any]]


def _ids(random: Random, count: int) -> list[int]:
    return [random.randrange(*_TOKENS) for _ in range(count)]


def _text(random: Random, count: int) -> str:
    """About a token a word."""
    return " ".join(random.choices(_WORDS, k=count))


def _messages(random: Random, count: int) -> Sequence[Mapping[str, str]]:
    return [{"role": "user", "content": _text(random, count)}]


_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_FORMS = (
    RequestForm(_COMPLETIONS, lambda random, n: {"prompt": _ids(random, n), "ignore_eos": True}),
    RequestForm(_COMPLETIONS, lambda random, n: {"prompt": _text(random, n), "ignore_eos": True}),
    RequestForm(_COMPLETIONS, lambda random, n: {"prompt": _text(random, n)}),
    RequestForm(_CHAT, lambda random, n: {"messages": _messages(random, n), "ignore_eos": True}),
    RequestForm(_CHAT, lambda random, n: {"messages": _messages(random, n)}),
)
"""In the order in which they are tried. Of a text, the answer's usage tells the length."""
