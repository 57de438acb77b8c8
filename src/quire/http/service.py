"""What the endpoints share: the engine, its models, its clients, and the bounds of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection
from starlette.types import Scope

from quire.capabilities.adapters.served import Adapters
from quire.capabilities.sessions import SessionManager
from quire.core.errors import EngineError, QueueFullError, QuireError, RequestError, shown
from quire.core.protocol import Origin
from quire.core.scheduling import Session
from quire.engine.async_engine import AsyncEngine, Deltas
from quire.engine.dashboard import MissRow, PoolBytes, miss_row
from quire.engine.input_processor import InputProcessor, Prompt, as_dict
from quire.engine.metrics import RequestMetrics
from quire.engine.outputs import Delta
from quire.http.body_fields import in_callers_words
from quire.http.chats.speech import Speech
from quire.http.config.server import ServerConfig
from quire.http.errors import EngineUnavailableError, UnknownModelError
from quire.http.guards.bodies import Bodies
from quire.http.guards.envelope import REQUEST_ID
from quire.http.guards.keys import KEY_NAME
from quire.http.kept_ids import kept_id
from quire.http.metrics import ServerMetrics
from quire.text.params import PoolingParams, SamplingParams
from quire.text.params.parameters import check_unicode

_TRACE_CONTEXT = (b"traceparent", b"tracestate")  # of W3C
_LONGEST_STATE = 512
_LONGEST = 256  # characters of a name or a salt, which are kept as long as a session


class Caller(NamedTuple):
    """Who sent an HTTP request.

    key: the name of its API key, where there are several; then each of them is a client.
    own_cache: only requests with the same key share a prefix cache.
    request_id: what the request goes by in headers and logs.
    origin: what those learn of it who watch the engine.
    """

    key: str | None = None
    own_cache: bool = False
    request_id: str = ""
    origin: Origin = Origin()

    @classmethod
    def of(cls, scope: Scope, *, salt_by_key: bool) -> Caller:
        state = scope.get("state", {})
        key = state.get(KEY_NAME)
        # If all requests bear the same key, they share one cache anyway.
        request_id = state.get(REQUEST_ID, "")
        return cls(key, salt_by_key and key is not None, request_id, _origin(scope, request_id))

    def client(self, user: str | None) -> str:
        """The client whose share of the engine a request takes; "" is all who give no name.

        Where there are several keys, ``user`` does not count: nobody is many clients by one key.
        """
        return self.key if self.key is not None else _checked("user", user)

    def cache_salt(self, given: str | None) -> str:
        """The engine's salt of a request that gives this one: another for each (key, salt)."""
        salt = _checked("cache_salt", given)
        if not self.own_cache:
            return salt
        # A key's name has a fixed length, and nobody outside knows it.
        return sha256(f"{self.key}{salt}".encode()).hexdigest()

    def options(
        self,
        model: ModelChoice,
        user: str | None = None,
        cache_salt: str | None = None,
        priority: int | None = None,
    ) -> dict[str, Any]:
        """What a prompt says beside its text: its model, whose it is, and how soon it is due."""
        given = {
            "adapter": model.adapter,
            "cache_salt": self.cache_salt(cache_salt) or None,
            "priority": priority,
            "client": self.client(user) or None,
            "origin": self.origin,
        }
        return {name: value for name, value in given.items() if value is not None}

    def may_use(self, session_client: str | None) -> bool:
        """Whether a session or a request of that client is open to this caller, who has its id.

        With several keys it belongs to the key that opened it.
        """
        return self.key is None or self.key == session_client


def _origin(scope: Scope, request_id: str) -> Origin:
    given = {name: value for name, value in scope["headers"] if name in _TRACE_CONTEXT}
    texts = (given.get(name, b"")[:_LONGEST_STATE].decode("latin-1") for name in _TRACE_CONTEXT)
    parent, state = texts
    return Origin("text_completion", request_id, parent, state if parent else "")


def _checked(field: str, text: str | None) -> str:
    if text is None:
        return ""
    if len(text) > _LONGEST:
        raise RequestError(f"{field} must have at most {_LONGEST} characters", field)
    check_unicode(field, text)
    return text


MOST_CHOICES = 4096
_CHARACTER, _SPECIAL = 4, 16  # most tokens of a character, and around a text
MOST_LOGPROBS = 2**22  # a quarter of a kilobyte each, in memory and again in the answer


def _most_tokens(count: int, longest: int, prompts: Sequence[str | Sequence[int]] | None) -> int:
    """The most tokens of ``count`` prompts; a character may be one token a byte."""
    if prompts is None:
        return count * longest
    lengths = (
        _CHARACTER * len(one) + _SPECIAL if isinstance(one, str) else len(one) for one in prompts
    )
    return sum(min(length, longest) for length in lengths)


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
    family: str = ""  # by the names of transformers' config files
    num_parameters: int = 0
    pool_bytes: PoolBytes | None = None


class ModelChoice(NamedTuple):
    """What a request names as its model.

    adapter: the one that changes the model's weights, if it is one.
    """

    name: str
    adapter: str | None = None


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
        return Caller.of(http.scope, salt_by_key=bool(self.config.cache_salt_by_key))

    @property
    def adapters(self) -> Adapters | None:
        """The adapters, if any may be served."""
        return self.engine.engine.capabilities.adapters

    def miss_of(self, metrics: RequestMetrics) -> MissRow | None:
        """Why no more of the request's prompt was cached, as its own client may know it."""
        if metrics.miss is None:
            return None
        read = self.input_processor.detokenize if self.config.dashboard_show_text else None
        scheduler = self.engine.engine.scheduler
        return miss_row(metrics.miss, scheduler, self.facts.pool_bytes, read)

    @property
    def all_names(self) -> list[str]:
        """The names of the model and of its adapters."""
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

    def model_of(self, name: str | None, warnings: list[str]) -> ModelChoice:
        """The same for who may have come from elsewhere with a name of there.

        Where one model is served and has no name of its own, it answers, with a warning.
        """
        try:
            return self.check_model(name)
        except UnknownModelError:
            config = self.config
            if config.strict_model_name or config.served_model_name or self.adapters is not None:
                raise
        own = self.model_names[0]
        warnings.append(f"model {shown(name)} is not served here: {own} has answered")
        return ModelChoice(own)

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
            raise RequestError(
                "model belongs to the session: give it when the session is opened", "model"
            )
        return model.name

    def check_chat_template(self, given: str | None) -> None:
        """RequestError for a request's own, unless requests are trusted with that."""
        if given is not None and not self.config.trust_request_chat_template:
            raise RequestError(
                "chat_template needs a server that is started with --trust-request-chat-template",
                "chat_template",
            )

    def check_answer(
        self,
        params: SamplingParams,
        num_prompts: int = 1,
        prompts: Sequence[str | Sequence[int]] | None = None,
    ) -> None:
        """RequestError if the answer could become larger than a server should have to hold.

        prompts: where they are at hand; else each may be as long as the model takes.
        """
        most, width = self.config.max_logprobs, num_prompts * params.width
        for name in ("logprobs", "prompt_logprobs"):
            if most is not None and (getattr(params, name) or 0) > most:
                raise RequestError(f"{name} must be at most {most} (--max-logprobs)", name)
        if width > MOST_CHOICES:
            raise RequestError(
                f"the number of prompts times n (or best_of, or beam_width) must be at most "
                f"{MOST_CHOICES:,}, got {num_prompts:,} times {params.width}",
                "n",
            )
        each = self.input_processor.most_tokens(params)
        longest = self.input_processor.max_model_len or each
        counts = {
            "logprobs": (width * each, params.sample_logprobs),
            "prompt_logprobs": (
                _most_tokens(num_prompts, longest, prompts),
                params.prompt_logprobs,
            ),
        }
        for name, (tokens, likeliest) in counts.items():
            if likeliest is not None and tokens * (likeliest + 1) > MOST_LOGPROBS:
                raise RequestError(
                    f"an answer may hold at most {MOST_LOGPROBS:,} {name}; {shown(tokens)} tokens "
                    f"with {likeliest + 1} each would be more: ask for fewer, or for fewer or "
                    "shorter outputs",
                    name,
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
        if self.config.truncate_max_tokens:  # a max_tokens above what is left is lowered
            prompts = ({**as_dict(prompt), "truncate_max_tokens": True} for prompt in prompts)
        by_id = {f"{request_id}-{number}": prompt for number, prompt in enumerate(prompts)}
        deltas = self.engine.generate(by_id, params, self._interval(whole))
        return self._together(deltas, list(by_id), field_names)

    def _interval(self, whole: bool) -> int | None:
        return None if whole else self.config.stream_interval

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
            if self.engine.healthy:  # else it is another matter than a failed step
                raise
            raise EngineUnavailableError(str(error)) from None
        finally:
            self.metrics.observe_aborted(len(unfinished))

    async def in_engine(self, act: Callable[..., None], *args: object) -> None:
        """Have the engine's thread do it, between two steps; raises what it raises."""
        await self.engine.call(partial(act, *args))

    @property
    def sessions(self) -> SessionManager:
        """The sessions, to be read; they are changed by ``in_engine``."""
        return self.engine.engine.sessions
