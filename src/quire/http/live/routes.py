"""The routes under /v1/quire: the engine's memory and its reasons."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from functools import partial
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.core.errors import QuireError, RequestAbortedError
from quire.engine.stats import History
from quire.http.answers.rendering import respond
from quire.http.answers.streaming import DATA, event
from quire.http.errors import UnknownRequestError
from quire.http.live.state import (
    AbortedRequest,
    BlockStory,
    DecisionList,
    EngineReader,
    EngineState,
    Moment,
    MomentList,
    RequestStory,
)
from quire.http.live.watching import BlockWatch, Queries
from quire.http.openapi import Responses, gives
from quire.http.service import Service

_ABORTED = "an operator of this server has ended the request"
_SILENCE = 15.0  # seconds, after which a stream says that it is there
_UNREAD = 30.0  # seconds for which a client may read nothing
_BINARY = "application/octet-stream"
_ABOUT_BLOCKS = (
    "A snapshot. Little-endian: `QB`, format 1 (1 byte), kind 0 (1), the frame's number (4), "
    "the step (4), the number of blocks n (4), seconds since 1970 (8, a float); then, for all "
    "blocks, columns: owner (4 bytes each), sequences that hold it (2), times found (2), state "
    "(1): 0 free, 1 cached, 2 reserved, 3 used, 4 attention sink, 5 in a window. "
    "An owner is a request's or a session's `number`, the lowest of several, 0: nobody."
)
_ABOUT_STREAM = (
    "With `stream=true`, server-sent events. The data of each are a frame in base64: first such a "
    "snapshot, then deltas, at most ten a second: kind 1, with n blocks that have changed, and "
    "before the other columns one of their numbers (4 bytes each). A frame's number is that of "
    "the one before and 1, but for a snapshot in between, for those who have not kept up. "
    "With `pressure=true`, too, the data are an object: `blocks` is the frame, null where no "
    "block has changed, and `pressure` is of the same moment: `pool` and `kv_efficiency` as in "
    "the state, `num_running`, `num_waiting`, `num_preempted`, and `first` in the queue."
)
_BLOCKS: Responses = {
    200: {
        "description": "All blocks.",
        "content": {
            _BINARY: {
                "schema": {"type": "string", "format": "binary", "description": _ABOUT_BLOCKS}
            },
            DATA.media_type: {"schema": {"type": "string", "description": _ABOUT_STREAM}},
        },
    },
    429: {"description": "As many watch as may."},
}
_NOT_STORED = {"cache-control": "no-store"}
Limit = Annotated[int, Query(ge=0, le=1000)]


logger = logging.getLogger(__name__)


def add_live(
    app: FastAPI, service: Service, reader: EngineReader, watch: BlockWatch, past: History[Moment]
) -> None:
    """The routes under /v1/quire."""
    ask, show_text = Queries(service.engine).ask, service.config.dashboard_show_text

    @app.get("/v1/quire/state", responses=gives(EngineState))
    async def state(limit: Limit = 100) -> Response:
        """The pool, who runs and who waits for what, and how fast it all is.

        `limit`: requests of each kind that are described.
        """
        return _json(await ask(("state", limit), partial(reader.state, limit)))

    @app.get("/v1/quire/history", responses=gives(MomentList))
    async def history() -> Response:
        """The latest ten minutes, while there were steps, in moments three seconds apart."""
        return _json(await ask("history", lambda: MomentList(data=[*past.moments])))

    @app.get("/v1/quire/decisions", responses=gives(DecisionList))
    async def decisions(since: int = 0, limit: Limit = 1000) -> Response:
        """What the scheduler has decided of late, and the figures it had, oldest first.

        `since`: a decision's number; only those after it are listed.
        """
        return _json(
            await ask(("decisions", since, limit), partial(reader.decisions, since, limit))
        )

    @app.get("/v1/quire/requests/{request_id:path}", responses=gives(RequestStory, None, 404))
    async def request(request_id: str) -> Response:
        """One request, its block tables and what was decided about it."""
        story = partial(reader.story, request_id, show_text=show_text)
        return _json(await ask(("request", request_id), story))

    @app.delete("/v1/quire/requests/{request_id:path}", responses=gives(AbortedRequest, None, 404))
    async def abort(http: Request, request_id: str) -> Response:
        """End a request. Its client gets an error, and its blocks are free at once.

        With several keys, only with the one that it came with: they are different clients'.
        """
        may_end = service.caller(http).may_use
        if not await service.engine.end(request_id, RequestAbortedError(_ABORTED), may_end):
            raise UnknownRequestError(request_id)
        logger.info("request %.200r has been ended by an operator", request_id)
        return respond(AbortedRequest(id=request_id), headers=_NOT_STORED)

    @app.get("/v1/quire/blocks", response_class=Response, responses=_BLOCKS)
    async def blocks(stream: bool = False, pressure: bool = False) -> Response:
        """Every block of the pool: its state, whose it is, and how often it is shared and found."""
        if stream:
            return FrameStream(watch, pressure=pressure)
        with watch.watching() as watcher:
            return Response(await watcher.frame(), media_type=_BINARY, headers=_NOT_STORED)

    @app.get("/v1/quire/blocks/{block}", responses=gives(BlockStory))
    async def block(block: int) -> Response:
        """One block: who holds it, and which of their tokens are in it."""
        return _json(await ask(("block", block), partial(reader.block, block)))


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json", headers=_NOT_STORED)


class FrameStream(Response):
    """Frames as events, until the client leaves, or reads nothing for too long."""

    def __init__(self, watch: BlockWatch, *, pressure: bool = False) -> None:
        headers = {**_NOT_STORED, "x-accel-buffering": "no"}
        super().__init__(headers=headers, media_type=DATA.media_type)
        del self.headers["content-length"]
        self._watch = watch
        self._pressure = pressure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_disconnected(receive))
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        sending.cancel()  # unless it has ended
        with contextlib.suppress(asyncio.CancelledError, asyncio.TimeoutError):
            await sending

    async def _send_all(self, send: Send) -> None:
        with self._watch.watching(pressure=self._pressure) as watcher:
            frame = await watcher.frame()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with contextlib.suppress(QuireError):  # the engine has gone
                while True:
                    data = b": \n\n"
                    if frame is not None:
                        data = event(frame if self._pressure else base64.b64encode(frame))
                    await asyncio.wait_for(send(_body(data)), _UNREAD)
                    frame = await watcher.frame(_SILENCE)
        await send(_body(b"", more=False))


def _body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
