"""The clients of a life: each knows what it must be told, and when it may be told otherwise."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import TYPE_CHECKING, Any

from quire.core.protocol import SoftCut
from world.exchange import Answer, Exchange
from world.oracle import Oracle
from world.script import KEYS, Ask, Nonsense, Talk
from world.server import MODEL, VirtualServer

if TYPE_CHECKING:
    from world.life import Life

_LONGEST = 4 * 3600.0  # seconds in which any answer must have ended
_Json = dict[str, Any]


class Clients:
    """Every answer is the oracle's text, or an error for which there is a reason."""

    def __init__(self, life: Life, oracle: Oracle) -> None:
        self._life = life
        self._oracle = oracle

    # -- what they do ------------------------------------------------------------------------------

    async def ask(self, event: Ask) -> None:
        exchange = Exchange(
            "POST", "/v1/completions", json.dumps(_body(event)).encode(), key=event.key,
            upload=event.upload, unfinished=event.unfinished,
            dawdle=event.dawdle if event.stream else 0.0,
        )  # fmt: skip
        server = self._life.server
        answer = await self._carry_out(exchange, event.patience)
        if answer.status != 200:
            self._check_refusal(event, answer, server)
            return
        texts = self._oracle.texts(event) * event.copies
        if event.stream:
            self._check_stream(event, answer, texts, server)
        elif answer.complete:
            told = answer.json()
            assert [choice["text"] for choice in told["choices"]] == texts, "another text"
            assert told["usage"]["prompt_tokens"] == len(event.prompt) * event.copies
        else:
            assert answer.hung_up

    async def talk(self, event: Talk) -> None:
        """Open a session, take its turns, and close it or leave it; at the first refusal, leave."""
        opened = await self._session(event, "POST", "", {"model": MODEL})
        if opened is None:
            return
        path, history, cuts = f"/{opened['id']}", list[int](), list[SoftCut]()
        for number, (given, max_tokens, seed) in enumerate(event.turns):
            wish = event.soft_cuts[number]
            cut = None if wish is None else SoftCut(0, len(history), *wish)
            if cut is not None and not await self._soft_cut(event, path, cut, cuts):
                return
            body: _Json = {"input": given}
            if await self._session(event, "POST", f"{path}/append", body) is None:
                return
            history += given
            hurry = 1.0 if number == event.leaves_during else None
            body = {"max_tokens": max_tokens, "seed": seed}
            told = await self._session(event, "POST", f"{path}/generate", body, hurry)
            if told is None:
                return
            output = self._oracle.turn(history, max_tokens, seed, cuts)
            assert told["choices"][0]["text"] == self._oracle.text(output), "another text"
            assert told["usage"]["prompt_tokens"] == len(given)
            history += output
            await asyncio.sleep(event.pause)
            known = await self._session(event, "GET", path)
            if known is None:
                return
            assert (known["num_tokens"], known["busy"]) == (len(history), False)
        if event.closes:
            await self._session(event, "DELETE", path)

    async def _soft_cut(self, event: Talk, path: str, cut: SoftCut, cuts: list[SoftCut]) -> bool:
        """Ask for one more cut; whether it was made."""
        body: _Json = {"bias": "-inf" if cut.bias == -math.inf else cut.bias, "fade": cut.fade}
        told = await self._session(event, "POST", f"{path}/soft_cut", body)
        if told is None:
            return False
        if cut.bias:  # else it would change nothing
            cuts.append(cut)
        assert [one["position"] for one in told["soft_cuts"]] == [one.position for one in cuts]
        return True

    async def _session(
        self,
        event: Talk,
        method: str,
        path: str,
        body: _Json | None = None,
        patience: float | None = None,
    ) -> Any:
        """What is told, or None: it was refused, for a reason, or nobody waits for it any more."""
        content = b"" if body is None else json.dumps(body).encode()
        exchange = Exchange(method, f"/v1/sessions{path}", content, key=event.key)
        server = self._life.server
        answer = await self._carry_out(exchange, patience)
        if answer.status == 200 and answer.complete:
            return answer.json()
        if not (answer.status and answer.complete):
            assert answer.hung_up or server.ends, "no answer at all"
            return None
        error = self._check_error(answer)
        if error["code"] == "queue_timeout":
            assert answer.headers["retry-after"] and self._has_waited(answer)
        elif answer.status == 404:
            timeout = self._life.script.settings.session_timeout
            expired = timeout and event.pause >= timeout
            assert expired or self._life.weather.jumps or self._life.num_servers > 1, "lost"
        elif answer.status != 429:
            assert self._life.excused(answer, server), (answer.status, answer.body)
        return None

    async def talk_nonsense(self, event: Nonsense) -> None:
        server = self._life.server
        answer = await self._carry_out(Exchange("POST", event.path, event.body, key=event.key))
        if answer.status == 200:  # only a part of it was none
            told = answer.json()
            if event.path != "/v1/sessions":
                assert told["model"] == MODEL
            if b'"model": "demo"' not in event.body:  # whoever is alone answers to any name
                assert b'"model": "other"' in event.body
                warning = f"model 'other' is not served here: {MODEL} has answered"
                assert told["warnings"] == [warning], told
            return
        self._check_error(answer)
        assert 400 <= answer.status < 500 or self._life.excused(answer, server), answer

    async def look(self) -> None:
        """Health is told at once, whatever happens."""
        server, loop = self._life.server, asyncio.get_running_loop()
        for path in ("/health", "/metrics", "/v1/models"):
            start = loop.time()
            answer = await self._carry_out(Exchange("GET", path, key=KEYS[1]))
            assert loop.time() == start, f"{path} has to wait"
            if path == "/health":
                assert (answer.status == 200) == (not server.ends), answer
            else:
                assert answer.status == 200, answer

    # -- what they are told ------------------------------------------------------------------------

    def _check_stream(
        self, event: Ask, answer: Answer, texts: list[str], server: VirtualServer
    ) -> None:
        got, failed = [""] * len(texts), False
        for told in answer.events:
            if "error" in told:  # a refusal too, once a sign of life has gone out
                failed = True
                if not any(got) and self._is_refusal(event, told["error"], answer):
                    return
                continue
            for choice in told["choices"]:
                got[choice["index"]] += choice["text"]
        if answer.body.endswith(b"data: [DONE]\n\n"):
            assert got == texts, "another text"
            return
        cut = failed and self._life.excused(answer, server)
        assert answer.hung_up or cut, "a stream was cut"
        for piece, text in zip(got, texts, strict=True):
            assert text.startswith(piece), "another text"

    def _check_refusal(self, event: Ask, answer: Answer, server: VirtualServer) -> None:
        if not (answer.status and answer.complete):
            assert answer.hung_up or event.unfinished or server.ends, "no answer at all"
            return
        error = self._check_error(answer)
        match answer.status:
            case 400:
                assert self._is_refusable(event, error), error
            case 408:
                longest = self._life.script.settings.request_read_timeout
                assert event.unfinished or event.upload > longest
            case 429:
                assert error["code"] == "queue_full" and answer.headers["retry-after"]
            case 503 if error["code"] == "queue_timeout":
                assert answer.headers["retry-after"] and self._has_waited(answer)
            case _:
                assert self._life.excused(answer, server), (answer.status, answer.body)

    def _is_refusal(self, event: Ask, error: _Json, answer: Answer) -> bool:
        if error["code"] == "queue_timeout":
            return self._has_waited(answer)
        return error["code"] == "queue_full" or self._is_refusable(event, error)

    def _is_refusable(self, event: Ask, error: _Json) -> bool:
        settings = self._life.script.settings
        refusable = {"priority": event.priority and settings.policy.value == "fcfs"}
        fits = len(event.prompt) + event.max_tokens <= settings.num_blocks
        refusable["n"] = not fits or max(event.n, event.beams) > settings.max_num_seqs
        return bool(refusable.get(error["param"]))

    def _has_waited(self, answer: Answer) -> bool:
        longest = self._life.script.settings.max_queue_time
        waited = answer.ended - answer.asked >= (longest or 0.0)
        return bool(longest) and (waited or self._life.jumped(answer))

    def _check_error(self, answer: Answer) -> _Json:
        error: _Json = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(answer.body) < 1000
        return error

    async def _carry_out(self, exchange: Exchange, patience: float | None = None) -> Answer:
        if patience is not None:
            asyncio.get_running_loop().call_later(patience, exchange.hang_up)
        answer = await asyncio.wait_for(self._life.server.call(exchange), _LONGEST)
        told = answer.body.decode(errors="replace") if answer.status >= 400 else answer.complete
        line = f"{exchange.path}: {answer.status} {told}"
        self._life.note(re.sub(r"session-\w+", "session", line))  # whose ids are drawn anew
        return answer


def _body(event: Ask) -> _Json:
    body: _Json = {
        "model": MODEL, "prompt": [list(event.prompt)] * event.copies,
        "max_tokens": event.max_tokens, "stream": event.stream, "n": event.n,
    }  # fmt: skip
    if event.beams:
        body |= {"use_beam_search": True, "n": 1, "beam_width": event.beams}
    else:
        body |= {"seed": event.seed, "stop": list(event.stop)}
    if event.user:
        body["user"] = event.user
    if event.priority:
        body["priority"] = event.priority
    return body
