"""What the endpoints share: the engine, the models' names, and requests of several prompts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from starlette.requests import HTTPConnection

from quire.capabilities.adapters.served import Adapters
from quire.core.errors import EngineError, QueueFullError, QuireError, RequestError, shown
from quire.core.protocol import Origin, PoolingParams, SamplingParams
from quire.core.scheduling import Session
from quire.engine.async_engine import AsyncEngine, Deltas
from quire.engine.input_processor import InputProcessor
from quire.engine.outputs import Delta
from quire.engine.prompts import Prompt, as_dict
from quire.engine.session_manager import SessionManager
from quire.http.chats.speech import Speech
from quire.http.config.server import ServerConfig
from quire.http.errors import EngineUnavailableError, UnknownModelError, in_callers_words
from quire.http.guards.bodies import Bodies
from quire.http.guards.clients import Caller
from quire.http.kept_ids import kept_id
from quire.http.metrics import ServerMetrics

Progress = AsyncGenerator[list[tuple[int, Delta]], None]
"""What has come since the last time: (number of the prompt, what one of its outputs gained)."""


@dataclass(frozen=True)
class ModelFacts:
    """What clients may learn of the model, where it is known."""

    weight_bytes: int = 0
    dtype: str = ""
    quantization: str | None = None  # None: weights are as the checkpoint has them
    num_speculative_tokens: int = 0  # most drafts of a sequence in one step
    kv_layers: Sequence[tuple[int, int]] = ()  # of each KV group: the model's, a draft model's


class ModelChoice(NamedTuple):
    """What a request names as its model.

    adapter: the one that changes the model's weights, if it is one.
    """

    name: str
    adapter: str | None = None

    @property
    def options(self) -> Mapping[str, str]:
        """What prompts say of it."""
        return {} if self.adapter is None else {"adapter": self.adapter}


@dataclass(frozen=True)
class Service:
    """An engine as the endpoints use it.

    replica: what it is called among others that serve together, or nothing.
    """

    engine: AsyncEngine
    model_names: Sequence[str]
    metrics: ServerMetrics
    config: ServerConfig
    bodies: Bodies
    speech: Speech
    facts: ModelFacts
    replica: str = ""

    @property
    def input_processor(self) -> InputProcessor:
        return self.engine.engine.input_processor

    @property
    def silence(self) -> float:
        """Seconds without a token after which a stream gives a sign of life; 0: it never does."""
        return self.config.sse_keep_alive_interval

    def caller(self, http: HTTPConnection) -> Caller:
        return Caller.of(http.scope, salt_by_key=self.config.salts_by_key)

    @property
    def adapters(self) -> Adapters | None:
        """Those that are served beside the model, if any may be."""
        return self.engine.engine.capabilities.adapters

    @property
    def all_names(self) -> list[str]:
        """Of the model, and of its adapters."""
        cards = [] if self.adapters is None else self.adapters.cards
        return [*self.model_names, *(card.name for card in cards)]

    def check_model(self, name: str | None) -> ModelChoice:
        """The model of this name; without one it is the model that is served."""
        if name is None:
            return ModelChoice(self.model_names[0])
        if name in self.model_names:
            return ModelChoice(name)
        if self.adapters is not None and name in self.adapters:
            return ModelChoice(name, name)
        known = ", ".join(self.model_names)
        raise UnknownModelError(f"model {shown(name)} is not served here; {known} is", "model")

    def check_model_of(self, session: Session, name: str | None) -> str:
        """The name of a session's model, which a turn may give, but not change.

        An adapter's is the session's own, even if it is no longer loaded, or another is called so.
        """
        own = session.resting.request.adapter
        if own is not None and name in (None, own.name):
            return own.name
        if name is None:
            return self.model_names[0]
        model = self.check_model(name)
        if self.input_processor.adapter(model.adapter) != own:
            raise RequestError("model is a session's, given when it is opened", "model")
        return model.name

    def check_chat_template(self, given: str | None) -> None:
        """RequestError for a request's own, unless requests are trusted with that."""
        if given is not None and not self.config.trust_request_chat_template:
            raise RequestError(
                "chat_template needs a server that is started with --trust-request-chat-template",
                "chat_template",
            )

    def new_id(self) -> str:
        """A name for what is kept here."""
        return kept_id(self.replica)

    def reserve(
        self, count: int = 1, prompts: Iterable[object] = ()
    ) -> AbstractContextManager[object]:
        """Room for requests while they are made ready; QueueFullError if there is not so much."""
        return self.engine.engine.waiting_room.reserve(count, prompts)

    def run(
        self,
        request_id: str,
        prompts: Iterable[Prompt],
        params: SamplingParams | PoolingParams,
        field_names: Mapping[str, str],
        *,
        whole: bool,
    ) -> Progress:
        """Run all the prompts together; one that fails ends the others.

        whole: what an output gains comes when it has ended.

        Nothing comes before every prompt has its first token, so that if any of them is refused
        the caller has not begun to answer yet. Closing the generator frees everything.
        """
        prompts = map(self._truncating, prompts) if self.config.truncate_max_tokens else prompts
        by_id = {f"{request_id}-{number}": prompt for number, prompt in enumerate(prompts)}
        deltas = self.engine.generate(by_id, params, self._interval(whole))
        return self._together(deltas, list(by_id), field_names)

    def _interval(self, whole: bool) -> int | None:
        return None if whole else self.config.stream_interval

    def _truncating(self, prompt: Prompt) -> Prompt:
        """That a max_tokens above what is left is lowered."""
        return {**as_dict(prompt), "truncate_max_tokens": True}

    def run_turn(
        self,
        request_id: str,
        session_id: str,
        params: SamplingParams,
        priority: int,
        field_names: Mapping[str, str],
        origin: Origin,
        *,
        whole: bool,
    ) -> Progress:
        """Run the next turn of a session, in the same manner."""
        interval = self._interval(whole)
        turn = self.engine.generate_turn(request_id, session_id, params, priority, origin, interval)
        return self._together(turn, [request_id], field_names)

    async def _together(
        self, deltas: Deltas, request_ids: Sequence[str], field_names: Mapping[str, str]
    ) -> Progress:
        numbers = {request_id: number for number, request_id in enumerate(request_ids)}
        unfinished, silent = set(request_ids), set(request_ids)
        held: list[tuple[int, Delta]] = []
        failure: QuireError | None = None
        try:
            with in_callers_words(field_names):
                async with aclosing(deltas):
                    async for step in deltas:
                        for delta in step:
                            held.append((numbers[delta.request_id], delta))
                            if delta.final is not None:
                                unfinished.discard(delta.request_id)
                                failure = failure or delta.failure
                        if failure is not None:
                            raise failure
                        if silent:
                            silent.difference_update(delta.request_id for delta in step)
                        if not silent:
                            yield held
                            held = []
        except (RequestError, QueueFullError):
            unfinished.clear()  # refused, so that none has run
            raise
        except EngineError as error:
            raise self._as_unavailable(error) from None
        finally:
            self.metrics.observe_aborted(len(unfinished))

    async def in_engine(self, act: Callable[..., None], *args: object) -> None:
        """Have the engine's thread do it, between two steps; raises what it raises."""
        await self.engine.call(partial(act, *args))

    @property
    def sessions(self) -> SessionManager:
        """To be read; what changes them is done by ``in_engine``."""
        return self.engine.engine.sessions

    def _as_unavailable(self, error: EngineError) -> EngineError:
        """The error of a dead engine is another matter than one of a failed step."""
        return error if self.engine.healthy else EngineUnavailableError(str(error))
