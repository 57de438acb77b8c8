"""The engine in a thread of its own, its requests as async iterators."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

from quire.blocks.transfer import BlockFetcher
from quire.core.errors import EngineError, QuireError, RequestError, reason
from quire.core.protocol import Origin
from quire.engine.engine import Engine
from quire.engine.handover import Handover
from quire.engine.input_processor import PreparedRequest, Prompt
from quire.engine.outputs import Delta
from quire.engine.thread import LONG, Delivery, EngineThread, OutputCollector, PreparationThreads
from quire.engine.waiting_room import Places
from quire.text.begun import ChatPrompt
from quire.text.chat_template import Message
from quire.text.encoder import PromptForm, weight
from quire.text.params import PoolingParams, SamplingParams
from quire.text.sandbox import OWN

_T = TypeVar("_T")
Deltas = AsyncGenerator[list[Delta], None]
MakeThread = Callable[
    [Engine, Callable[[list[Delta]], None], Callable[[BaseException | None], None]], EngineThread
]
_STOPPED = "the engine has been stopped"
_TOGETHER = 64  # inputs that are prepared in one go, some milliseconds
_REST = 2.0  # seconds after the last request, unless others come meanwhile


class AsyncEngine:
    """Runs an Engine in a thread; every call on the engine goes through its command queue.

    Its iterators give what has come since they were last asked: the deltas of one step, or of
    several if nobody has asked for so long, or steps are short (see Delivery).

    make_thread: given the engine, who takes what each step gives, and whom to tell of the end.
    """

    def __init__(self, engine: Engine, make_thread: MakeThread = EngineThread) -> None:
        self.engine = engine
        self._delivery = Delivery()
        self._preparation = PreparationThreads()
        self._calls: set[asyncio.Future[Any]] = set()  # not answered; of the event loop only
        self._thread = make_thread(engine, self._delivery.put, self._ended)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: EngineError | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._handover: Handover | None = None
        transfer = engine.capabilities.transfer
        if isinstance(transfer, BlockFetcher):
            allocator = engine.scheduler.allocator
            self._handover = Handover(transfer, allocator, self._preparation, self.call)

    @property
    def healthy(self) -> bool:
        return self._thread.alive and self._failure is None

    @property
    def at_work(self) -> bool:
        """Whether a thread is there still, perhaps in a step or a text that nobody waits for."""
        return self._thread.alive or self._preparation.busy

    def start(self) -> None:
        """Start the thread. Call it from the event loop that will use the engine."""
        self._loop = asyncio.get_running_loop()
        self._delivery.start(self._loop)
        if self.engine.sessions.rules.timeout:
            self._sweeper = self._loop.create_task(self._sweep(self.engine.sessions.rules.timeout))
        self._thread.start()
        others = self.engine.capabilities.others
        if others is not None:
            others.watch(self._thread.fail)

    async def stop(self) -> None:
        """End the thread after its current step; running requests end with an EngineError.

        Cancelled, it leaves the step alone, which may take long, and ends the requests at once.
        """
        self._preparation.close()
        for timer in (self._sweeper, self._resting):
            if timer is not None:
                timer.cancel()
        if self._failure is not None:
            return
        self._thread.put(None)
        try:
            await self._thread.join()
        finally:
            self._failure = self._failure or EngineError(_STOPPED)
            self._fail_all(self._failure)

    def generate(
        self,
        prompts: Mapping[str, Prompt],
        params: SamplingParams | PoolingParams,
        interval: int | None = 1,
    ) -> Deltas:
        """What is added to some requests, the last delta of each holding its RequestOutput.

        prompts: by request id; ``params`` are those of all of them.
        interval: see OutputCollector.

        Raises RequestError before the first delta if one of them is refused, or QueueFullError,
        before anything is done, if not all of them may wait; then none runs. A request that fails
        ends with a delta that holds its failure. Closing the iterator, or cancelling the task that
        awaits it, frees the blocks before the next step.
        """
        clock, input_processor = self.engine.clock, self.engine.input_processor
        arrival = clock()

        ready = cache(partial(input_processor.prepare_params, params))

        def prepare(request_id: str, prompt: Prompt) -> PreparedRequest:
            prepared = input_processor.prepare(request_id, prompt, ready(), arrival)
            return replace(prepared, request=replace(prepared.request, ready=clock()))

        left = threading.Event()  # the caller has

        def together(portion: Sequence[tuple[str, Prompt]]) -> list[PreparedRequest]:
            return [prepare(name, prompt) for name, prompt in portion if not left.is_set()]

        async def submit(places: Places) -> None:
            sampling = params if isinstance(params, SamplingParams) else SamplingParams()
            output = int(params is sampling and sampling.max_tokens != 0)
            sizes = [input_processor.size(prompt, output=output) for prompt in prompts.values()]
            sizes[0] += len(sampling.prediction or "")  # which is made ready along with it
            if sampling.structured_outputs is not None and self._compiles(sampling):
                await self._preparation.compile(ready)
            prepared: list[PreparedRequest] = []
            try:
                for size, portion in _portions(sizes, [*prompts.items()]):
                    prepared += await self._preparation.run(size, partial(together, portion))
                    tokens = sum(len(one.request.prompt_token_ids) for one in prepared)
                    places.weigh(tokens, at_least=len(prepared) < len(prompts))
            except asyncio.CancelledError:
                left.set()
                raise
            if self._handover is not None:
                await self._handover.bring(prompts.values(), prepared)
            await self.call(partial(self._submit, prepared, places))

        return self._deltas(prompts, submit, interval, prompts.values())

    def generate_turn(
        self,
        request_id: str,
        session_id: str,
        params: SamplingParams,
        priority: int = 0,
        origin: Origin = Origin(),  # noqa: B008  # frozen
        interval: int | None = 1,
    ) -> Deltas:
        """The next turn of a session, as ``generate``. Closed early, what has come stays in it."""

        async def submit(places: Places) -> None:
            prepare = partial(self.engine.input_processor.prepare_params, params)
            if params.structured_outputs is not None and self._compiles(params):
                ready = await self._preparation.compile(prepare)
            else:
                ready = await self._preparation.run(len(params.prediction or ""), prepare)

            def act() -> None:
                with places.take():
                    self.engine.submit_turn(request_id, session_id, ready, priority, origin)

            await self.call(act)

        return self._deltas([request_id], submit, interval)

    async def text_prompt(self, given: str | Sequence[int], form: PromptForm) -> list[int]:
        """Token ids of a prompt in a form of its caller's: a prompt for ``generate``."""
        prepare = partial(self.engine.input_processor.text_prompt, given, form)
        return await self._preparation.run(len(given) + len(form.suffix or ""), prepare)

    async def begin_chat(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        form: PromptForm = PromptForm(),  # noqa: B008  # frozen
        marks: Sequence[str] | None = None,
    ) -> ChatPrompt:
        """A conversation as a prompt for ``generate``: see ``InputProcessor.begin_chat``."""
        begin = self.engine.input_processor.begin_chat
        prepare = partial(begin, messages, variables, form, marks)
        # A request's own template, which may take long, is prepared apart, as what is long.
        size = LONG + 1 if variables.get(OWN) else weight([messages, variables], LONG)
        return await self._preparation.run(size, prepare)

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        tokenize = self.engine.input_processor.tokenize
        encode = partial(tokenize, text, add_special_tokens=add_special_tokens)
        return await self._preparation.run(len(text), encode)

    async def detokenize(self, token_ids: Sequence[int], *, own: bool = False) -> str:
        decode = partial(self.engine.input_processor.detokenize, token_ids, own=own)
        return await self._preparation.run(len(token_ids), decode)

    def _compiles(self, params: SamplingParams) -> bool:
        return self.engine.input_processor.grammars.compiles(params)

    async def check(self, params: SamplingParams) -> None:
        """RequestError where no text can be held to what ``params`` ask for."""
        rules = partial(self.engine.input_processor.grammars.rules, params)
        if self._compiles(params):
            await self._preparation.compile(rules)
        else:
            await self._preparation.run(0, rules)

    async def misfit(self, schema: Mapping[str, Any], text: str) -> str:
        """Why a text does not fit a schema: see ``Grammars.misfit``."""
        return await self._preparation.compile(
            partial(self.engine.input_processor.grammars.misfit, schema, text)
        )

    async def end(self, request_id: str, error: QuireError, may_end: Callable[[str], bool]) -> bool:
        """End a request whose caller waits for it, and have it told why.

        may_end: whether those of such a client may be ended. False: it is not, or not here.
        """

        def act() -> bool:
            group = self.engine.scheduler.group(request_id)
            if group is None or not may_end(group.request.client):
                return False
            told = self.engine.end(request_id, error)
            if told is not None:
                self._delivery.put([told])
            return told is not None

        return await self.call(act)

    def give_memory_back(self) -> None:
        """Return free memory to the system soon."""
        self._preparation.give_back_soon()

    def _rest_soon(self) -> None:
        """A request has ended: of many, or of a large one, memory is left that nobody needs."""
        if self._resting is None and self._loop is not None:
            self._resting = self._loop.call_later(_REST, self._rest)

    def _rest(self) -> None:
        self._resting = None
        if not self._delivery.collectors:
            self.give_memory_back()

    # -- sessions, whose other verbs are called by way of ``call`` ------------------------------

    async def append_to_session(self, session_id: str, given: str | Sequence[int]) -> None:
        sessions, input_processor = self.engine.sessions, self.engine.input_processor
        size = input_processor.size(given, "input")
        prepare = partial(input_processor.session_input, sessions.get(session_id), given)
        token_ids = await self._preparation.run(size, prepare)
        await self.call(partial(sessions.append, session_id, token_ids))

    async def _sweep(self, timeout: float) -> None:
        """Close sessions that have expired, whether anybody asks for one or not."""
        with contextlib.suppress(EngineError):  # it has died, or been stopped
            while True:
                await asyncio.sleep(min(max(timeout / 10, 1.0), 60.0))
                await self.call(self.engine.sessions.close_expired)

    async def call(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns or raises in the engine's thread, between two steps."""
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def command() -> None:
            try:
                result = act()
            except Exception as error:
                self._delivery.call_soon(partial(_settle, answer, error))
            else:
                self._delivery.call_soon(partial(_settle, answer, None, result))

        if self._loop is None:
            raise EngineError("the engine is not running")
        self._thread.put(command)
        if self._failure is not None:  # set before the dying thread empties its queue
            raise self._failure
        self._calls.add(answer)
        try:
            return await answer
        finally:
            self._calls.discard(answer)

    async def _deltas(
        self,
        request_ids: Collection[str],
        submit: Callable[[Places], Awaitable[None]],
        interval: int | None,
        prompts: Iterable[Prompt] = (),
    ) -> Deltas:
        for request_id in request_ids:
            if request_id in self._delivery.collectors:
                raise RequestError(f"request {request_id} is already running", "request_id")
        reserved = contextlib.ExitStack()
        room = self.engine.waiting_room
        places = reserved.enter_context(room.reserve(len(request_ids), prompts))
        collector, unfinished = OutputCollector(interval), set(request_ids)
        self._delivery.collectors.update(dict.fromkeys(unfinished, collector))
        try:
            with reserved:
                await submit(places)
            while unfinished:
                deltas = await collector.take()
                for delta in deltas:
                    if delta.final is not None:
                        unfinished.discard(delta.request_id)
                yield deltas
        finally:
            for request_id in request_ids:
                del self._delivery.collectors[request_id]
            self._rest_soon()
            if unfinished:
                self._thread.put(partial(self._abort, unfinished))

    # -- in the engine's thread ------------------------------------------------------------

    def _submit(self, requests: Sequence[PreparedRequest], places: Places) -> None:
        """Queue all of them, or none if one is refused."""
        for number, request in enumerate(requests):
            try:
                with places.take(len(request.request.prompt_token_ids)):
                    self.engine.submit(request)
            except RequestError:
                self._abort(queued.request.request_id for queued in requests[:number])
                raise

    def _abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)

    def _ended(self, error: BaseException | None) -> None:
        why = _STOPPED if error is None else f"the engine died: {reason(error)}"
        self._failure = self._failure or EngineError(why)
        self._delivery.call_soon(partial(self._fail_all, self._failure))

    # -- in the event loop -----------------------------------------------------------------

    def _fail_all(self, failure: EngineError) -> None:
        self._delivery.fail_all(failure)
        for answer in self._calls:
            _settle(answer, failure)


def _portions(sizes: Sequence[int], items: Sequence[_T]) -> Iterator[tuple[int, list[_T]]]:
    """``items`` in order, together as long as they are short and few, and how much that is.

    Each portion costs a turn of a thread, and gives the event loop one: a thread that prepares one
    short text after the other lets go of Python's lock too briefly for others to get it.
    """
    total, portion = 0, list[_T]()
    for size, item in zip(sizes, items, strict=True):
        if portion and (total + size > LONG or len(portion) == _TOGETHER):
            yield total, portion
            total, portion = 0, []
        total += size
        portion.append(item)
    yield total, portion


def _settle(answer: asyncio.Future[_T], error: Exception | None, result: Any = None) -> None:
    if answer.done():  # nobody waits for it any more
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
